package transformers

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/rltrain/rltrain/torch"
)

// Kinds of Gemma 4's layers: with keys of their own, with values that are not their keys, and with inputs beside the hidden states.
const ownKeys, ownValues, withInput = "keys", "values", "inputs"

// gemma4Fields reads Gemma 4's fields, of models without experts.
func gemma4Fields(f *fields, c *Config) {
	f.forbid("enable_moe_block")
	for _, key := range []string{"num_experts", "top_k_experts", "moe_intermediate_size"} { // of such a block
		f.spelled(key)
	}
	if seen := text(f, "use_bidirectional_attention", "vision"); seen != "vision" { // which is of images alone
		f.fail("use_bidirectional_attention %.40q is not supported, want null or \"vision\"", seen)
	}
	c.core.EmbeddingScale, c.core.AttentionScale, c.core.ValueNorm = math.Sqrt(float64(c.HiddenSize)), 1, true
	c.core.LogitSoftcap = f.softcap("final_logit_softcapping", 0)
	if size := c.family.sizes["hidden_size_per_layer_input"]; size > 0 && !f.isNull("hidden_size_per_layer_input") && value(f, "hidden_size_per_layer_input", size) != 0 {
		c.inputSize = f.size("hidden_size_per_layer_input", size, maxWidth)
	}
	if rows := f.size("vocab_size_per_layer_input", 262144, maxVocab); f.err == nil && c.inputSize > 0 && rows != c.VocabSize {
		f.fail("vocab_size_per_layer_input %d is not supported, want vocab_size %d", rows, c.VocabSize)
	}
	sliding := c.slide(f, f.window(c.family.sizes["sliding_window"]), func(layer int) bool { return (layer+1)%6 != 0 })
	if last := len(sliding) - 1; f.err == nil && sliding[last] { // as in transformers
		sliding[last], c.core.Windows[last] = false, 0
	}
	if c.shapeLayers(f, sliding); f.err != nil {
		return
	}
	if !f.has("rope_parameters") {
		f.raw["rope_parameters"] = json.RawMessage(`{"full_attention":{"rope_type":"proportional","partial_rotary_factor":0.25}}`)
	}
	full, local := c.ropeInputs(f), c.ropeInputs(f)
	full.headDim, local.theta = c.core.Shapes[len(sliding)-1].HeadDim, 1e4
	c.ropesByKind(f, full, local, sliding)
}

// shapeLayers gives layers with full attention heads of their own, and the last layers the keys and values of an earlier one.
func (c *Config) shapeLayers(f *fields, sliding []bool) {
	same := value(f, "attention_k_eq_v", false)
	borrowing := value(f, "num_kv_shared_layers", 0)
	wide := value(f, "use_double_wide_mlp", false)
	if f.err == nil && (borrowing < 0 || borrowing >= len(sliding)) {
		f.fail("num_kv_shared_layers %d is not between 0 and %d, the layers below the last", borrowing, len(sliding)-1)
	}
	heads := c.fullHeads(f, same, sliding)
	if f.err != nil {
		return
	}
	first := len(sliding) - borrowing
	c.kinds = make([][]string, len(sliding))
	for i, slides := range sliding {
		shape := torch.LayerShape{KVHeads: heads[i].keys, HeadDim: heads[i].dim, IntermediateSize: c.IntermediateSize, KeysOf: i}
		if i >= first {
			for shape.KeysOf = first - 1; shape.KeysOf >= 0 && sliding[shape.KeysOf] != slides; {
				shape.KeysOf--
			}
			if shape.KeysOf < 0 {
				f.fail("layer %d has no earlier layer of its kind whose keys it could share", i)
				return
			}
			if wide {
				shape.IntermediateSize *= 2
			}
		} else if c.kinds[i] = append(c.kinds[i], ownKeys); !same || slides {
			c.kinds[i] = append(c.kinds[i], ownValues)
		}
		if c.inputSize > 0 {
			c.kinds[i] = append(c.kinds[i], withInput)
		}
		c.core.Shapes = append(c.core.Shapes, shape)
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

// gemma4Family is Gemma 4 with the defaults of sizes and the place of its tensors in fam.
func gemma4Family(fam family) *family {
	fam.kvHeads, fam.headDim, fam.eps, fam.activation, fam.theta, fam.tied = 4, 256, 1e-6, "gelu_pytorch_tanh", 1e6, true
	fam.own, fam.special = map[string]string{"hidden_act": "hidden_activation"}, gemma4Fields
	fam.base = append(slices.Clone(llamaBase),
		moduleRow{"inputs", "embed_tokens_per_layer", "VY", ""},
		moduleRow{"inputs_proj", "per_layer_model_projection", "YH", ""},
		moduleRow{"inputs_norm", "per_layer_projection_norm", "Z", ""})
	fam.joined = map[string][]string{"layer_scalar": {"layer_scalar.weight"}}
	attention := splitRows("attention_bias", "attention_bias")
	made := decoder(fam, gemmaNorms, []moduleRow{
		attention[0], headNorms[0], attention[3], {"scalar", "layer_scalar", "1", ""},
	}, gatedRows(""))
	made.kinds = map[string][]moduleRow{
		ownKeys:   {attention[1], headNorms[1]},
		ownValues: {attention[2]},
		withInput: {
			{"input_gate", "per_layer_input_gate", "ZH", ""},
			{"input_proj", "per_layer_projection", "HZ", ""},
			{"post_input_norm", "post_per_layer_input_norm", "H", ""},
		},
	}
	made.targets = []string{"q_proj", "v_proj"}
	return made
}

var (
	gemma4Sizes = map[string]int{
		"vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8,
		"max_position_embeddings": 131072, "sliding_window": 512, "hidden_size_per_layer_input": 256,
	}
	// Of images and sounds, which text does not need.
	towers = append(slices.Clone(visionTower), "model.audio_tower.*", "model.embed_vision.*", "model.embed_audio.*")
	gemma4 = map[string]*family{
		"gemma4_text": gemma4Family(family{sizes: gemma4Sizes}),
		"gemma4":      gemma4Family(family{sizes: gemma4Sizes, inner: "text_config", prefixes: languagePrefixes, heads: languageHeads, ignored: towers}),
	}
)
