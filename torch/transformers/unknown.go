package transformers

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// harmless are the fields of config.json that change no number here: settings of training, generation and speed, names,
// versions, and fields that a family reads only next to others. transformers ignores fields that a model_type does not have.
var harmless = strings.Fields(`
	architectures auto_map base_model_tp_plan cache_implementation chunk_size_feed_forward cls_token_id cross_attention_hidden_size
	custom_pipelines decoder_start_token_id directionality dtype emb_pooler finetuning_task forced_bos_token_id forced_eos_token_id
	gradient_checkpointing id2label image_token_id initializer_cutoff_factor initializer_factor initializer_range is_composition
	is_decoder is_encoder_decoder is_llama_config label2id language legacy license mask_token_id model_max_length model_type name
	neftune_noise_alpha num_labels num_nextn_predict_layers output_attentions output_hidden_states output_past output_router_logits
	prefix pretraining_tp problem_type pruned_heads quantization_config return_dict router_aux_loss_coef router_jitter_noise sep_token_id
	summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj task_specific_params
	tf_legacy_loss tie_encoder_decoder tie_weights_ tie_word_embeddings tokenizer_class torch_dtype torchscript
	transformers.js_config transformers_version unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache use_mrope

	attention_dropout attention_probs_dropout_prob attn_pdrop classifier_dropout classifier_dropout_prob dropout embd_pdrop
	embedding_dropout hidden_dropout hidden_dropout_prob layerdrop mlp_dropout pooler_dropout qa_dropout resid_pdrop
	residual_dropout seq_classif_dropout summary_last_dropout

	attention_softmax_in_fp32 attn_implementation decoder_bias deterministic_flash_attn flash_attn n_ctx reference_compile
	reorder_and_upcast_attn repad_logits_with_grad rope_interleaved scale_attention_softmax_in_fp32 sinusoidal_pos_embds
	sparse_pred_ignore_index sparse_prediction

	eos_token_id bos_token_id pad_token_id head_dim hidden_act intermediate_size layer_types layer_norm_eps layers_block_type
	max_window_layers mlp_layer_types num_key_value_heads original_max_position_embeddings partial_rotary_factor
	position_embedding_type rms_norm_eps rope_local_base_freq rope_parameters rope_scaling rope_theta rotary_dim sliding_window
	sliding_window_pattern use_sliding_window

	down_scale_factor gap_size model_parallel net_structure_type num_memory_blocks tensor_parallel use_flash_attention
	use_flash_attention_2 use_flash_attn use_mamba_kernels

	dense_seq_output fused_bias_fc fused_dropout_add_ln pad_vocab_size_multiple use_xentropy

	full_attn_mod init_method interpolate_factor layer_switch mlp_type norm_type order_of_interleaved_layers pooler_fc_size
	pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type rope_pct rotary_pct use_embedding_sharing
	use_gated_activation use_parallel_block

	mamba_chunk_size mamba_conv_bias mamba_d_conv mamba_d_head mamba_d_state mamba_expand mamba_n_groups mamba_n_heads
	mamba_proj_bias normalization_function num_experts_per_tok time_step_limit
`)

// matter are words of names of fields that change what a model computes.
var matter = strings.Fields(`
	act activation alibi altup attention attn bias bidirectional block cap capping causal conv delta embed embedding embeddings
	expert experts ffn gate gated gating head heads key kv latent layer layernorm layers logit logits lora loop mamba mask
	memory mlp moe mtp multiplier norm normalization parallel position positions q qk qkv query residual rope rotary router scale
	scaling shared sink sinks softcap softcapping softmax sparse ssm state swiglu temperature value window
`)

// An UnknownField is a member of config.json that is neither read nor known to change nothing.
type UnknownField struct {
	Name  string // with the objects around it, "text_config.x"
	Value string // as JSON
	// Matters means that the model may be another one than is loaded: the field is on, and its name is about what a model
	// computes. Loading fails.
	Matters bool
}

// unknownFields are the members that nothing has read, sorted by name.
func (f *fields) unknownFields() []UnknownField {
	var unknown []UnknownField
	for _, key := range slices.Sorted(maps.Keys(f.raw)) {
		if f.read[key] || strings.HasPrefix(key, "_") || slices.Contains(harmless, key) {
			continue
		}
		about := slices.ContainsFunc(strings.Split(strings.ToLower(key), "_"), func(word string) bool { return slices.Contains(matter, word) })
		unknown = append(unknown, UnknownField{f.at + key, oneLine(f.raw[key]), about && !off(f.raw[key])})
	}
	return unknown
}

// off reports whether a value is null, false, 0, empty or the name of nothing.
func off(raw json.RawMessage) bool {
	return slices.Contains([]string{"null", "false", "0", "0.0", `""`, "[]", "{}", `"none"`}, oneLine(raw))
}

// refuseUnknown fails if an unknown field may change numbers.
func (c *Config) refuseUnknown(f *fields) {
	c.Unknown = f.unknownFields()
	for _, u := range c.Unknown {
		if u.Matters && f.err == nil {
			f.err = fmt.Errorf("%s %.60s is not a field that is known for model_type %q, and the model may compute something else with it; if it does not, remove the field from config.json", u.Name, u.Value, c.ModelType)
		}
	}
}
