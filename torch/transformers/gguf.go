package transformers

import (
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/gguf/convert"
)

// GGUFOptions describe the GGUF file to write.
type GGUFOptions struct {
	Type   gguf.Type // of matrices: F32, F16, BF16, Q8_0, Q4_0, Q4_1 or Q4_K
	Name   string    // general.name, a display name
	Change map[string]func(weight []float32)
	Set    []gguf.Pair // metadata of the tokenizer that replaces the folder's, by key
}

// fileTypes are llama.cpp's numbers for the type of most matrices in a file.
var fileTypes = map[gguf.Type]uint32{gguf.F32: 0, gguf.F16: 1, gguf.Q4_0: 2, gguf.Q4_1: 3, gguf.Q8_0: 7, gguf.Q4_K: 14, gguf.BF16: 32}

// SaveGGUF writes the model to one GGUF file for llama.cpp: weights, configuration, tokenizer and chat template.
// Vectors are F32. With 4-bit types, the embedding and the output layer are Q8_0; a matrix whose rows do not fit a
// type's blocks gets the next larger type that fits. What GGUF cannot represent is an error that names it.
func (c *Causal) SaveGGUF(path string, o GGUFOptions) error {
	if _, ok := fileTypes[o.Type]; !ok {
		return fmt.Errorf("transformers: type %s is not one that GGUF files are written with", o.Type)
	}
	e, err := convert.Export(c.Config.ModelType)
	if err != nil {
		return fmt.Errorf("transformers: %s: %w", c.Dir, err)
	}
	metadata, factors, err := c.Config.ggufPairs(e)
	if err != nil {
		return fmt.Errorf("transformers: %s: %w", c.Dir, err)
	}
	metadata = append([]gguf.Pair{
		{Key: "general.architecture", Value: e.Name}, {Key: "general.type", Value: "model"}, {Key: "general.name", Value: o.Name},
		{Key: "general.file_type", Value: fileTypes[o.Type]}, {Key: "general.quantization_version", Value: uint32(2)},
	}, metadata...)
	words, err := convert.TokenizerPairs(c.Dir, c.Config.VocabSize)
	if err != nil {
		return err
	}
	for _, pair := range o.Set {
		words = append(slices.DeleteFunc(words, func(old gguf.Pair) bool { return old.Key == pair.Key }), pair)
	}
	return c.Export(o.Change, func(tensors []ExportedTensor) error {
		sources, err := c.Config.ggufSources(e, tensors, o.Type)
		if err != nil {
			return fmt.Errorf("transformers: %s: %w", c.Dir, err)
		}
		return gguf.Write(path, append(metadata, words...), append(factors, sources...))
	})
}

// ggufSources are the model's tensors in GGUF's form.
func (c *Config) ggufSources(e convert.Exported, tensors []ExportedTensor, kind gguf.Type) ([]gguf.Source, error) {
	var sources []gguf.Source
	for _, t := range tensors {
		name, heads, shift, err := e.Tensor(t.Spec.Candidates[0], c.NumAttentionHeads, c.kvHeads())
		if err != nil {
			return nil, err
		}
		kind := matrixType(kind, t.Spec)
		sources = append(sources, gguf.Source{Name: name, Type: kind, Shape: t.Spec.Shape, Data: func() ([]byte, error) {
			values, err := t.Values()
			if err != nil {
				return nil, err
			}
			if heads > 0 {
				convert.Interleave(values, heads, len(values)/int(t.Spec.Shape[0]))
			}
			if shift != 0 {
				for i := range values {
					values[i] += shift
				}
			}
			return kind.Quantize(values)
		}})
	}
	return sources, nil
}

// matrixType is the type of a tensor in a file whose matrices are of type kind.
func matrixType(kind gguf.Type, spec TensorSpec) gguf.Type {
	if len(spec.Shape) != 2 {
		return gguf.F32
	}
	if four := kind == gguf.Q4_0 || kind == gguf.Q4_1 || kind == gguf.Q4_K; four && (spec.Name == "embed.weight" || spec.Name == "head.weight") {
		kind = gguf.Q8_0
	}
	for _, larger := range []gguf.Type{kind, gguf.Q5_0, gguf.F16} {
		if values, _ := larger.Block(); spec.Shape[1]%int64(values) == 0 {
			return larger
		}
	}
	return gguf.F16
}

