// Package policytest makes small model folders for tests: a random encoder, and a classifier on it.
package policytest

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// Words are all that the tokenizer of Encoder knows; other words become [UNK].
var Words = []string{"court", "judge", "law", "force", "light", "wave", "cat", "dog", "horse", "the", "a", "is", "?"}

const config = `{
  "model_type": "bert", "architectures": ["BertModel"], "dtype": "float32",
  "vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
  "intermediate_size": 24, "max_position_embeddings": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-12
}
`

// Encoder writes a bert-type model folder: 2 layers, 16 features, 12 positions, random weights.
func Encoder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), []byte(config))
	c, err := transformers.LoadConfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 0))
	var tensors []safetensors.Tensor
	for _, spec := range c.TensorNames() {
		if spec.Group != "head" {
			tensors = append(tensors, safetensors.FromFloat32s(spec.Path, spec.Shape, normals(rng, size(spec.Shape), 0.3)))
		}
	}
	if err := safetensors.Write(filepath.Join(dir, "model.safetensors"), tensors, nil); err != nil {
		t.Fatal(err)
	}
	writeTokenizer(t, dir)
	return dir
}

// Fixture copies a parity fixture of package transformers, such as "encoders/roberta", and gives it a
// tokenizer.
func Fixture(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "..", "torch", "transformers", "testdata", name))); err != nil {
		t.Fatal(err)
	}
	writeTokenizer(t, dir)
	return dir
}

func writeTokenizer(t testing.TB, dir string) {
	t.Helper()
	tokenizer, err := json.Marshal(tokenizer())
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tokenizer.json"), tokenizer)
}

// Classifier writes the folder of a trained classifier on encoder, with pooling mean or family. Its adapter
// is random in both halves, so it changes what the encoder computes.
func Classifier(t testing.TB, encoder, pooling string, labels ...string) string {
	t.Helper()
	dir := t.TempDir()
	p, err := policy.NewClassifier(policy.Config{Dir: encoder, Labels: labels, Pooling: pooling, R: 2, Alpha: 4, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Save(dir); err != nil {
		t.Fatal(err)
	}
	saved, err := lora.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(2, 0))
	for i, pair := range saved.Pairs {
		saved.Pairs[i].B = normals(rng, int64(len(pair.B)), 0.3)
	}
	var extra []safetensors.Tensor
	for _, tensor := range saved.Extra {
		extra = append(extra, tensor)
	}
	if err := lora.Save(dir, saved.Config, saved.Pairs, extra); err != nil {
		t.Fatal(err)
	}
	return dir
}

func tokenizer() map[string]any {
	vocabulary := map[string]int{}
	var added []map[string]any
	for i, token := range []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]"} {
		vocabulary[token] = i
		added = append(added, map[string]any{"id": i, "content": token, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	for _, word := range Words {
		vocabulary[word] = len(vocabulary)
	}
	special := func(token string) map[string]any {
		return map[string]any{"SpecialToken": map[string]any{"id": token, "type_id": 0}}
	}
	sequence := func(id string) map[string]any {
		return map[string]any{"Sequence": map[string]any{"id": id, "type_id": 0}}
	}
	named := func(token string) map[string]any {
		return map[string]any{"id": token, "ids": []int{vocabulary[token]}, "tokens": []string{token}}
	}
	return map[string]any{
		"version": "1.0", "added_tokens": added,
		"normalizer":    map[string]any{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "lowercase": true},
		"pre_tokenizer": map[string]any{"type": "BertPreTokenizer"},
		"post_processor": map[string]any{
			"type":           "TemplateProcessing",
			"single":         []any{special("[CLS]"), sequence("A"), special("[SEP]")},
			"pair":           []any{special("[CLS]"), sequence("A"), special("[SEP]"), sequence("B"), special("[SEP]")},
			"special_tokens": map[string]any{"[CLS]": named("[CLS]"), "[SEP]": named("[SEP]")},
		},
		"model": map[string]any{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
			"max_input_chars_per_word": 100, "vocab": vocabulary},
	}
}

func normals(rng *rand.Rand, n int64, deviation float64) []float32 {
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(rng.NormFloat64() * deviation)
	}
	return data
}

func size(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

func write(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
