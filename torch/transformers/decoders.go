package transformers

import (
	"slices"

	"github.com/rltrain/rltrain/torch"
)

func rmsRows(names ...string) []moduleRow {
	var rows []moduleRow
	for i := 0; i < len(names); i += 2 {
		rows = append(rows, moduleRow{names[i], names[i+1], "H", ""})
	}
	return rows
}

// splitRows are the modules of attention with separate q, k and v.
func splitRows(qkvBias, oBias string) []moduleRow {
	return []moduleRow{
		{"q", "self_attn.q_proj", "QH", qkvBias},
		{"k", "self_attn.k_proj", "KH", qkvBias},
		{"v", "self_attn.v_proj", "KH", qkvBias},
		{"o", "self_attn.o_proj", "HQ", oBias},
	}
}

func gatedRows(bias string) []moduleRow {
	return []moduleRow{
		{"gate", "mlp.gate_proj", "IH", bias},
		{"up", "mlp.up_proj", "IH", bias},
		{"down", "mlp.down_proj", "HI", bias},
	}
}

var (
	llamaBase  = []moduleRow{{"embed", "embed_tokens", "VH", ""}, {"norm", "norm", "H", ""}}
	llamaNorms = rmsRows("attn_norm", "input_layernorm", "mlp_norm", "post_attention_layernorm")
	// Layer norms, which also shift.
	shiftedBase  = []moduleRow{{"embed", "embed_tokens", "VH", ""}, {"norm", "norm", "H", always}}
	shiftedNorms = []moduleRow{{"attn_norm", "input_layernorm", "H", always}, {"mlp_norm", "post_attention_layernorm", "H", always}}
	headNorms    = []moduleRow{{"q_norm", "self_attn.q_norm", "D", ""}, {"k_norm", "self_attn.k_norm", "D", ""}}
	gemmaNorms   = rmsRows("attn_norm", "input_layernorm", "post_attn_norm", "post_attention_layernorm", "mlp_norm", "pre_feedforward_layernorm", "post_mlp_norm", "post_feedforward_layernorm")
	modelPrefix  = []string{"model.", ""}
	lmHead       = []string{"lm_head"}
	oldRotary    = []string{"*.rotary_emb.inv_freq"}
	queryValue   = []string{"q_proj", "v_proj"}
)

