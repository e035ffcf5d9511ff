package transformers

import "slices"

// The kinds of layers whose MLP is one of all tokens, or of experts.
const dense, sparse = "dense", "experts"

// expertRows are the modules of layers with experts: their router, and gate, up and down of each.
func expertRows(router, gate, up, down string) []moduleRow {
	return []moduleRow{
		{"router", router, "XH", ""},
		{"experts.E.gate", gate, "MH", ""},
		{"experts.E.up", up, "MH", ""},
		{"experts.E.down", down, "HM", ""},
	}
}

// qwenExperts are the modules of Qwen's layers with experts and those that imitate them.
var qwenExperts = expertRows("mlp.gate", "mlp.experts.E.gate_proj", "mlp.experts.E.up_proj", "mlp.experts.E.down_proj")

// qwenShared are the modules of the MLP that all tokens pass beside Qwen's experts.
var qwenShared = []moduleRow{
	{"shared_gate", "mlp.shared_expert_gate", "1H", ""},
	{"gate", "mlp.shared_expert.gate_proj", "SH", ""},
	{"up", "mlp.shared_expert.up_proj", "SH", ""},
	{"down", "mlp.shared_expert.down_proj", "HS", ""},
}

// graniteExperts are Granite's, whose files have those of all experts in two tensors, graniteJoined.
var (
	graniteExperts = expertRows("block_sparse_moe.router.layer", "block_sparse_moe.experts.E.gate", "block_sparse_moe.experts.E.up", "block_sparse_moe.experts.E.down")
	graniteJoined  = map[string][]string{
		"input_linear.weight":  {"experts.E.gate.weight", "experts.E.up.weight"},
		"output_linear.weight": {"experts.E.down.weight"},
	}
)

// mix reads how many experts a token passes, of the layers that has says have some.
func (c *Config) mix(f *fields, perToken, width int, normed bool, has func(layer int) bool) {
	c.core.Experts, c.core.ExpertSize, c.core.RouterNorm = c.NumExperts, width, normed
	c.core.ExpertsPerToken = f.size("num_experts_per_tok", perToken, max(c.NumExperts, 1))
	if c.kinds == nil {
		c.kinds = make([][]string, c.NumHiddenLayers)
	}
	for i := range c.kinds {
		if has(i) {
			c.kinds[i] = append(c.kinds[i], sparse)
		} else {
			c.kinds[i] = append(c.kinds[i], dense)
		}
	}
}

func everyLayer(int) bool { return true }

const maxExperts = 1 << 12

// mixtralFields reads Mixtral's fields, whose layers all have experts.
func mixtralFields(f *fields, c *Config) {
	slideAll(0)(f, c)
	c.NumExperts = f.size("num_local_experts", 8, maxExperts)
	c.mix(f, 2, c.IntermediateSize, true, everyLayer)
}

// olmoeFields reads OLMoE's fields.
func olmoeFields(f *fields, c *Config) {
	f.noLayerTypes()
	if f.has("clip_qkv") {
		f.fail("clip_qkv is not supported")
	}
	c.NumExperts = f.size("num_experts", 64, maxExperts)
	c.mix(f, 8, c.IntermediateSize, value(f, "norm_topk_prob", false), everyLayer)
}

// graniteMoeFields reads Granite's fields, of models with experts.
func graniteMoeFields(f *fields, c *Config) {
	graniteFields(f, c)
	c.NumExperts = f.size("num_local_experts", 8, maxExperts)
	c.mix(f, 2, c.IntermediateSize, true, everyLayer)
}

// sparseQwen reads which layers of Qwen's models have experts.
func (c *Config) sparseQwen(f *fields, experts, perToken, width int) {
	c.NumExperts = f.size("num_experts", value(f, "num_local_experts", experts), maxExperts)
	step := f.size("decoder_sparse_step", 1, maxLayers)
	only := value(f, "mlp_only_layers", []int(nil))
	if f.err != nil {
		return
	}
	c.mix(f, perToken, f.size("moe_intermediate_size", width, 1<<20), value(f, "norm_topk_prob", false),
		func(layer int) bool { return (layer+1)%step == 0 && !slices.Contains(only, layer) })
}

