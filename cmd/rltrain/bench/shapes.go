package bench

import (
	"math/rand/v2"
	"path/filepath"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// llamaShapes lists the shapes of language models.
var llamaShapes = map[string]transformers.LlamaShape{
	"smol135":  {Vocab: 49152, Hidden: 576, Layers: 30, Heads: 9, KVHeads: 3, Intermediate: 1536, RopeTheta: 1e5},                   // of SmolLM2-135M
	"qwen1.5b": {Vocab: 151936, Hidden: 1536, Layers: 28, Heads: 12, KVHeads: 2, Intermediate: 8960, RopeTheta: 1e6, QKVBias: true}, // of Qwen2.5-1.5B
	"tiny":     {Vocab: 64, Hidden: 128, Layers: 4, Heads: 4, KVHeads: 4, Intermediate: 512, RopeTheta: 1e4},
}

const (
	llamaLongest = 2048
	firstWord    = 3 // lower ids are special tokens
)

// dtypes are the choices of --dtype.
var dtypes = map[string]torch.DType{"fp32": torch.F32, "bf16": torch.BF16}

// randomLlama is a random Llama, with LoRA on all linear layers when it is trained.
type randomLlama struct {
	Shape string `json:"shape" option:"shape" default:"tiny" allowed:"tiny,smol135,qwen1.5b" help:"tiny, smol135 or qwen1.5b"`
	DType string `json:"-" option:"dtype" default:"fp32" allowed:"fp32,bf16" help:"dtype of the frozen weights: fp32 or bf16"`
}

func (l randomLlama) shape() transformers.LlamaShape { return llamaShapes[l.Shape] }

// weights returns the size of the stored matrices in MiB.
func (l randomLlama) weights() float64 {
	layers, head := products(l.shape())
	return float64(dtypes[l.DType].Size()) * (layers + head) / (1 << 20)
}

// write writes the model with a character tokenizer into a folder below dir.
func (l randomLlama) write(dir string) (model string, err error) {
	stored := safetensors.F32
	if l.DType == "bf16" {
		stored = safetensors.BF16
	}
	model = filepath.Join(dir, "model")
	return model, transformers.WriteLlama(model, l.shape(), stored, 1)
}

// adaptedLlama is a randomLlama with an adapter.
type adaptedLlama struct {
	randomLlama
	R int `json:"r" option:"r" default:"8" range:"[1,)" help:"LoRA rank"`
}

// config is the adapter: on all linear layers, with alpha twice the rank.
func (l adaptedLlama) config() policy.Config {
	return policy.Config{
		BaseModel: "random", R: l.R, Alpha: 2 * float64(l.R), Seed: 1,
		Targets: []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
	}
}

func (l adaptedLlama) policy(dtype torch.DType, quant torch.QuantType) (*policy.CausalLM, error) {
	if err := inRange("r", l.R, 1, l.shape().Hidden); err != nil {
		return nil, err
	}
	return policy.RandomCausalLM(l.shape(), dtype, quant, l.config())
}

// quantization is a choice of quantised weights for a bf16 model.
type quantization struct {
	Quantize string `json:"quantize,omitempty" option:"quantize" allowed:"nf4,int8,q8_0,q4_0,q4_1" help:"quantise a bf16 model: its linear layers to nf4 or int8; q8_0, q4_0, q4_1: also its output layer, to q8_0"`
}

// types returns the dtype of the matrices, dtype unless some are quantised; the type of those; and a name for both.
func (q quantization) types(dtype string) (torch.DType, torch.QuantType, string) {
	if q.Quantize == "" {
		return dtypes[dtype], "", dtype
	}
	return torch.BF16, torch.QuantType(q.Quantize), q.Quantize
}

// spread returns n lengths: all longest if shortest is 0, else spread evenly from shortest to longest in random order, so
// that their sum equals the expected sum of uniform lengths.
func spread(rng *rand.Rand, n, shortest, longest int) []int {
	lengths := rng.Perm(n)
	for i, at := range lengths {
		lengths[i] = longest
		if shortest > 0 && n > 1 {
			lengths[i] = shortest + at*(longest-shortest)/(n-1)
		}
	}
	return lengths
}

// randomTokens returns n tokens from low to below high.
func randomTokens(rng *rand.Rand, n, low, high int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(low + rng.IntN(high-low))
	}
	return ids
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
// length tokens. layer and head are the bytes per weight of the layers and of the output layer; the rest is in dtype.
func stepBytes(s transformers.LlamaShape, layer, head float64, dtype torch.DType, batch, length int) float64 {
	layers, outputs := products(s)
	_, keys := widths(s)
	return layer*layers + head*outputs + float64(dtype.Size())*float64(s.Layers*2*keys)*float64(batch*length)
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