// decoders are the causal language models.
var decoders = map[string]*family{
	"llama": {
		eps: 1e-6, activation: "silu", theta: 1e4,
		prefixes: modelPrefix, heads: lmHead, base: llamaBase, layers: "layers.N.",
		rows:    slices.Concat(llamaNorms, splitRows("attention_bias", "attention_bias"), gatedRows("mlp_bias")),
		ignored: oldRotary, targets: queryValue,
	},
	"mistral": {
		kvHeads: 8, eps: 1e-6, activation: "silu", theta: 1e4, special: slideAll(4096),
		prefixes: modelPrefix, heads: lmHead, base: llamaBase, layers: "layers.N.",
		rows:    slices.Concat(llamaNorms, splitRows("", ""), gatedRows("")),
		ignored: oldRotary, targets: queryValue,
	},
	"qwen2": {
		kvHeads: 32, eps: 1e-6, activation: "silu", theta: 1e4, special: slideLate,
		prefixes: modelPrefix, heads: lmHead, base: llamaBase, layers: "layers.N.",
		rows:    slices.Concat(llamaNorms, splitRows(always, ""), gatedRows("")),
		ignored: oldRotary, targets: queryValue,
	},
	"qwen3": {
		kvHeads: 32, headDim: 128, eps: 1e-6, activation: "silu", theta: 1e4, special: slideLate,
		prefixes: modelPrefix, heads: lmHead, base: llamaBase, layers: "layers.N.",
		rows:    slices.Concat(llamaNorms, headNorms, splitRows("attention_bias", "attention_bias"), gatedRows("")),
		ignored: oldRotary, targets: queryValue,
	},
	"smollm3": {
		kvHeads: 4, eps: 1e-6, activation: "silu", theta: 2e6, tied: true, special: smolLM3Fields,
		prefixes: modelPrefix, heads: lmHead, base: llamaBase, layers: "layers.N.",
		rows:    slices.Concat(llamaNorms, splitRows("attention_bias", "attention_bias"), gatedRows("mlp_bias")),
		ignored: oldRotary, targets: queryValue,
	},
	"granite": {
		eps: 1e-6, activation: "silu", theta: 1e4, special: graniteFields,
		prefixes: modelPrefix, heads: lmHead, base: llamaBase, layers: "layers.N.",
		rows:    slices.Concat(llamaNorms, splitRows("attention_bias", "attention_bias"), gatedRows("mlp_bias")),
		ignored: oldRotary, targets: queryValue,
	},
	"starcoder2": {
		kvHeads: 2, eps: 1e-5, activation: "gelu_pytorch_tanh", theta: 1e4, tied: true, attentionBias: true,
		normKind: torch.NormLayer, special: slideAll(0),
		own:      map[string]string{"layer_norm_eps": "norm_epsilon"},
		prefixes: modelPrefix, heads: lmHead, base: shiftedBase, layers: "layers.N.",
		rows: slices.Concat(shiftedNorms, splitRows("use_bias", "use_bias"), []moduleRow{
			{"up", "mlp.c_fc", "IH", "use_bias"},
			{"down", "mlp.c_proj", "HI", "use_bias"},
		}),
		ignored: oldRotary, targets: queryValue,
	},
	"stablelm": {
		kvHeads: 32, eps: 1e-5, activation: "silu", theta: 1e4, partial: 0.25, normKind: torch.NormLayer,
		special: func(f *fields, c *Config) {
			f.forbid("use_parallel_residual")
			f.forbid("qk_layernorm")
		},
		prefixes: modelPrefix, heads: lmHead, base: shiftedBase, layers: "layers.N.",
		rows:    slices.Concat(shiftedNorms, splitRows("use_qkv_bias", ""), gatedRows("")),
		ignored: oldRotary, targets: queryValue,
	},
	"phi": {
		eps: 1e-5, activation: "gelu_new", theta: 1e4, partial: 0.5, normKind: torch.NormLayer, residual: torch.ResidualSharedNorm,
		special: func(f *fields, c *Config) {
			f.forbid("qk_layernorm")
		},
		prefixes: modelPrefix, heads: lmHead, headBias: true, layers: "layers.N.",
		base: []moduleRow{{"embed", "embed_tokens", "VH", ""}, {"norm", "final_layernorm", "H", always}},
		rows: []moduleRow{
			{"attn_norm", "input_layernorm", "H", always},
			{"q", "self_attn.q_proj", "QH", always},
			{"k", "self_attn.k_proj", "KH", always},
			{"v", "self_attn.v_proj", "KH", always},
			{"o", "self_attn.dense", "HQ", always},
			{"up", "mlp.fc1", "IH", always},
			{"down", "mlp.fc2", "HI", always},
		},
		ignored: oldRotary, targets: []string{"q_proj", "v_proj", "fc1", "fc2"},
	},
	"phi3": {
		eps: 1e-5, activation: "silu", theta: 1e4, partial: 1, qkv: torch.QKVFused, special: slideAll(0),
		sizes:     map[string]int{"original_max_position_embeddings": 4096},
		ropeAlias: map[string]string{"su": "longrope", "yarn": "longrope"},
		prefixes:  modelPrefix, heads: lmHead, base: llamaBase, layers: "layers.N.",
		rows: append(slices.Clone(llamaNorms),
			moduleRow{"qkv", "self_attn.qkv_proj", "FH", ""},
			moduleRow{"o", "self_attn.o_proj", "HQ", ""},
			moduleRow{"gate_up", "mlp.gate_up_proj", "GH", ""},
			moduleRow{"down", "mlp.down_proj", "HI", ""}),
		ignored: oldRotary, targets: []string{"qkv_proj"},
	},
	"gpt_neox": {
		eps: 1e-5, activation: "gelu", theta: 1e4, partial: 0.25, attentionBias: true,
		normKind: torch.NormLayer, qkv: torch.QKVInterleaved, residual: torch.ResidualParallel,
		special: func(f *fields, c *Config) {
			if !value(f, "use_parallel_residual", true) {
				c.core.Residual = torch.ResidualSequential
			}
		},
		own:        map[string]string{"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
		plainHeads: true,
		prefixes:   []string{"gpt_neox.", ""}, heads: []string{"embed_out", "lm_head"}, layers: "layers.N.",
		base: []moduleRow{{"embed", "embed_in", "VH", ""}, {"norm", "final_layer_norm", "H", always}},
		rows: []moduleRow{
			{"attn_norm", "input_layernorm", "H", always},
			{"mlp_norm", "post_attention_layernorm", "H", always},
			{"qkv", "attention.query_key_value", "FH", "attention_bias"},
			{"o", "attention.dense", "HQ", "attention_bias"},
			{"up", "mlp.dense_h_to_4h", "IH", always},
			{"down", "mlp.dense_4h_to_h", "HI", always},
		},
		ignored: []string{"*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"},
		targets: []string{"query_key_value"},
	},
	"gpt2": {
		eps: 1e-5, activation: "gelu_new", partial: -1, tied: true,
		normKind: torch.NormLayer, qkv: torch.QKVFused,
		special: func(f *fields, c *Config) {
			f.forbid("scale_attn_by_inverse_layer_idx")
			f.forbid("add_cross_attention")
			if !value(f, "scale_attn_weights", true) {
				c.core.AttentionScale = 1
			}
		},
		own: map[string]string{
			"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
			"max_position_embeddings": "n_positions", "intermediate_size": "n_inner", "layer_norm_eps": "layer_norm_epsilon",
			"hidden_act": "activation_function",
		},
		plainHeads: true, fourfold: true,
		prefixes: []string{"transformer.", ""}, heads: lmHead, layers: "h.N.", conv1D: true,
		base: []moduleRow{{"embed", "wte", "VH", ""}, {"positions", "wpe", "PH", ""}, {"norm", "ln_f", "H", always}},
		rows: []moduleRow{
			{"attn_norm", "ln_1", "H", always},
			{"mlp_norm", "ln_2", "H", always},
			{"qkv", "attn.c_attn", "FH", always},
			{"o", "attn.c_proj", "HQ", always},
			{"up", "mlp.c_fc", "IH", always},
			{"down", "mlp.c_proj", "HI", always},
		},
		ignored: []string{"*.attn.bias", "*.attn.masked_bias"}, targets: []string{"c_attn"},
	},
	"gemma2": {
		kvHeads: 4, headDim: 256, eps: 1e-6, activation: "gelu_pytorch_tanh", theta: 1e4, tied: true,
		normKind: torch.NormRMSPlusOne, special: gemma2Fields,
		own:      map[string]string{"hidden_act": "hidden_activation"},
		prefixes: modelPrefix, heads: lmHead, base: llamaBase, layers: "layers.N.",
		rows:    slices.Concat(gemmaNorms, splitRows("attention_bias", "attention_bias"), gatedRows("")),
		ignored: oldRotary, targets: queryValue,
	},
	"gemma3_text": gemma3Family("", []string{"model.", ""}, []string{"lm_head"}, nil),
	// The larger models include a vision tower, which is ignored: text does not need it.
	"gemma3": gemma3Family("text_config",
		[]string{"model.language_model.", "language_model.model.", "language_model."},
		[]string{"lm_head", "language_model.lm_head"},
		[]string{"model.vision_tower.*", "vision_tower.*", "model.multi_modal_projector.*", "multi_modal_projector.*"}),
}

func gemma3Family(inner string, prefixes, heads, ignored []string) *family {
	return &family{
		inner: inner, kvHeads: 4, headDim: 256, eps: 1e-6, activation: "gelu_pytorch_tanh", theta: 1e6, tied: true,
		sizes: map[string]int{
			"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
			"num_attention_heads": 8, "max_position_embeddings": 131072,
		},
		normKind: torch.NormRMSPlusOne, special: gemma3Fields,
		own:      map[string]string{"hidden_act": "hidden_activation"},
		prefixes: prefixes, heads: heads, base: llamaBase, layers: "layers.N.",
		rows:    slices.Concat(gemmaNorms, headNorms, splitRows("attention_bias", "attention_bias"), gatedRows("")),
		ignored: append(slices.Clone(oldRotary), ignored...), targets: queryValue,
	}
}