// qwen3MoeFields reads Qwen3's fields, of models with experts. use_sliding_window gives all layers a window.
func qwen3MoeFields(f *fields, c *Config) {
	if value(f, "use_sliding_window", false) {
		slideAll(4096)(f, c)
	}
	c.sparseQwen(f, 128, 8, 768)
}

// qwen2MoeFields reads the fields of Qwen1.5's and Qwen2's models with experts. Every second layer slides, up to
// max_window_layers, if use_sliding_window is set.
func qwen2MoeFields(f *fields, c *Config) {
	w := 0
	if value(f, "use_sliding_window", false) {
		w = f.window(4096)
	}
	until := value(f, "max_window_layers", 28)
	c.slide(f, w, func(layer int) bool { return w > 0 && layer%2 == 0 && layer < until })
	c.sparseQwen(f, 60, 4, 1408)
	c.core.SharedSize = f.size("shared_expert_intermediate_size", 5632, 1<<20)
	if !value(f, "qkv_bias", true) {
		f.fail("qkv_bias false is not supported")
	}
}

// gptOSSFields reads gpt-oss's fields. Layers slide in turn unless layer_types decides.
func gptOSSFields(f *fields, c *Config) {
	c.slide(f, f.window(128), func(layer int) bool { return layer%2 == 0 })
	if !f.has("rope_parameters") && !f.has("rope_scaling") {
		f.fail("rope_parameters is missing")
	}
	c.NumExperts = f.size("num_local_experts", value(f, "num_experts", 128), maxExperts)
	c.mix(f, value(f, "experts_per_token", 4), c.IntermediateSize, true, everyLayer)
	c.core.WovenExperts = true
	c.core.ExpertLimit, c.core.ExpertAlpha = f.positive("swiglu_limit", 7), f.positive("swiglu_alpha", 1.702)
}

// mixture is a decoder, some or all of whose layers have experts.
func mixture(fam family, experts []moduleRow, rows ...[]moduleRow) *family {
	made := decoder(fam, rows...)
	made.kinds = map[string][]moduleRow{sparse: experts, dense: gatedRows("")}
	return made
}

// mixtures are the causal language models with experts.
var mixtures = map[string]*family{
	"mixtral": mixture(family{experts: "mlp.experts", kvHeads: 8, eps: 1e-5, theta: 1e6, special: mixtralFields},
		expertRows("block_sparse_moe.gate", "block_sparse_moe.experts.E.w1", "block_sparse_moe.experts.E.w3", "block_sparse_moe.experts.E.w2"),
		llamaNorms, splitRows("", "")),
	"olmoe":     mixture(family{eps: 1e-5, special: olmoeFields}, qwenExperts, llamaNorms, allNorms, splitRows("attention_bias", "attention_bias")),
	"qwen3_moe": mixture(family{kvHeads: 4, eps: 1e-6, special: qwen3MoeFields}, qwenExperts, llamaNorms, headNorms, splitRows("attention_bias", "attention_bias")),
	"qwen2_moe": mixture(family{kvHeads: 16, eps: 1e-6, special: qwen2MoeFields},
		slices.Concat(qwenExperts, qwenShared), llamaNorms, splitRows(always, "")),
	"gpt_oss": mixture(family{
		kvHeads: 8, headDim: 64, eps: 1e-5, theta: 150_000, attentionBias: true, special: gptOSSFields, woven: true,
		joined: map[string][]string{
			"gate_up_proj": {"E.gate.weight", "E.up.weight"}, "gate_up_proj_bias": {"E.gate.bias", "E.up.bias"},
			"down_proj": {"E.down.weight"}, "down_proj_bias": {"E.down.bias"}, "sinks": {"sinks.weight"},
		},
	}, []moduleRow{
		{"router", "mlp.router", "XH", always},
		{"experts.E.gate", "mlp.experts.E.gate", "MH", always},
		{"experts.E.up", "mlp.experts.E.up", "MH", always},
		{"experts.E.down", "mlp.experts.E.down", "HM", always},
	}, llamaNorms, splitRows("attention_bias", "attention_bias"), []moduleRow{{"sinks", "self_attn.sinks", "N", ""}}),
	"granitemoe": mixture(family{eps: 1e-6, special: graniteMoeFields, joined: graniteJoined}, graniteExperts, llamaNorms, splitRows("attention_bias", "attention_bias")),
}
