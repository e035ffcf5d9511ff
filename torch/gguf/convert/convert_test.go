package convert_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/gguf/convert"
)

// llama is the metadata of a Llama with one layer and eight tokens.
func llama() []gguf.Pair {
	return []gguf.Pair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "llama.block_count", Value: uint32(1)}, {Key: "llama.context_length", Value: uint32(64)},
		{Key: "llama.embedding_length", Value: uint32(8)}, {Key: "llama.feed_forward_length", Value: uint32(16)},
		{Key: "llama.attention.head_count", Value: uint32(2)}, {Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(1e-6)},
		{Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.pre", Value: "smollm"},
		{Key: "tokenizer.ggml.tokens", Value: []string{"<|end|>", "a", "b", "c", "ab", "abc", "Ġ", "Ġa"}},
		{Key: "tokenizer.ggml.token_type", Value: []int32{3, 1, 1, 1, 1, 1, 1, 1}},
		{Key: "tokenizer.ggml.merges", Value: []string{"a b", "ab c", "Ġ a"}},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(0)},
		{Key: "tokenizer.chat_template", Value: "{{ messages }}"},
	}
}

// with changes one pair, or removes it if value is nil.
func with(pairs []gguf.Pair, key string, value any) []gguf.Pair {
	pairs = slices.DeleteFunc(pairs, func(p gguf.Pair) bool { return p.Key == key })
	if value != nil {
		pairs = append(pairs, gguf.Pair{Key: key, Value: value})
	}
	return pairs
}

// write writes a file with an embedding and the named tensors.
func write(t *testing.T, pairs []gguf.Pair, tensors map[string][]int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.gguf")
	if tensors["token_embd.weight"] == nil {
		tensors["token_embd.weight"] = []int64{8, 8}
	}
	var sources []gguf.Source
	for name, shape := range tensors {
		n := int64(1)
		for _, d := range shape {
			n *= d
		}
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(i)
		}
		sources = append(sources, gguf.Source{Name: name, Type: gguf.F32, Shape: shape, Data: func() ([]byte, error) { return gguf.F32.Quantize(values) }})
	}
	must.Do(t, gguf.Write(path, pairs, sources))
	return path
}

func TestWriteFolder(t *testing.T) {
	dir := t.TempDir()
	path := write(t, llama(), map[string][]int64{"blk.0.attn_q.weight": {8, 8}})
	must.Do(t, convert.WriteFolder(dir, path, map[string]any{"temperature": 0.5}))
	read := func(name string) (fields map[string]any) {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			err = json.Unmarshal(data, &fields)
		}
		must.Do(t, err)
		return fields
	}
	config := read("config.json")
	for key, want := range map[string]any{
		"model_type": "llama", "vocab_size": 8.0, "num_key_value_heads": 2.0, "head_dim": 4.0, "tie_word_embeddings": true,
		"rms_norm_eps": 1e-6, "eos_token_id": 0.0, "bos_token_id": nil,
	} {
		expect.Same(t, want, config[key], "config.json: %s", key)
	}
	expect.Equal(t, map[string]any{"eos_token_id": []any{0.0}, "bos_token_id": nil, "pad_token_id": nil, "temperature": 0.5}, read("generation_config.json"))
	expect.Result(os.Readlink(filepath.Join(dir, convert.WeightsFile)))(t, path, "the link leads to")
	text, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	expect.True(t, err == nil && string(text) == "{{ messages }}", "chat template %q, %v", text, err)
}

func TestWriteFolderRefuses(t *testing.T) {
	type tensors = map[string][]int64
	for name, c := range map[string]struct {
		pairs   []gguf.Pair
		tensors tensors
		want    string
	}{
		"no architecture":          {with(llama(), "general.architecture", nil), tensors{}, "general.architecture"},
		"unknown architecture":     {with(llama(), "general.architecture", "mamba"), tensors{}, `"mamba"`},
		"no layers":                {with(llama(), "llama.block_count", nil), tensors{}, "llama.block_count is missing"},
		"no heads":                 {with(llama(), "llama.attention.head_count", uint32(0)), tensors{}, "llama.attention.head_count"},
		"layers that differ":       {with(llama(), "llama.feed_forward_length", []int32{16, 32}), tensors{}, "llama.feed_forward_length"},
		"a size that is a text":    {with(llama(), "llama.context_length", "64"), tensors{}, "llama.context_length"},
		"unknown scaling":          {with(llama(), "llama.rope.scaling.type", "su"), tensors{}, `"su"`},
		"half a head rotates":      {with(llama(), "llama.rope.dimension_count", uint32(2)), tensors{}, "llama.rope.dimension_count"},
		"unknown tokenizer":        {with(llama(), "tokenizer.ggml.model", "bert"), tensors{}, `"bert"`},
		"unknown way to split":     {with(llama(), "tokenizer.ggml.pre", "klingon"), tensors{}, `"klingon"`},
		"no tokens":                {with(llama(), "tokenizer.ggml.tokens", nil), tensors{}, "tokenizer.ggml.tokens"},
		"token twice":              {with(llama(), "tokenizer.ggml.tokens", []string{"a", "b", "a", "c", "d", "e", "f", "g"}), tensors{}, `"a"`},
		"more tokens than rows":    {llama(), tensors{"token_embd.weight": {4, 8}}, "8 tokens"},
		"token types cut":          {with(llama(), "tokenizer.ggml.token_type", []int32{3}), tensors{}, "tokenizer.ggml.token_type"},
		"tokens not UTF-8":         {with(llama(), "tokenizer.ggml.tokens", []string{"\xff"}), tensors{}, "tokenizer.ggml.tokens"},
		"merge of one token":       {with(llama(), "tokenizer.ggml.merges", []string{"ab"}), tensors{}, "tokenizer.ggml.merges"},
		"llama without scores":     {with(llama(), "tokenizer.ggml.model", "llama"), tensors{}, "tokenizer.ggml.scores"},
		"embedding of one row":     {llama(), tensors{"token_embd.weight": {8}}, "token_embd.weight"},
		"unknown tensor":           {llama(), tensors{"blk.0.ssm_a.weight": {8}}, "blk.0.ssm_a.weight"},
		"rows that split no heads": {llama(), tensors{"blk.0.attn_q.weight": {6, 8}}, "blk.0.attn_q.weight"},
		"factors of another head":  {llama(), tensors{"rope_freqs.weight": {7}}, "rope_freqs.weight"},
	} {
		t.Run(name, func(t *testing.T) {
			expect.Error(t, convert.WriteFolder(t.TempDir(), write(t, c.pairs, c.tensors), nil), c.want)
		})
	}
}

// Interleaving and its inverse restore the rows.
func TestInterleave(t *testing.T) {
	const heads, rows, width = 2, 12, 3
	values := make([]float32, rows*width)
	for i := range values {
		values[i] = float32(i)
	}
	want := slices.Clone(values)
	convert.Interleave(values, heads, width)
	expect.True(t, values[width] == 3*width, "row 1 begins with %g", values[width]) // the second row is the first of the head's second half
	raw := must.Get(gguf.F32.Quantize(values))(t)
	expect.Equal(t, want, gguf.F32.Dequantize(convert.Weight{Heads: heads, Tensor: gguf.Tensor{Shape: []int64{rows, width}}}.Rows(raw)))
}
