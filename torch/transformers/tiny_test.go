package transformers_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
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
	expect.Same(t, int64(99*64+2*(16*64*64+2*64)+64), model.Parameters, "parameters")
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
		random := must.Open(transformers.RandomLlama(shape, d.dtype, "", 7))(t)
		_, biased := random.Weights["layers.1.v.bias"]
		expect.True(t, random.Config.ModelType == d.kind && biased == d.biased, "a %s, biases: %v; want a %s", random.Config.ModelType, biased, d.kind)
		expect.True(t, random.Parameters == stored.Parameters && len(random.Weights) == len(stored.Weights),
			"%d parameters in %d weights, in files %d in %d", random.Parameters, len(random.Weights), stored.Parameters, len(stored.Weights))
		for name, v := range random.Weights {
			got := must.Get(v.Read())(t)
			expect.True(t, slices.Equal(got, must.Get(stored.Weights[name].Read())(t)), "%s, %s: the values differ from those in the file", d.inFile, name)
		}
		tokenizer := must.Open(tokenizer.Load(dir))(t)
		expect.Result(tokenizer.Decode([]int32{4 + 'a' - ' ', 119}, false))(t, "a<119>", "the last token decodes as")
	}
}

// TestBinLoadsAsSafetensors: the same weights in pytorch_model.bin, in one file or in shards, make a bit-identical
// model. scripts/fixtures/pickles.py writes them.
func TestBinLoadsAsSafetensors(t *testing.T) {
	torchtest.NoLeaks(t)
	var states [2][]float32
	for i, dir := range []string{"encoders", "bin"} {
		model := must.Open(transformers.Load(filepath.Join("testdata", dir, "distilbert_odd"), ""))(t)
		states[i] = hiddenOf(t, model.Encoder)
	}
	torchtest.Near(t, states[0], states[1], 0, "the encoders")
	for _, options := range []transformers.CausalOptions{{}, {Trainable: true}, {DType: "bf16"}} {
		for i, dir := range []string{"causal", "bin"} {
			model := must.Open(transformers.LoadCausal(filepath.Join("testdata", dir, "llama_dynamic"), options))(t)
			states[i] = hiddenOf(t, model.Model)
		}
		torchtest.Near(t, states[0], states[1], 0, fmt.Sprintf("with %+v, the language models", options))
	}
}

func hiddenOf(t *testing.T, model *torch.Model) (data []float32) {
	t.Helper()
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		hidden, _ := s.Hidden(model, torch.Pack([][]int32{{5, 6, 7, 8}, {9}}), torch.Pass{})
		data = s.Read(hidden)
	})
	return data
}

// TestBinSavesAsSafetensors: a model loaded from pytorch_model.bin is saved in safetensors.
func TestBinSavesAsSafetensors(t *testing.T) {
	torchtest.NoLeaks(t)
	from := must.Open(transformers.LoadCausal(filepath.Join("testdata", "bin", "llama_dynamic"), transformers.CausalOptions{}))(t)
	dir := t.TempDir()
	must.Do(t, from.Save(dir, transformers.SaveOptions{}))
	again := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{}))(t)
	torchtest.Near(t, hiddenOf(t, from.Model), hiddenOf(t, again.Model), 0, "the saved model")
}

// TestCompletionsDoNotDependOnTheBatch: each completion has the same tokens and log-probs, to the bit, whatever is
// generated at the same time. RLTRAIN_COMPLETIONS sets the number of completions per type of weights.
func TestCompletionsDoNotDependOnTheBatch(t *testing.T) {
	count := 60
	if text := os.Getenv("RLTRAIN_COMPLETIONS"); text != "" {
		count = must.Get(strconv.Atoi(text))(t)
	}
	shape := transformers.LlamaShape{Vocab: 512, Hidden: 192, Layers: 2, Heads: 6, KVHeads: 2, Intermediate: 512, RopeTheta: 1e4}
	for _, kind := range []string{"fp32", "bf16", "int8", "nf4", "q8_0", "q4_0"} {
		t.Run(kind, func(t *testing.T) {
			m := must.Open(randomModel(shape, kind))(t)
			want := completions(t, m, count, 1)
			for _, slots := range []int{5, 24, 90} {
				expect.Same(t, "", cmp.Diff(want, completions(t, m, count, slots)), "one at a time (-), up to %d at a time (+):\n", slots)
			}
		})
	}
}

func randomModel(shape transformers.LlamaShape, kind string) (*transformers.Causal, error) {
	switch kind {
	case "fp32":
		return transformers.RandomLlama(shape, torch.F32, "", 3)
	case "bf16":
		return transformers.RandomLlama(shape, torch.BF16, "", 3)
	default:
		return transformers.RandomLlama(shape, torch.BF16, torch.QuantType(kind), 3)
	}
}

// completions generates to count prompts of 1 to 40 tokens, in up to slots at a time, and returns the events by prompt.
func completions(t *testing.T, m *transformers.Causal, count, slots int) map[string][]torch.Event {
	t.Helper()
	e := must.Open(torch.NewEngine(m.Model, torch.EngineConfig{Slots: slots}))(t)
	found := map[string][]torch.Event{}
	for i := range count {
		rng := rand.New(rand.NewPCG(9, uint64(i)))
		prompt := make([]int32, 1+rng.IntN(40))
		for j := range prompt {
			prompt[j] = rng.Int32N(512)
		}
		must.Get(e.Submit(torch.Request{Prompt: prompt, Samples: 1, MaxNew: 1 + rng.IntN(12), Seed: 2, Stream: uint64(i), Sampling: torch.Sampling{Temperature: 1}}))(t)
	}
	for e.Unfinished() > 0 {
		for _, event := range must.Get(e.Step(max(64, slots)))(t) {
			key := fmt.Sprint(event.Request)
			found[key] = append(found[key], event)
		}
	}
	return found
}
