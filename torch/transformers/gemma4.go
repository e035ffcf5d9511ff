package transformers

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/rltrain/rltrain/torch"
)

// Kinds of the layers of Gemma 3n and 4: with keys of their own, with values that are not their keys, and with inputs beside the
// hidden states.
const ownKeys, ownValues, withInput = "keys", "values", "inputs"

// gemma4Fields reads Gemma 4's fields.
func gemma4Fields(f *fields, c *Config) {
	if seen := text(f, "use_bidirectional_attention", "vision"); seen != "vision" { // which is of images alone
		f.fail("use_bidirectional_attention %.40q is not supported, want null or \"vision\"", seen)
	}
	c.core.LogitSoftcap = f.softcap("final_logit_softcapping", 0)
	if size := c.family.sizes["hidden_size_per_layer_input"]; size > 0 && !f.isNull("hidden_size_per_layer_input") && value(f, "hidden_size_per_layer_input", size) != 0 {
		c.inputSize = f.size("hidden_size_per_layer_input", size, maxWidth)
	}
	c.inputRows = f.size("vocab_size_per_layer_input", 262144, maxVocab)
	if f.err == nil && c.inputSize > 0 && c.inputRows != c.VocabSize {
		f.fail("vocab_size_per_layer_input %d is not supported, want vocab_size %d", c.inputRows, c.VocabSize)
	}
	sliding := c.slide(f, f.window(c.family.sizes["sliding_window"]), func(layer int) bool { return (layer+1)%6 != 0 })
	if last := len(sliding) - 1; f.err == nil && sliding[last] { // as in transformers
		sliding[last], c.core.Windows[last] = false, 0
	}
	same, wide := value(f, "attention_k_eq_v", false), value(f, "use_double_wide_mlp", false)
	heads := c.fullHeads(f, same, sliding)
	c.shapeLayers(f, sliding, value(f, "num_kv_shared_layers", 0), func(layer int, borrows bool) (torch.LayerShape, bool) {
		shape := torch.LayerShape{KVHeads: heads[layer].keys, HeadDim: heads[layer].dim, IntermediateSize: c.IntermediateSize}
		if wide && borrows {
			shape.IntermediateSize *= 2
		}
		return shape, !same || sliding[layer]
	})
	for _, key := range []string{"num_experts", "num_experts_per_tok", "moe_intermediate_size"} {
		f.spelled(key) // read or not, they belong to the model_type
	}
	if value(f, "enable_moe_block", false) {
		c.NumExperts, c.core.SharedSize = f.size("num_experts", required, maxExperts), c.IntermediateSize
		c.mix(f, required, f.size("moe_intermediate_size", required, 1<<20), true, everyLayer)
	}
	if f.err != nil {
		return
	}
	if !f.has("rope_parameters") {
		f.raw["rope_parameters"] = json.RawMessage(`{"full_attention":{"rope_type":"proportional","partial_rotary_factor":0.25}}`)
	}
	full, local := c.ropeInputs(f), c.ropeInputs(f)
	full.headDim, local.theta = c.core.Shapes[len(sliding)-1].HeadDim, 1e4
	c.ropesByKind(f, full, local, sliding)
}

// shapeLayers gives layers the shapes that shape returns, with whether they make values, and the last ones the keys and values of an
// earlier layer. Files may have those that they do without.
func (c *Config) shapeLayers(f *fields, sliding []bool, borrowing int, shape func(layer int, borrows bool) (torch.LayerShape, bool)) {
	c.core.EmbeddingScale, c.core.AttentionScale, c.core.ValueNorm = math.Sqrt(float64(c.HiddenSize)), 1, true
	if f.err == nil && (borrowing < 0 || borrowing >= len(sliding)) {
		f.fail("num_kv_shared_layers %d is not between 0 and %d, the layers below the last", borrowing, len(sliding)-1)
	}
	if f.err != nil {
		return
	}
	first := len(sliding) - borrowing
	c.kinds = make([][]string, len(sliding))
	for i, slides := range sliding {
		own, values := shape(i, i >= first)
		own.KeysOf = i
		if i >= first {
			for own.KeysOf = first - 1; own.KeysOf >= 0 && sliding[own.KeysOf] != slides; {
				own.KeysOf--
			}
			if own.KeysOf < 0 {
				f.fail("layer %d has no earlier layer of its kind whose keys it could share", i)
				return
			}
			for _, unused := range []string{"k_proj", "v_proj", "k_norm", "v_norm"} {
				c.unused = append(c.unused, fmt.Sprintf("*layers.%d.self_attn.%s.weight", i, unused), fmt.Sprintf("*layers.%d.self_attn.%s.bias", i, unused))
			}
		} else if c.kinds[i] = append(c.kinds[i], ownKeys); values {
			c.kinds[i] = append(c.kinds[i], ownValues)
		}
		if c.inputSize > 0 {
			c.kinds[i] = append(c.kinds[i], withInput)
		}
		c.core.Shapes = append(c.core.Shapes, own)
	}
}

// headSizes are a layer's number of key heads and the width of its heads.
type headSizes struct{ keys, dim int }

