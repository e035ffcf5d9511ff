package transformers

import (
	"maps"
	"slices"

	"github.com/rltrain/rltrain/torch"
)

// Kinds of layers: of attention, of gated delta rules, and of gated convolutions.
const fullAttention, linearAttention, convolution = "full_attention", "linear_attention", "conv"

// alternate takes the kinds of layers from layer_types, which are of attention or of another kind. Without the field, attends
// says which are of attention. The caller compares the number of types with that of layers.
func (c *Config) alternate(f *fields, other string, attends func(layer int) bool) []string {
	types := value(f, "layer_types", []string(nil))
	for i := 0; i < c.NumHiddenLayers && !f.has("layer_types"); i++ {
		kind := other
		if attends(i) {
			kind = fullAttention
		}
		types = append(types, kind)
	}
	for _, kind := range types {
		if c.family.kinds[kind] == nil {
			f.fail("layer_types has %.40q, want %q or %q", kind, fullAttention, other)
		}
		c.kinds = append(c.kinds, []string{kind})
	}
	return types
}

// delta are the heads of a gated delta rule.
type delta struct{ keys, keyDim, values, valueDim int }

// qwen35Fields reads the fields of Qwen 3.5's language models: three layers of four have gated delta rules.
func qwen35Fields(f *fields, c *Config) {
	c.taps = f.size("linear_conv_kernel_dim", 4, 1<<10)
	c.delta = delta{
		keys: f.size("linear_num_key_heads", 16, maxLayers), keyDim: f.size("linear_key_head_dim", 128, 1<<14),
		values: f.size("linear_num_value_heads", 32, maxLayers), valueDim: f.size("linear_value_head_dim", 128, 1<<14),
	}
	every := f.size("full_attention_interval", 4, maxLayers)
	if f.err != nil {
		return
	}
	types := c.alternate(f, linearAttention, func(layer int) bool { return (layer+1)%every == 0 })
	switch {
	case f.err != nil:
	case len(types) != c.NumHiddenLayers:
		f.fail("layer_types has %d entries, want one for each of %d layers", len(types), c.NumHiddenLayers)
	case c.delta.values%c.delta.keys != 0:
		f.fail("linear_num_value_heads %d is not a multiple of linear_num_key_heads %d", c.delta.values, c.delta.keys)
	case c.taps < 2:
		f.fail("linear_conv_kernel_dim %d is below 2", c.taps)
	case c.core.Activation != torch.SiLU:
		f.fail("hidden_act %.40q is not supported, want \"silu\"", c.HiddenAct)
	case !value(f, "attn_output_gate", true):
		f.fail("attn_output_gate false is not supported")
	case activations[text(f, "output_gate_type", "swish")] != torch.SiLU:
		f.fail("output_gate_type %.40q is not supported, want \"swish\"", text(f, "output_gate_type", ""))
	}
	// Of the part that predicts several tokens, which is not read.
	for _, key := range []string{"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype"} {
		f.spelled(key)
	}
	c.core.DeltaKeyHeads, c.core.GatedQueries = c.delta.keys, true
	rope := f.ropeObject()
	for _, key := range []string{"mrope_section", "mrope_interleaved"} { // of images
		delete(rope.raw, key)
	}
	c.addRope(f, rope, c.ropeInputs(f))
}

// qwen35MoeFields reads those of models whose layers all have experts.
func qwen35MoeFields(f *fields, c *Config) {
	qwen35Fields(f, c)
	c.NumExperts = f.size("num_experts", 256, maxExperts)
	c.mix(f, 8, f.size("moe_intermediate_size", 512, 1<<20), true, everyLayer)
	c.core.SharedSize = c.IntermediateSize
}

// qwen35Moe is a family of qwen35 with experts.
func qwen35Moe(fam family) *family {
	fam.own, fam.sizes = map[string]string{"intermediate_size": "shared_expert_intermediate_size"}, map[string]int{"intermediate_size": 512}
	made := qwen35(fam)
	made.kvHeads, made.special = 2, qwen35MoeFields
	made.rows = llamaNorms
	made.joined["gate_up_proj"] = []string{"E.gate_proj.weight", "E.up_proj.weight"}
	made.joined["down_proj"] = []string{"E.down_proj.weight"}
	made.kinds[sparse] = slices.Concat(qwenExperts, qwenShared)
	return made
}

