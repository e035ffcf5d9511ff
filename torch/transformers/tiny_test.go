package transformers_test

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

func TestTiny(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := t.TempDir()
	must.Do(t, transformers.WriteTiny(dir, 2, 64, 7))
	model := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{}))(t)
	got := model.EOS()
	expect.True(t, cmp.Equal(got, []int32{1}) && model.Config.Pad == 0 && model.Config.BOS == -1, "ends with %v, padding %d, begins with %d", got, model.Config.Pad, model.Config.BOS)
	// 99 tokens; a layer has 4 H² of attention, 12 H² of MLP and two norms.
	if want := int64(99*64 + 2*(16*64*64+2*64) + 64); model.Parameters != want {
		t.Errorf("%d parameters, want %d", model.Parameters, want)
	}
	tokenizer := must.Open(tokenizer.Load(dir))(t)
	const text = "What is 12*3?\n\n[ANSWER] {36} ~"
	ids, cut, err := tokenizer.Encode(text, 100)
	expect.Require(t, err == nil && !cut, "%v %v", err, cut)
	expect.Require(t, len(ids) == len(text), "%d tokens for %d characters", len(ids), len(text))
	for i, id := range ids {
		want := int32(text[i]-' ') + 4
		if text[i] == '\n' {
			want = 3
		}
		expect.Same(t, want, id, "%q is token", text[i])
	}
	embedding := must.Get(model.Weights["embed.weight"].Read())(t)
	var sum, squares float64
	for _, v := range embedding[64:] {
		sum += float64(v)
		squares += float64(v) * float64(v)
	}
	n := float64(len(embedding) - 64)
	mean, deviation := sum/n, math.Sqrt(squares/n)
	expect.True(t, math.Abs(mean) <= 0.001 && math.Abs(deviation-0.02) <= 0.001, "embeddings have mean %g and deviation %g", mean, deviation)
	expect.Same(t, 0, torchtest.MaxDiff(embedding[:64], make([]float32, 64)), "the padding token is embedded as")
}

func TestTinyIsAFunctionOfItsSeed(t *testing.T) {
	read := func(layers int, seed uint64) []byte {
		dir := t.TempDir()
		must.Do(t, transformers.WriteTiny(dir, layers, 32, seed))
		return must.Get(os.ReadFile(filepath.Join(dir, "model.safetensors")))(t)
	}
	expect.True(t, bytes.Equal(read(1, 5), read(1, 5)), "one seed gave two models")
	expect.True(t, !bytes.Equal(read(1, 5), read(1, 6)), "two seeds gave one model")
}

func TestTinyRefuses(t *testing.T) {
	for want, shape := range map[string][2]int{"0 layers": {0, 32}, "hidden size 48": {1, 48}, "hidden size 0": {1, 0}} {
		expect.Error(t, transformers.WriteTiny(t.TempDir(), shape[0], shape[1], 0), want)
	}
}

// TestRandomLlama: the model without files equals the one with files, in each dtype and family.
func TestRandomLlama(t *testing.T) {
	torchtest.NoLeaks(t)
	shape := transformers.LlamaShape{Vocab: 120, Hidden: 24, Layers: 2, Heads: 3, KVHeads: 1, Intermediate: 40, RopeTheta: 1e5}
	for _, d := range []struct {
		inFile safetensors.DType
		dtype  torch.DType
		biased bool
		kind   string
	}{{safetensors.F32, torch.F32, false, "llama"}, {safetensors.BF16, torch.BF16, false, "llama"}, {safetensors.BF16, torch.BF16, true, "qwen2"}} {
		shape.QKVBias = d.biased
		dir := t.TempDir()
		must.Do(t, transformers.WriteLlama(dir, shape, d.inFile, 7))
		stored := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{}))(t)
		random := must.Open(transformers.RandomLlama(shape, d.dtype, 7))(t)
		_, biased := random.Weights["layers.1.v.bias"]
		expect.True(t, random.Config.ModelType == d.kind && biased == d.biased, "a %s, biases: %v; want a %s", random.Config.ModelType, biased, d.kind)
		expect.True(t, random.Parameters == stored.Parameters && len(random.Weights) == len(stored.Weights),
			"%d parameters in %d weights, in files %d in %d", random.Parameters, len(random.Weights), stored.Parameters, len(stored.Weights))
		for name, v := range random.Weights {
			got := must.Get(v.Read())(t)
			want := must.Get(stored.Weights[name].Read())(t)
			expect.True(t, slices.Equal(got, want), "%s, %s: the values differ from those in the file", d.inFile, name)
		}
		tokenizer := must.Open(tokenizer.Load(dir))(t)
		expect.Result(tokenizer.Decode([]int32{4 + 'a' - ' ', 119}, false))(t, "a<119>", "the last token decodes as")
	}
}
