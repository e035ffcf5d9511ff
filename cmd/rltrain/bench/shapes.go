package bench

import (
	"fmt"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

// llamaShapes lists the shapes of language models.
var llamaShapes = map[string]transformers.LlamaShape{
	"smol135":  {Vocab: 49152, Hidden: 576, Layers: 30, Heads: 9, KVHeads: 3, Intermediate: 1536, RopeTheta: 1e5},                   // of SmolLM2-135M
	"qwen1.5b": {Vocab: 151936, Hidden: 1536, Layers: 28, Heads: 12, KVHeads: 2, Intermediate: 8960, RopeTheta: 1e6, QKVBias: true}, // of Qwen2.5-1.5B
	"tiny":     {Vocab: 64, Hidden: 128, Layers: 4, Heads: 4, KVHeads: 4, Intermediate: 512, RopeTheta: 1e4},
}

const (
	shapeNames   = "tiny, smol135 or qwen1.5b"
	llamaLongest = 2048
	firstWord    = 3 // lower ids are special tokens
)

func llamaShape(name string) (transformers.LlamaShape, error) {
	shape, known := llamaShapes[name]
	if !known {
		return shape, fmt.Errorf("--shape: unknown shape %.40q; choose %s", name, shapeNames)
	}
	return shape, nil
}

// weightDType returns the dtype of --dtype.
func weightDType(name string) (torch.DType, error) {
	dtype, known := map[string]torch.DType{"fp32": torch.F32, "bf16": torch.BF16}[name]
	if !known {
		return dtype, fmt.Errorf("--dtype: %.40q is not fp32 or bf16", name)
	}
	return dtype, nil
}

// widths returns the number of query features and of key features, which equals that of values.
func widths(s transformers.LlamaShape) (queries, keys int) {
	return s.Hidden, s.KVHeads * s.Hidden / s.Heads
}

// products returns the number of weights of the matrices of all layers, and of the output layer.
func products(s transformers.LlamaShape) (layers, head float64) {
	queries, keys := widths(s)
	return float64(s.Layers) * float64(s.Hidden*(2*queries+2*keys)+3*s.Hidden*s.Intermediate), float64(s.Vocab * s.Hidden)
}

// stepBytes returns the minimum bytes that a decode step reads: every matrix, and the keys and values of batch sequences of
// length tokens, all in dtype.
func stepBytes(s transformers.LlamaShape, dtype torch.DType, batch, length int) float64 {
	layers, head := products(s)
	_, keys := widths(s)
	return float64(dtype.Size()) * (layers + head + float64(s.Layers*2*keys)*float64(batch*length))
}

// stepFLOPs returns the minimum operations of an SFT step of an adapter with trained weights:
//   - frozen weights: 2 forward and 2 for the input gradient, per weight and token; the output layer only at labels
//   - trained weights: the same, plus 2 for their own gradient
//   - causal attention: 2 products forward and 4 backward
func stepFLOPs(s transformers.LlamaShape, trained int64, sequences []policy.Sequence) float64 {
	layers, head := products(s)
	queries, _ := widths(s)
	tokens, labels, pairs := 0, 0, 0.0
	for _, q := range sequences {
		n := len(q.IDs)
		tokens += n
		pairs += float64(n) * float64(n+1) / 2
		for _, label := range q.Labels {
			if label {
				labels++
			}
		}
	}
	// Two products forward (scores and values) and four backward.
	attention := 2 * 6 * float64(s.Layers*queries) * pairs
	return (4*layers+6*float64(trained))*float64(tokens) + 4*head*float64(labels) + attention
}