// fullHeads reads the heads of layers, whose sizes per_layer_config names, or else fields for layers with full attention.
func (c *Config) fullHeads(f *fields, same bool, sliding []bool) []headSizes {
	plain := headSizes{c.NumKeyValueHeads, c.HeadDim}
	heads, full := slices.Repeat([]headSizes{plain}, len(sliding)), plain
	own := f.object("per_layer_config")
	full.dim = f.size("global_head_dim", 512, 1<<14)
	if keys := "num_global_key_value_heads"; f.has(keys) && same {
		full.keys = f.size(keys, 1, maxLayers)
	}
	for i, slides := range sliding {
		switch key := strconv.Itoa(i); {
		case own.raw == nil && !slides:
			heads[i] = full
		case own.has(key):
			layer := own.object(key)
			heads[i] = headSizes{layer.size("num_key_value_heads", plain.keys, maxLayers), layer.size("head_dim", plain.dim, 1<<14)}
			for _, field := range slices.Sorted(maps.Keys(layer.raw)) {
				if field != "head_dim" && field != "num_key_value_heads" {
					layer.fail("%s is not supported, want head_dim and num_key_value_heads", field)
				}
			}
			f.err = firstError(f, own, layer)
		}
		if f.err == nil && c.NumAttentionHeads%heads[i].keys != 0 {
			f.fail("layer %d: num_attention_heads %d is not a multiple of %d key heads", i, c.NumAttentionHeads, heads[i].keys)
		}
		if last := slices.Index(sliding, slides); f.err == nil && heads[i] != heads[last] {
			f.fail("layers %d and %d are of one kind, but have heads of other sizes", last, i)
		}
	}
	return heads
}

// laterGemma is Gemma 3n or 4 with the defaults of sizes, the place of its tensors, and what each has beside the other in fam and rows.
func laterGemma(fam family, rows ...moduleRow) *family {
	fam.headDim, fam.eps, fam.activation, fam.theta, fam.tied = 256, 1e-6, "gelu_pytorch_tanh", 1e6, true
	fam.own = map[string]string{"hidden_act": "hidden_activation", "num_experts_per_tok": "top_k_experts"}
	fam.base = slices.Concat(llamaBase, fam.base, []moduleRow{
		{"inputs", "embed_tokens_per_layer", "rY", ""},
		{"inputs_proj", "per_layer_model_projection", "YH", ""},
		{"inputs_norm", "per_layer_projection_norm", "Z", ""},
	})
	attention := splitRows("attention_bias", "attention_bias")
	made := decoder(fam, gemmaNorms, []moduleRow{attention[0], headNorms[0], attention[3]}, rows, gatedRows(""))
	made.kinds = map[string][]moduleRow{
		ownKeys:   {attention[1], headNorms[1]},
		ownValues: {attention[2]},
		withInput: {
			{"input_gate", "per_layer_input_gate", "ZH", ""},
			{"input_proj", "per_layer_projection", "HZ", ""},
			{"post_input_norm", "post_per_layer_input_norm", "H", ""},
		},
	}
	return made
}

func gemma4Family(fam family) *family {
	fam.kvHeads, fam.special = 4, gemma4Fields
	fam.joined = map[string][]string{
		"layer_scalar": {"layer_scalar.weight"}, "router.scale": {"router.scale.weight"}, "router.per_expert_scale": {"router.per_expert_scale.weight"},
		"experts.gate_up_proj": {"experts.E.gate.weight", "experts.E.up.weight"}, "experts.down_proj": {"experts.E.down.weight"},
	}
	made := laterGemma(fam, moduleRow{"scalar", "layer_scalar", "1", ""})
	made.kinds[sparse] = append(expertRows("router.proj", "experts.E.gate", "experts.E.up", "experts.E.down"),
		moduleRow{"router_norm", "router.scale", "H", ""},
		moduleRow{"expert_scale", "router.per_expert_scale", "X", ""},
		moduleRow{"experts_norm", "pre_feedforward_layernorm_2", "H", ""},
		moduleRow{"post_experts_norm", "post_feedforward_layernorm_2", "H", ""},
		moduleRow{"post_shared_norm", "post_feedforward_layernorm_1", "H", ""})
	return made
}

var (
	gemma4Sizes = map[string]int{
		"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
		"max_position_embeddings": 131072, "sliding_window": 512, "hidden_size_per_layer_input": 256,
	}
	// Of models whose images and sounds pass no towers.
	unifiedSizes = map[string]int{
		"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
		"max_position_embeddings": 262144, "sliding_window": 1024,
	}
	// Of images and sounds, which text does not need.
	towers = append(slices.Clone(visionTower), "model.audio_tower.*", "model.embed_vision.*", "model.embed_audio.*")
	gemma4 = map[string]*family{
		"gemma4_text":         gemma4Family(family{sizes: gemma4Sizes}),
		"gemma4":              gemma4Family(family{sizes: gemma4Sizes, inner: "text_config", prefixes: languagePrefixes, heads: languageHeads, ignored: towers}),
		"gemma4_unified_text": gemma4Family(family{sizes: unifiedSizes}),
		"gemma4_unified":      gemma4Family(family{sizes: unifiedSizes, inner: "text_config", prefixes: languagePrefixes, heads: languageHeads, ignored: towers}),
	}
)
