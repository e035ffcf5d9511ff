package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/options"
)

// rule says what becomes of a name of other trainers that sets nothing here.
type rule struct {
	name   string   // or the beginning of names, with … at its end
	values []string // that say what rltrain does anyway; other values are refused
	near   []string // that say nearly that; accepted with a note of why
	any    bool     // every value is accepted, because only the other trainer's runtime needs one
	why    string   // what rltrain does, or what to use instead
}

// Reasons that more than one name has.
const (
	evaluatesItself  = "evaluation sizes its batches automatically and changes no result"
	inOneStage       = "evaluation uses the type of training"
	unpadded         = "sequences are never padded"
	ownEngine        = "rltrain generates with its own engine; --rollout-url uses a running server"
	undivided        = "weights are not sharded; for data parallel training start several processes with torchrun"
	compilesNothing  = "rltrain compiles nothing at run time and loads no other kernels"
	uploadsNothing   = "rltrain uploads nothing"
	savesEverything  = "checkpoints come every save_steps and hold everything needed to resume"
	fixedReference   = "the reference is the starting policy"
	rowsAreInMemory  = "rows are held in memory and prefetched"
	constantEntropy  = "only use_adaptive_entropy reads it"
	otherLoss        = "only a loss that rltrain refuses reads it"
	ownTokenizer     = "rltrain reads the tokenizer and the template in the model's folder"
	noOutlet         = "rltrain has its own log files; see report_to"
	optionOfEval     = "is an option of the command eval: --n"
	acceleratesAlone = "rltrain needs no launcher; for data parallel training use torchrun"
	microBatches     = "micro-batches are sized automatically and change no result; see tokens_per_micro_batch"
	otherClip        = "only clip_high limits the ratio from above"
)

