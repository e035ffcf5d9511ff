package transformers

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// LlamaShape is the shape of a Llama or Qwen2 with tied embeddings.
type LlamaShape struct {
	Vocab, Hidden, Layers, Heads, KVHeads, Intermediate int
	RopeTheta                                           float64
	QKVBias                                             bool // of queries, keys and values, which Qwen2 has
}

// llamaPositions is max_position_embeddings of models of a LlamaShape.
const llamaPositions = 2048

// config is config.json.
func (s LlamaShape) config(dtype safetensors.DType) ([]byte, error) {
	kind, class := "llama", "LlamaForCausalLM"
	if s.QKVBias {
		kind, class = "qwen2", "Qwen2ForCausalLM"
	}
	return files.EncodeJSON(map[string]any{
		"architectures": []string{class}, "model_type": kind, "vocab_size": s.Vocab,
		"hidden_size": s.Hidden, "intermediate_size": s.Intermediate, "num_hidden_layers": s.Layers,
		"num_attention_heads": s.Heads, "num_key_value_heads": s.KVHeads, "head_dim": s.Hidden / s.Heads,
		"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": s.RopeTheta, "max_position_embeddings": llamaPositions,
		"initializer_range": 0.02, "tie_word_embeddings": true, "torch_dtype": torchNames[dtype],
		"bos_token_id": nil, "eos_token_id": 1, "pad_token_id": 0,
	})
}

var torchNames = map[safetensors.DType]string{safetensors.F32: "float32", safetensors.BF16: "bfloat16", safetensors.F16: "float16"}

// WriteLlama writes a Llama to dir, with random weights of dtype F32, BF16 or F16 from seed, initialised as in
// transformers: normal with standard deviation 0.02, norms 1, biases and the padding token's embedding 0. Tokens are
// characters; from id 100 on they are words that occur in no text.
func WriteLlama(dir string, s LlamaShape, dtype safetensors.DType, seed uint64) error {
	if err := s.write(dir, dtype, seed); err != nil {
		return fmt.Errorf("transformers: writing a Llama: %w", err)
	}
	return nil
}

func (s LlamaShape) write(dir string, dtype safetensors.DType, seed uint64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	config, err := s.config(dtype)
	if err != nil {
		return err
	}
	vocabulary := tinyVocabulary()
	for id := len(vocabulary); id < s.Vocab; id++ {
		vocabulary = append(vocabulary, fmt.Sprintf("<%d>", id))
	}
	texts := map[string][]byte{"config.json": config}
	for name, content := range map[string]any{
		"generation_config.json": map[string]any{"eos_token_id": 1, "pad_token_id": 0},
		"tokenizer.json":         tinyTokenizer(vocabulary[:s.Vocab]),
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": llamaPositions, "padding_side": "left",
			"clean_up_tokenization_spaces": false,
			"pad_token":                    "<pad>", "eos_token": "<eos>", "unk_token": "<unk>",
		},
	} {
		if texts[name], err = files.EncodeJSON(content); err != nil {
			return err
		}
	}
	for name, text := range texts {
		if err := outfile.Write(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	c, err := parseConfig(config, decoders)
	if err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	for spec, data := range randomWeights(c, seed) {
		tensors = append(tensors, safetensors.FromFloat32sAs(dtype, spec.Candidates[0], spec.Shape, data))
	}
	return safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil)
}

// RandomLlama is the model of WriteLlama without files, for benchmarks. Matrices have type dtype, norms float32. If quant is
// not empty, the layers' linear weights are quantised to it, and the output layer as well if it is a type of GGUF, as its
// files have it. Errors: a type that neither the core nor package gguf quantises to.
func RandomLlama(s LlamaShape, dtype torch.DType, quant torch.QuantType, seed uint64) (*Causal, error) {
	text, err := s.config(safetensors.F32)
	if err != nil {
		return nil, err
	}
	config, err := parseConfig(text, decoders)
	if err != nil {
		return nil, err
	}
	c := &Causal{Config: config, Weights: map[string]*torch.Var{}, quants: map[string]torch.QuantType{}}
	for spec, data := range randomWeights(config, seed) {
		c.Parameters += spec.elements()
		if quant != "" && spec.layer() {
			v, err := quantizeValues(data, spec, quant)
			if err != nil {
				c.Close()
				return nil, err
			}
			c.Weights[quantName(spec.Name, quant)], c.quants[spec.Name] = v, quant
			continue
		}
		if quant != "" && !slices.Contains(Quantizable, quant) && config.head(spec) {
			kind := torch.QuantType(strings.ToLower(string(matrixType(gguf.Type(strings.ToUpper(string(quant))), spec))))
			rows, err := quantizeValues(data, spec, kind)
			if err != nil {
				c.Close()
				return nil, err
			}
			c.packed = packedHead{kind, rows}
		}
		v, err := torch.Constant(data, spec.Shape...)
		if err == nil && spec.matrix() && dtype != torch.F32 {
			wide := v
			v, err = wide.To(dtype)
			wide.Close()
		}
		if err != nil {
			c.Close()
			return nil, err
		}
		c.Weights[spec.Name] = v
	}
	if err := c.build(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// randomWeights samples each tensor from its own random stream, so that adding layers does not change the first ones.
// It prepares the next tensors in parallel.
func randomWeights(c *Config, seed uint64) iter.Seq2[TensorSpec, []float32] {
	return func(yield func(TensorSpec, []float32) bool) {
		type drawing struct {
			spec TensorSpec
			data chan []float32
		}
		next, stop := make(chan drawing, runtime.GOMAXPROCS(0)), make(chan struct{})
		defer close(stop)
		go func() {
			defer close(next)
			for i, spec := range c.TensorNames() {
				if spec.Group == "tied" {
					continue
				}
				d := drawing{spec, make(chan []float32, 1)}
				select {
				case next <- d:
					go func() { d.data <- randomWeight(c, spec, rand.New(rand.NewPCG(seed, uint64(i)))) }()
				case <-stop:
					return
				}
			}
		}()
		for d := range next {
			if !yield(d.spec, <-d.data) {
				return
			}
		}
	}
}

func randomWeight(c *Config, spec TensorSpec, rng *rand.Rand) []float32 {
	data := make([]float32, spec.elements())
	for i := range data {
		switch {
		case strings.HasSuffix(spec.Name, "norm.weight"):
			data[i] = 1
		case !strings.HasSuffix(spec.Name, ".bias"):
			data[i] = float32(rng.NormFloat64() * 0.02)
		}
	}
	if spec.Name == "embed.weight" {
		clear(data[:c.HiddenSize]) // the padding token's row
	}
	return data
}