// ggufPairs returns the metadata of the shape, and the tensors that belong to it.
func (c *Config) ggufPairs(e convert.Exported) (pairs []gguf.Pair, factors []gguf.Source, err error) {
	core := c.Core()
	own := func(key string, value any) { pairs = append(pairs, gguf.Pair{Key: e.Name + "." + key, Value: value}) }
	own("context_length", uint32(c.MaxPositionEmbeddings))
	own("embedding_length", uint32(c.HiddenSize))
	own("block_count", uint32(c.NumHiddenLayers))
	own("feed_forward_length", uint32(c.IntermediateSize))
	own("attention.head_count", uint32(c.NumAttentionHeads))
	own("attention.head_count_kv", uint32(c.kvHeads()))
	own("attention.key_length", uint32(c.headDim()))
	own("attention.value_length", uint32(c.headDim()))
	own("attention.layer_norm_rms_epsilon", float32(c.LayerNormEps))
	own("vocab_size", uint32(c.VocabSize))
	own("rope.dimension_count", uint32(core.RotaryDim))
	if core.AttentionSoftcap > 0 {
		own("attn_logit_softcapping", float32(core.AttentionSoftcap))
	}
	if core.LogitSoftcap > 0 {
		own("final_logit_softcapping", float32(core.LogitSoftcap))
	}
	want := torch.SiLU
	if e.Name == "gemma2" || e.Name == "gemma3" {
		want = torch.GELUTanh
	}
	if core.Activation != want {
		return nil, nil, fmt.Errorf("hidden_act %q has no form in GGUF's architecture %s", c.HiddenAct, e.Name)
	}
	// llama.cpp derives the scale of scores from the head size, and in the largest Gemmas from the hidden size.
	scale := 1 / math.Sqrt(float64(c.headDim()))
	if e.Name == "gemma2" && c.NumHiddenLayers == 46 || e.Name == "gemma3" && c.NumHiddenLayers == 62 {
		scale = 1 / math.Sqrt(float64(c.HiddenSize/c.NumAttentionHeads))
	}
	if math.Abs(core.AttentionScale-scale) > 1e-6 {
		return nil, nil, fmt.Errorf("attention scale %g has no place in GGUF, which implies %g (query_pre_attn_scalar)", core.AttentionScale, scale)
	}
	if err := c.ggufWindow(e, own); err != nil {
		return nil, nil, err
	}
	factors, err = c.ggufRope(e, own)
	return pairs, factors, err
}

// ggufWindow writes the sliding window, if the layers with a window are those that llama.cpp assumes.
func (c *Config) ggufWindow(e convert.Exported, own func(string, any)) error {
	windows := c.Core().Windows
	slides := map[string]func(layer int) bool{
		"gemma2": func(layer int) bool { return layer%2 == 0 },
		"gemma3": func(layer int) bool { return (layer+1)%6 != 0 },
		"phi3":   func(int) bool { return true },
		"llama":  func(int) bool { return true }, // Mistral's: llama.cpp attends to all
	}[e.Name]
	if len(windows) == 0 {
		return nil
	}
	if slides == nil {
		return fmt.Errorf("sliding_window has no form in GGUF's architecture %s", e.Name)
	}
	window := slices.Max(windows)
	for layer, w := range windows {
		if (w > 0) != slides(layer) || w > 0 && w != window {
			return fmt.Errorf("the layers that slide are not those of GGUF's architecture %s (layer %d)", e.Name, layer)
		}
	}
	if e.Name != "llama" {
		own("attention.sliding_window", uint32(window))
	}
	return nil
}

// ggufRope writes the rotary embedding; divisors of frequencies are a tensor.
func (c *Config) ggufRope(e convert.Exported, own func(string, any)) ([]gguf.Source, error) {
	source, table := c.ropes[0], c.Core().Ropes[0]
	own("rope.freq_base", float32(source.theta))
	if e.Name == "gemma3" && len(c.ropes) > 1 {
		own("rope.freq_base_swa", float32(c.ropes[1].theta))
	}
	divisors := func(frequencies []float64) []float32 {
		plain := plainFrequencies(source.theta, c.Core().RotaryDim)
		list := make([]float32, len(plain))
		for i, w := range plain {
			list[i] = float32(w / frequencies[i])
		}
		return list
	}
	tensor := func(name string, values []float32) gguf.Source {
		return gguf.Source{Name: name, Type: gguf.F32, Shape: []int64{int64(len(values))}, Data: func() ([]byte, error) { return gguf.F32.Quantize(values) }}
	}
	switch source.kind {
	case "default", "dynamic": // the latter differs only beyond the context
		return nil, nil
	case "linear":
		own("rope.scaling.type", "linear")
		own("rope.scaling.factor", float32(source.factor))
		return nil, nil
	case "yarn":
		own("rope.scaling.type", "yarn")
		own("rope.scaling.factor", float32(source.factor))
		own("rope.scaling.original_context_length", uint32(source.original))
		return nil, nil
	case "llama3":
		if e.Name == "llama" {
			return []gguf.Source{tensor(convert.RopeFactors, divisors(table.InvFreq))}, nil
		}
	case "longrope":
		if e.Name == "phi3" {
			own("rope.scaling.original_context_length", uint32(source.original))
			own("rope.scaling.attn_factor", float32(table.Factor))
			return []gguf.Source{tensor(convert.LongFactors, divisors(table.LongInvFreq)), tensor(convert.ShortFactors, divisors(table.InvFreq))}, nil
		}
	}
	return nil, fmt.Errorf("rope_type %q has no form in GGUF's architecture %s", source.kind, e.Name)
}
