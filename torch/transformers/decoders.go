package transformers

import (
	"cmp"
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
	allNorms     = []moduleRow{{"q_norm", "self_attn.q_norm", "Q", ""}, {"k_norm", "self_attn.k_norm", "K", ""}}
	outputNorms  = rmsRows("post_attn_norm", "post_attention_layernorm", "post_mlp_norm", "post_feedforward_layernorm")
	// Of language models within models of texts and images.
	languagePrefixes = []string{"model.language_model.", "language_model.model.", "language_model."}
	languageHeads    = []string{"lm_head", "language_model.lm_head"}
	visionTower      = []string{"model.vision_tower.*", "vision_tower.*", "model.multi_modal_projector.*", "multi_modal_projector.*"}
	oldRotary        = []string{"*.rotary_emb.inv_freq"}
	queryValue       = []string{"q_proj", "v_proj"}
)

// decoder is a family with Llama's names where fam does not say otherwise.
func decoder(fam family, rows ...[]moduleRow) *family {
	if fam.base == nil {
		fam.base = llamaBase
	}
	if fam.prefixes == nil {
		fam.prefixes, fam.heads = modelPrefix, lmHead
	}
	fam.activation = cmp.Or(fam.activation, "silu")
	fam.theta = cmp.Or(fam.theta, 1e4)
	fam.layers, fam.rows, fam.targets = "layers.N.", slices.Concat(rows...), queryValue
	fam.ignored = append(slices.Clone(oldRotary), fam.ignored...)
	return &fam
}

