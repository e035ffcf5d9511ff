package transformers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"rltrain/torch/safetensors"
)

// The shape of the tiny model where nobody asks for another.
const (
	TinyLayers = 4
	TinyHidden = 128
)

// tinyHead is the width of a head, and tinyPositions the length the tiny model is said to be made for.
const (
	tinyHead      = 32
	tinyPositions = 2048
)

// tinySpecials come first in the vocabulary, in the order of their ids.
var tinySpecials = []string{"<pad>", "<eos>", "<unk>"}

// tinyVocabulary is the special tokens, the line feed and the printable characters of ASCII.
func tinyVocabulary() []string {
	tokens := append(tinySpecials[:len(tinySpecials):len(tinySpecials)], "\n")
	for c := ' '; c <= '~'; c++ {
		tokens = append(tokens, string(c))
	}
	return tokens
}

// WriteTiny makes dir the folder of a small Llama that reads and writes characters, with weights
// drawn from seed as transformers draws them: normal with deviation 0.02, norms at one, the
// padding token's embedding at zero. hidden is a multiple of 32, the width of a head; the MLP is
// four times as wide, and the output layer is the embedding. The folder is like any other.
func WriteTiny(dir string, layers, hidden int, seed uint64) error {
	if layers < 1 || layers > maxLayers {
		return fmt.Errorf("transformers: tiny: %d layers, want 1 to %d", layers, maxLayers)
	}
	if hidden < tinyHead || hidden%tinyHead != 0 || hidden > maxWidth {
		return fmt.Errorf("transformers: tiny: hidden size %d, want a multiple of %d up to %d", hidden, tinyHead, maxWidth)
	}
	if err := writeTiny(dir, layers, hidden, seed); err != nil {
		return fmt.Errorf("transformers: tiny: %w", err)
	}
	return nil
}

func writeTiny(dir string, layers, hidden int, seed uint64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	vocabulary := tinyVocabulary()
	config := map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "vocab_size": len(vocabulary),
		"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers,
		"num_attention_heads": hidden / tinyHead, "num_key_value_heads": hidden / tinyHead, "head_dim": tinyHead,
		"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": tinyPositions,
		"initializer_range": 0.02, "tie_word_embeddings": true, "torch_dtype": "float32",
		"bos_token_id": nil, "eos_token_id": 1, "pad_token_id": 0,
	}
	files := map[string]any{
		"config.json":            config,
		"generation_config.json": map[string]any{"eos_token_id": 1, "pad_token_id": 0},
		"tokenizer.json":         tinyTokenizer(vocabulary),
		"tokenizer_config.json": map[string]any{
			"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": tinyPositions, "padding_side": "left",
			"clean_up_tokenization_spaces": false,
			"pad_token":                    "<pad>", "eos_token": "<eos>", "unk_token": "<unk>",
		},
	}
	for name, content := range files {
		text, err := tidyJSON(content)
		if err != nil {
			return err
		}
		if err := renameio.WriteFile(filepath.Join(dir, name), text, 0o644, renameio.WithTempDir(dir)); err != nil {
			return err
		}
	}
	c, err := LoadCausalConfig(dir)
	if err != nil {
		return err
	}
	return safetensors.Write(filepath.Join(dir, "model.safetensors"), tinyWeights(c, seed), nil)
}

// tidyJSON is v in lines, with characters as they are.
func tidyJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return b.Bytes(), err
}

// tinyTokenizer is tokenizer.json: each character is a word of its own.
func tinyTokenizer(vocabulary []string) map[string]any {
	ids := map[string]int{}
	for id, token := range vocabulary {
		ids[token] = id
	}
	var added []map[string]any
	for id, token := range tinySpecials {
		added = append(added, map[string]any{
			"id": id, "content": token, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		})
	}
	return map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil,
		"pre_tokenizer": map[string]any{
			"type": "Split", "pattern": map[string]string{"Regex": `[\s\S]`}, "behavior": "Isolated", "invert": false,
		},
		"post_processor": nil, "decoder": map[string]any{"type": "Fuse"},
		"model": map[string]any{"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"},
	}
}

// tinyWeights draws every tensor from a stream of its own: more layers leave the first as they are.
func tinyWeights(c *CausalConfig, seed uint64) []safetensors.Tensor {
	var tensors []safetensors.Tensor
	for i, spec := range c.TensorNames() {
		if spec.Group == "tied" {
			continue
		}
		data := make([]float32, spec.elements())
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		for j := range data {
			data[j] = 1
			if !strings.HasSuffix(spec.Name, "norm.weight") {
				data[j] = float32(rng.NormFloat64() * 0.02)
			}
		}
		if spec.Name == "embed.weight" {
			clear(data[:c.HiddenSize]) // the padding token's row
		}
		tensors = append(tensors, safetensors.FromFloat32s(spec.Candidates[0], spec.Shape, data))
	}
	return tensors
}