// rules are the names of TRL, transformers, accelerate, alignment-handbook, open-r1, Unsloth and label trainers that set
// nothing here. An exact name comes before a beginning.
var rules = slices.Concat(
	// Only their runtime needs these.
	needless("sequences are packed without padding, with one attention implementation", "attn_implementation", "use_flash_attention_2", "padding_free"),
	needless(unpadded, "pad_to_multiple_of", "pad_token", "padding_value", "label_pad_token_id", "length_column_name"),
	needless(microBatches, "auto_find_batch_size", "activation_offloading", "precompute_ref_batch_size", "torch_empty_cache_steps"),
	needless("gradient_checkpointing has no settings", "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "gradient_checkpointing_use_reentrant"),
	needless(rowsAreInMemory, "dataset_num_proc", "preprocessing_num_workers", "dataset_batch_size", "dataloader_…"),
	needless(undivided, "deepspeed", "deepspeed_config", "fsdp…", "parallelism_config", "accelerator_config", "accelerate_config", "ds3_gather_for_generation", "zero…", "offload_…"),
	needless(acceleratesAlone, "local_rank", "ddp_…", "ignore_bias_buffers", "compute_environment", "debug", "distributed_type", "downcast_bf16",
		"dynamo_…", "enable_cpu_affinity", "gpu_ids", "machine_rank", "main_process_ip", "main_process_port", "main_training_function", "mixed_precision",
		"num_machines", "num_processes", "rdzv_backend", "same_network", "tpu_…", "megatron_lm_config", "config_file", "train_batch_size",
		"train_micro_batch_size_per_gpu", "steps_per_print", "wall_clock_breakdown", "half_precision_backend", "fp16_opt_level"),
	needless(compilesNothing, "torch_compile…", "use_liger_kernel", "liger_kernel_config", "enable_jit_checkpoint", "jit_mode_eval", "use_cache", "cache_implementation"),
	needless(ownEngine, "use_vllm", "vllm_…", "use_transformers_…", "transformers_…", "fast_inference", "gpu_memory_utilization", "max_lora_rank"),
	needless("rltrain runs no code of models", "trust_remote_code"),
	needless("log-probabilities are always fp32", "cast_lm_head_to_fp32"),
	needless("the same seed always gives byte-identical results", "full_determinism"),
	needless("4-bit weights are nf4 with float32 scales", "bnb_4bit_quant_storage", "bnb_4bit_compute_dtype"),
	needless("seed sets the adapter's first weights too", "random_state"),
	needless("the task decides", "lora_task_type"),
	needless(noOutlet, "disable_tqdm", "log_level", "log_level_replica", "log_on_each_node", "logging_first_step", "logging_nan_inf_filter", "logging_strategy",
		"logging_dir", "log_unique_prompts", "log_multimodal", "num_completions_to_print", "skip_memory_metrics", "include_for_metrics",
		"include_num_input_tokens_seen", "trackio_…"),
	needless(savesEverything, "save_strategy", "save_only_model", "save_on_each_node", "save_safetensors", "restore_callback_states_from_checkpoint", "save_best_model"),
	needless("earlier runs of a folder are kept as FOLDER.1, FOLDER.2, ...", "overwrite_output_dir"),
	needless("only push_to_hub reads it", "hub_…", "overwrite_hub_revision"),
	needless("the command train trains, and always evaluates before, during and after it", "do_train", "do_eval", "eval_on_start", "evaluation_at_start"),
	needless(evaluatesItself, "eval_accumulation_steps", "eval_packing", "eval_do_concat_batches",
		"eval_use_gather_object", "per_device_eval_batch_size", "batch_eval_metrics", "prediction_loss_only", "label_names", "num_generations_eval"),
	needless("unused columns are ignored, and rewards get all columns", "remove_unused_columns"),
	needless("only sync_ref_model reads it", "ref_model_mixup_alpha", "ref_model_sync_steps"),
	needless(constantEntropy, "entropy_coef_…", "entropy_target"),
	needless(otherLoss, "sapo_…", "vespo_…", "discopop_tau", "f_alpha_divergence_coef"),
	needless("prompts are never truncated, as in TRL 1.16; those without room for a completion are skipped", "max_prompt_length"),
	needless("a run's folder has the model in any case; see export for other formats", "save_model", "save_method", "quantization", "quantization_method"),

	// These have one value here.
	only("push_to_hub", uploadsNothing, "false"),
	only("push_to_hub_revision", uploadsNothing, "false"),
	only("push_model", uploadsNothing, "false"),
	[]rule{{name: "optim", why: "the optimiser is AdamW, with its moments in fp32", values: []string{"adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw", "paged_adamw_32bit"},
		near: []string{"adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"}}},
	only("importance_sampling_level", "ratios are per token, or with algorithm rloo per completion", "token"),
	only("average_tokens_across_devices", "losses always count the tokens of all processes", "true"),
	only("bnb_4bit_quant_type", "4-bit weights are nf4", "nf4"),
	only("use_bnb_nested_quant", "scales of 4-bit weights are float32", "false"),
	only("dataset_streaming", "rows are held in memory; see max_samples", "false"),
	only("streaming", "rows are held in memory; see max_samples", "false"),
	only("do_predict", "use the command predict", "false"),
	only("eval_delay", "rltrain evaluates from the start", "0"),
	only("f_divergence_type", "only the reverse KL of the DPO paper is available", "reverse_kl"),
	only("fp16_full_eval", inOneStage, "false"),
	only("bf16_full_eval", inOneStage, "false"),
	only("ignore_data_skip", "a resumed run continues at the row where it stopped", "false"),
	only("label_smoothing_factor", "only preferences have label_smoothing", "0"),
	only("ld_alpha", "log-probabilities are sums over completions", "1"),
	only("multi_objective_aggregation", "rewards are summed with their weights", "sum_then_normalize"),
	only("neftune_noise_alpha", "rltrain adds no noise to embeddings", "0"),
	only("normalize_advantages", "use advantage_scale, with algorithm grpo", "false"),
	only("packing_strategy", "packing uses best fit with complete examples", "bfd"),
	only("router_aux_loss_coef", "rltrain does not train routers of mixtures of experts", "0"),
	only("sync_ref_model", fixedReference, "false"),
	only("tf32", "matrix products of fp32 are never rounded to TF32; see dtype", "false"),
	only("top_entropy_quantile", "all tokens of a completion are trained on", "1"),
	only("train_sampling_strategy", "rows are shuffled, by seed", "random"),
	only("group_by_length", "rows are shuffled, by seed; nothing is padded, so grouping saves nothing", "false"),
	only("truncation_mode", "texts are cut at their end", "keep_start"),
	only("use_adaptive_entropy", "use entropy_coef, which is constant", "false"),
	only("use_dora", "rltrain loads DoRA adapters, but trains only LoRA", "false"),
	only("use_weighting", "all pairs have the same weight", "false"),
	only("bias", "LoRA trains no biases", "none"),
	only("is_encoder_decoder", "encoder-decoder models are not supported", "false"),
	only("generate_during_eval", "use the command generate", "false"),
	only("reference_free", "use dpo_loss=cpo", "false"),

	// These have no equivalent.
	refuse("lr", "use learning_rate (supervised stage) or rl_learning_rate"),
	refuse("cliprange", "use clip_low and clip_high"),
	refuse(perGeneration, "use minibatches, with an algorithm that samples new completions"),
	refuse(perRollout, "use prompts_per_step and samples_per_prompt"),
	refuse("use_dpo", "use task=preference"),
	refuse("delta", otherClip),
	refuse("data_seed", "seed also sets the order of rows"),
	refuse("dataset_kwargs", "columns are found by name; see text_column"),
	refuse("datasets", "name a file or a folder of files as dataset; a file of settings may list one data set"),
	refuse("dataset_mixture", "name a file or a folder of files as dataset; a file of settings may list one data set"),
	refuse("dataset_mixer", "name a file or a folder of files as dataset; a file of settings may list one data set"),
	refuse("dataset_splits", "use train_split and eval_split; a file of settings may list both"),
	refuse("chat_template_path", "put chat_template.jinja into the model's folder"),
	refuse("chat_template", "put chat_template.jinja into the model's folder"),
	refuse("lora_modules_to_save", "rltrain trains adapters and the head of a classifier"),
	refuse("lora_target_parameters", "rltrain adapts linear modules; see lora_target_modules"),
	refuse("loftq_config", "adapters start at zero"),
	refuse("log_completions_hub_repo", uploadsNothing),
	refuse("max_tool_calling_iterations", "tools are not supported; max_turns gives programs several turns"),
	refuse("missing_eos_penalty", "use overlong_buffer, or mask_overlong"),
	refuse("off_policy_mask_threshold", "completions of older policies get importance weights; see max_staleness"),
	refuse("optim_args", "AdamW has the options weight_decay, adam_beta1, adam_beta2 and adam_epsilon"),
	refuse("optim_target_modules", "AdamW trains all weights with the same settings"),
	refuse("reward_clip_range", "use expr:'...' in reward to clip rewards"),
	refuse("reward_model_path", "use reward=model:DIR"),
	refuse("vllm_structured_outputs_regex", "completions are sampled without a grammar"),
	refuse("rpo_alpha", "use dpo_loss=sigmoid,sft with loss_weights=1,ALPHA"),
	refuse("callbacks", "rltrain calls no Python"),
	refuse("benchmarks", "use the command eval after training"),
	refuse("min_lr", "use min_lr_rate, a fraction of the peak learning rate"),
	refuse("env", "set variables of the environment in the shell"),
	refuse("cache_dir", "set the variables HF_HOME or HF_HUB_CACHE"),
	refuse("eval_k", optionOfEval),
	refuse("repeat_eval_problems", optionOfEval),
	refuse("simple_eval_problems", "use eval_samples"),
	refuse("use_reward_model", "use reward=tests,model:DIR"),
	refuse("qlora", "write quantize=nf4 and tuning=lora"),
	refuse("process_supervision", "use step_mode=line and a judge"),
	refuse("local_test", "use model=tiny for a test without a download"),
	refuse("reward_model_sys_prompt_path", "the judge's prompt is built in; choose one with reward"),
	refuse("judge_scale", "set a weight in reward, such as reward=score=0.2"),
	refuse("lmbda", "distillation always uses the student's own completions"),
	refuse("seq_kd", "use task=chat on the teacher's texts"),
)

func needless(why string, names ...string) []rule {
	var all []rule
	for _, name := range names {
		all = append(all, rule{name: name, any: true, why: why})
	}
	return all
}

func only(name, why string, values ...string) []rule {
	return []rule{{name: name, values: values, why: why}}
}

func refuse(name, why string) []rule { return []rule{{name: name, why: why}} }

// ruleOf is the rule for a name; nil if nothing is known of it.
func ruleOf(name string) *rule {
	for i := range rules {
		if rules[i].name == name {
			return &rules[i]
		}
	}
	for i := range rules {
		if begin, ok := strings.CutSuffix(rules[i].name, "…"); ok && strings.HasPrefix(name, begin) {
			return &rules[i]
		}
	}
	return nil
}

// check returns an error for a value that would ask for something else than rltrain does.
func (r *rule) check(v options.Value) error {
	if r.any || v.Syntax == options.Null || v.Syntax == options.List && len(v.List) == 0 {
		return nil
	}
	for _, value := range slices.Concat(r.values, r.near) {
		if v.Syntax != options.List && (sameValue(value, v.Text) || sameValue(value, switched(v))) {
			return nil
		}
	}
	switch {
	case r.values == nil:
		return fmt.Errorf("%s", r.why)
	case v.Syntax == options.List:
		return fmt.Errorf("%v: %s; use %s", v, r.why, strings.Join(r.values, " or "))
	}
	return fmt.Errorf("%q: %s; use %s", v.Text, r.why, strings.Join(r.values, " or "))
}

// sameValue compares numbers by value, and text without regard to case.
func sameValue(a, b string) bool {
	x, err := strconv.ParseFloat(a, 64)
	y, other := strconv.ParseFloat(b, 64)
	if err == nil && other == nil {
		return x == y
	}
	return strings.EqualFold(a, b)
}