// decoders are the causal language models.
var decoders = merged(mixtures, recurrent, gemma3n, gemma4, map[string]*family{
	"llama": decoder(family{
		eps: 1e-6,
	}, llamaNorms, splitRows("attention_bias", "attention_bias"), gatedRows("mlp_bias")),
	"mistral": decoder(family{
		kvHeads: 8, eps: 1e-6, special: slideAll(4096),
	}, llamaNorms, splitRows("", ""), gatedRows("")),
	"qwen2": decoder(family{
		kvHeads: 32, eps: 1e-6, special: slideLate,
	}, llamaNorms, splitRows(always, ""), gatedRows("")),
	"qwen3": decoder(family{
		kvHeads: 32, headDim: 128, eps: 1e-6, special: slideLate,
	}, llamaNorms, headNorms, splitRows("attention_bias", "attention_bias"), gatedRows("")),
	"smollm3": decoder(family{
		kvHeads: 4, eps: 1e-6, theta: 2e6, tied: true, special: smolLM3Fields,
	}, llamaNorms, splitRows("attention_bias", "attention_bias"), gatedRows("mlp_bias")),
	"granite": decoder(family{
		eps: 1e-6, special: graniteFields,
	}, llamaNorms, splitRows("attention_bias", "attention_bias"), gatedRows("mlp_bias")),
	"granitemoehybrid": decoder(family{
		eps: 1e-6, special: graniteHybridFields,
		own: map[string]string{"intermediate_size": "shared_intermediate_size"}, sizes: map[string]int{"intermediate_size": 1024},
		joined: graniteJoined, kinds: map[string][]moduleRow{sparse: graniteExperts},
	}, llamaNorms, splitRows("attention_bias", "attention_bias"), []moduleRow{
		{"gate_up", "shared_mlp.input_linear", "GH", ""},
		{"down", "shared_mlp.output_linear", "HI", ""},
	}),
	"olmo2": decoder(family{eps: 1e-5}, outputNorms, allNorms, splitRows("attention_bias", "attention_bias"), gatedRows("")),
	"olmo3": decoder(family{
		eps: 1e-5, theta: 5e5, special: olmo3Fields,
	}, outputNorms, allNorms, splitRows("attention_bias", "attention_bias"), gatedRows("")),
	"exaone4": decoder(family{
		kvHeads: 32, eps: 1e-5, special: exaone4Fields,
	}, outputNorms, headNorms, splitRows("", ""), gatedRows("")),
	"ministral": decoder(family{kvHeads: 8, eps: 1e-6, special: ministralFields}, llamaNorms, splitRows("", ""), gatedRows("")),
	"ministral3": decoder(family{
		kvHeads: 8, headDim: 128, eps: 1e-5, special: ministral3Fields,
	}, llamaNorms, splitRows("", ""), gatedRows("")),
	// Mistral Small 3.1 and Ministral 3 include a vision tower, which is ignored.
	"mistral3": decoder(family{
		inner: "text_config", kvHeads: 8, eps: 1e-6, tied: true, special: mistral3Fields,
		prefixes: languagePrefixes, heads: languageHeads, ignored: visionTower,
	}, llamaNorms, splitRows("", ""), gatedRows("")),
	"cohere2": decoder(family{
		eps: 1e-5, tied: true, normKind: torch.NormLayer, residual: torch.ResidualSharedNorm, ropePairs: true,
		special: cohere2Fields,
	}, rmsRows("attn_norm", "input_layernorm"), splitRows("attention_bias", "attention_bias"), gatedRows("")),
	"glm4": decoder(family{
		kvHeads: 2, headDim: 128, eps: 1.5625e-7, partial: 0.5, attentionBias: true, ropePairs: true,
	}, rmsRows("attn_norm", "input_layernorm", "post_attn_norm", "post_self_attn_layernorm", "mlp_norm",
		"post_attention_layernorm", "post_mlp_norm", "post_mlp_layernorm"),
		splitRows("attention_bias", ""), []moduleRow{
			{"gate_up", "mlp.gate_up_proj", "GH", ""},
			{"down", "mlp.down_proj", "HI", ""},
		}),
	"starcoder2": {
		kvHeads: 2, eps: 1e-5, theta: 1e4, activation: "gelu_pytorch_tanh", tied: true, attentionBias: true,
		normKind: torch.NormLayer, special: slideAll(0),
		own:      map[string]string{"layer_norm_eps": "norm_epsilon"},
		prefixes: modelPrefix, heads: lmHead, base: shiftedBase, layers: "layers.N.",
		rows: slices.Concat(shiftedNorms, splitRows("use_bias", "use_bias"), []moduleRow{
			{"up", "mlp.c_fc", "IH", "use_bias"},
			{"down", "mlp.c_proj", "HI", "use_bias"},
		}),
		ignored: oldRotary, targets: queryValue,
	},
	"stablelm": decoder(family{
		kvHeads: 32, eps: 1e-5, partial: 0.25, normKind: torch.NormLayer,
		special: func(f *fields, c *Config) {
			f.forbid("use_parallel_residual")
			f.forbid("qk_layernorm")
		},
		base: shiftedBase,
	}, shiftedNorms, splitRows("use_qkv_bias", ""), gatedRows("")),
	"phi": {
		eps: 1e-5, theta: 1e4, activation: "gelu_new", partial: 0.5, normKind: torch.NormLayer, residual: torch.ResidualSharedNorm,
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
		eps: 1e-5, theta: 1e4, activation: "silu", partial: 1, qkv: torch.QKVFused, special: slideAll(0),
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
		eps: 1e-5, theta: 1e4, activation: "gelu", partial: 0.25, attentionBias: true,
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
	"gemma2": decoder(family{
		kvHeads: 4, headDim: 256, eps: 1e-6, activation: "gelu_pytorch_tanh", tied: true,
		normKind: torch.NormRMSPlusOne, special: gemma2Fields,
		own: map[string]string{"hidden_act": "hidden_activation"},
	}, gemmaNorms, splitRows("attention_bias", "attention_bias"), gatedRows("")),
	"gemma3_text": gemma3Family("", []string{"model.", ""}, []string{"lm_head"}, nil),
	// The larger models include a vision tower, which is ignored: text does not need it.
	"gemma3": gemma3Family("text_config", languagePrefixes, languageHeads, visionTower),
})

func gemma3Family(inner string, prefixes, heads, ignored []string) *family {
	return decoder(family{
		inner: inner, kvHeads: 4, headDim: 256, eps: 1e-6, activation: "gelu_pytorch_tanh", theta: 1e6, tied: true,
		sizes: map[string]int{
			"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
			"num_attention_heads": 8, "max_position_embeddings": 131072,
		},
		normKind: torch.NormRMSPlusOne, special: gemma3Fields,
		own:      map[string]string{"hidden_act": "hidden_activation"},
		prefixes: prefixes, heads: heads, ignored: ignored,
	}, gemmaNorms, headNorms, splitRows("attention_bias", "attention_bias"), gatedRows(""))
}