func qwen35(fam family) *family {
	fam.kvHeads, fam.headDim, fam.eps, fam.partial = 4, 256, 1e-6, 0.25
	fam.normKind, fam.special = torch.NormRMSPlusOne, qwen35Fields
	fam.joined = map[string][]string{"A_log": {"a_log.weight"}, "dt_bias": {"dt_bias.weight"}}
	made := decoder(fam, llamaNorms, gatedRows(""))
	attention := slices.Concat(headNorms, splitRows("attention_bias", "attention_bias"))
	for i := range attention {
		if attention[i].layer == "q" {
			attention[i].shape = "JH"
		}
	}
	made.kinds = map[string][]moduleRow{
		fullAttention: attention,
		linearAttention: {
			{"qkv", "linear_attn.in_proj_qkv", "UH", ""},
			{"z", "linear_attn.in_proj_z", "WH", ""},
			{"rate", "linear_attn.in_proj_b", "AH", ""},
			{"decay", "linear_attn.in_proj_a", "AH", ""},
			{"conv", "linear_attn.conv1d", "UL", ""},
			{"a_log", "linear_attn.a_log", "A", ""},
			{"dt_bias", "linear_attn.dt_bias", "A", ""},
			{"delta_norm", "linear_attn.norm", "O", ""},
			{"o", "linear_attn.out_proj", "HW", ""},
		},
	}
	return made
}

// ofImages are Qwen 3.5's models with their vision towers, which are ignored.
var ofImages = family{
	inner: "text_config", prefixes: languagePrefixes, heads: languageHeads,
	ignored: append(slices.Clone(visionTower), "model.visual.*", "mtp.*"),
}

// lfm2Kinds are LFM2's layers of attention and of gated convolutions.
var lfm2Kinds = map[string][]moduleRow{
	fullAttention: {
		{"q", "self_attn.q_proj", "QH", ""},
		{"k", "self_attn.k_proj", "KH", ""},
		{"v", "self_attn.v_proj", "KH", ""},
		{"q_norm", "self_attn.q_layernorm", "D", ""},
		{"k_norm", "self_attn.k_layernorm", "D", ""},
		{"o", "self_attn.out_proj", "HQ", ""},
	},
	convolution: {
		{"qkv", "conv.in_proj", "BH", "conv_bias"},
		{"conv", "conv.conv", "HL", "conv_bias"},
		{"o", "conv.out_proj", "HH", "conv_bias"},
	},
}

var lfm2MLP = []moduleRow{
	{"gate", "feed_forward.w1", "IH", ""},
	{"up", "feed_forward.w3", "IH", ""},
	{"down", "feed_forward.w2", "HI", ""},
}

// lfm2With is LFM2 with further rows and kinds.
func lfm2With(special func(*fields, *Config), rows []moduleRow, kinds map[string][]moduleRow) *family {
	fam := decoder(family{
		eps: 1e-5, theta: 1e6, tied: true, special: special, kvHeads: 8,
		own:    map[string]string{"rms_norm_eps": "norm_eps"},
		base:   []moduleRow{{"embed", "embed_tokens", "VH", ""}, {"norm", "embedding_norm", "H", ""}},
		joined: map[string][]string{"expert_bias": {"expert_bias.weight"}},
	}, rmsRows("attn_norm", "operator_norm", "mlp_norm", "ffn_norm"), rows)
	fam.kinds = maps.Clone(lfm2Kinds)
	maps.Copy(fam.kinds, kinds)
	return fam
}

func lfm2() *family { return lfm2With(lfm2Fields, lfm2MLP, nil) }

// biased are layers whose experts are chosen with a bias.
const biased = "biased"

func lfm2Moe() *family {
	return lfm2With(lfm2MoeFields, nil, map[string][]moduleRow{
		dense:  lfm2MLP,
		sparse: expertRows("feed_forward.gate", "feed_forward.experts.E.w1", "feed_forward.experts.E.w3", "feed_forward.experts.E.w2"),
		biased: {{"router_bias", "feed_forward.expert_bias", "X", ""}},
	})
}

// recurrent are the causal language models with states beside the keys and values.
var recurrent = map[string]*family{
	"qwen3_5_text":     qwen35(family{ignored: []string{"mtp.*"}}),
	"qwen3_5":          qwen35(ofImages),
	"qwen3_5_moe_text": qwen35Moe(family{ignored: []string{"mtp.*"}}),
	"qwen3_5_moe":      qwen35Moe(ofImages),
	"lfm2":             lfm2(),
	"lfm2_moe":         lfm2Moe(),
}
