package transformers_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// causalCase is a folder written by scripts/fixtures/causal.py, with the results of transformers and PEFT.
type causalCase struct {
	*transformers.Causal
	expected  *safetensors.File
	sequences [][]int32
}

func causalCases(t *testing.T) []string {
	t.Helper()
	entries := must.Get(os.ReadDir(filepath.Join("testdata", "causal")))(t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func openCausal(t *testing.T, name string, o transformers.CausalOptions) causalCase {
	t.Helper()
	torchtest.NoLeaks(t)
	dir := filepath.Join("testdata", "causal", name)
	model := must.Get(transformers.LoadCausal(dir, o))(t)
	t.Cleanup(model.Close)
	expected := must.Get(safetensors.Open(filepath.Join(dir, "expected.safetensors")))(t)
	t.Cleanup(func() { _ = expected.Close() })
	c := causalCase{Causal: model, expected: expected}
	tokens := c.ids(t, "tokens")
	for _, n := range c.ids(t, "lengths") {
		c.sequences = append(c.sequences, tokens[:n])
		tokens = tokens[n:]
	}
	return c
}

func (c causalCase) ids(t *testing.T, name string) []int32 {
	t.Helper()
	data := must.Get(c.expected.Bytes(name))(t)
	ids := make([]int32, len(data)/4)
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return ids
}

func (c causalCase) want(t *testing.T, name string) []float32 {
	t.Helper()
	return must.Get(c.expected.Float32s(name))(t)
}

// logits are the logits of every token, [N, V], by plain operators.
func (c causalCase) logits(s *torch.Scope, sequences [][]int32, adapter bool) torch.Tensor {
	hidden, _ := s.Hidden(c.Model, torch.Pack(sequences), torch.Pass{Adapter: adapter})
	return c.head(s, hidden)
}

func (c causalCase) head(s *torch.Scope, hidden torch.Tensor) torch.Tensor {
	weight, err := c.Head.To(torch.F32)
	if err != nil {
		panic(err)
	}
	defer weight.Close()
	bias := s.Floats(make([]float32, c.Config.VocabSize), int64(c.Config.VocabSize))
	if c.HeadBias != nil {
		bias = c.HeadBias.T()
	}
	logits := s.Linear(hidden, weight.T(), bias)
	if limit := c.Config.Core().LogitSoftcap; limit > 0 {
		logits = s.Scale(s.Tanh(s.Scale(logits, 1/limit)), limit)
	}
	return logits
}

func (c causalCase) read(t *testing.T, sequences [][]int32, adapter bool) []float32 {
	t.Helper()
	var data []float32
	must.Do(t, torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		data = s.Read(c.logits(s, sequences, adapter))
		return nil
	}))
	return data
}

func TestCausalLogitsEqualTransformers(t *testing.T) {
	for _, name := range causalCases(t) {
		t.Run(name, func(t *testing.T) {
			c := openCausal(t, name, transformers.CausalOptions{DType: "fp32"})
			packed := c.read(t, c.sequences, false)
			torchtest.Near(t, packed, c.want(t, "logits"), tolerance, "logits")
			var single []float32
			for _, ids := range c.sequences {
				single = append(single, c.read(t, [][]int32{ids}, false)...)
			}
			torchtest.Near(t, single, packed, 1e-5, "packed and one by one")
		})
	}
}

// TestCausalGreedyTokensEqualTransformers computes each token from the full text before it.
func TestCausalGreedyTokensEqualTransformers(t *testing.T) {
	for _, name := range causalCases(t) {
		t.Run(name, func(t *testing.T) {
			c := openCausal(t, name, transformers.CausalOptions{DType: "fp32"})
			ids := slices.Clone(c.sequences[1])
			for i, want := range c.ids(t, "greedy") {
				logits := c.read(t, [][]int32{ids}, false)
				last := logits[len(logits)-c.Config.VocabSize:]
				got := int32(slices.Index(last, slices.Max(last)))
				if got != want {
					t.Fatalf("token %d is %d, want %d", i, got, want)
				}
				ids = append(ids, got)
			}
		})
	}
}

// TestCausalEngineTokensEqualTransformers: the engine generates the same tokens, from its cache.
func TestCausalEngineTokensEqualTransformers(t *testing.T) {
	for _, name := range causalCases(t) {
		t.Run(name, func(t *testing.T) {
			c := openCausal(t, name, transformers.CausalOptions{DType: "fp32"})
			if slices.ContainsFunc(c.Config.Core().Ropes, func(r torch.Rope) bool { return r.SwitchLength > 0 }) {
				t.Skip("the engine rotates all tokens for the sequence's full length")
			}
			want := c.ids(t, "greedy")
			var got []int32
			for _, e := range generated(t, c.Causal, c.sequences[1], len(want)) {
				got = append(got, e.Token)
			}
			expect.Equal(t, want, got)
		})
	}
}

func (c causalCase) adapt(t *testing.T) map[string]*torch.Var {
	t.Helper()
	params := map[string]*torch.Var{}
	for _, linear := range c.Config.Linears() {
		var pair [2]*torch.Var
		for i, matrix := range []string{"lora_A", "lora_B"} {
			key := linear.Name + "." + matrix + ".weight"
			entry, ok := c.expected.Lookup(key)
			if !ok {
				t.Fatalf("no %s in the fixture", key)
			}
			v := must.Get(torch.Parameter(c.want(t, key), entry.Shape...))(t)
			t.Cleanup(v.Close)
			params[key], pair[i] = v, v
		}
		must.Do(t, c.Model.Adapt(linear.Layer, pair[0], pair[1], 3.0/2))
	}
	return params
}

// meanLoss is the mean cross-entropy of all tokens but the first of each text.
func (c causalCase) meanLoss(s *torch.Scope, adapter bool) torch.Tensor {
	var rows, targets []int64
	row := int64(0)
	for _, ids := range c.sequences {
		for i, id := range ids {
			if i > 0 {
				rows, targets = append(rows, row-1), append(targets, int64(id))
			}
			row++
		}
	}
	n := int64(len(rows))
	logits := s.Rows(c.logits(s, c.sequences, adapter), s.Ints(rows, n))
	return s.Scale(s.Sum(s.Pick(s.LogSoftmax(logits), s.Ints(targets, n))), -1/float64(n))
}

func TestCausalAdapterGradientsEqualPEFT(t *testing.T) {
	for _, name := range causalCases(t) {
		t.Run(name, func(t *testing.T) {
			c := openCausal(t, name, transformers.CausalOptions{DType: "fp32"})
			params := c.adapt(t)
			must.Do(t, torch.Do(torch.Train, func(s *torch.Scope) error {
				loss := c.meanLoss(s, true)
				torchtest.Near(t, s.Read(loss), c.want(t, "loss"), tolerance, "loss")
				s.Backward(loss)
				compareGradients(t, s, params, c.want)
				return nil
			}))
			torchtest.Near(t, c.read(t, c.sequences, false), c.want(t, "logits"), tolerance, "without the adapter, logits")
		})
	}
}

// TestTargets: all targets select every linear module of each family, and each default target one of every layer.
func TestTargets(t *testing.T) {
	var configs []*transformers.Config
	for _, name := range causalCases(t) {
		configs = append(configs, must.Get(transformers.LoadCausalConfig(filepath.Join("testdata", "causal", name)))(t))
	}
	for _, name := range append(encoderCases(t), "bert") {
		configs = append(configs, must.Get(transformers.LoadConfig(filepath.Join("testdata", name)))(t))
	}
	for _, config := range configs {
		var names []string
		for _, l := range config.Linears() {
			names = append(names, l.Name)
		}
		targets := config.AllTargets()
		selected, err := lora.Match(names, targets)
		if diff := cmp.Diff(names, selected); err != nil || diff != "" || len(targets)*config.NumHiddenLayers != len(names) {
			t.Errorf("%s: %v select other modules than all (error %v)\n%s", config.ModelType, targets, err, diff)
		}
		for _, target := range config.DefaultTargets() {
			want := config.NumHiddenLayers
			if config.ModelType == "bert" && target == "output.dense" { // and attention.output.dense
				want *= 2
			}
			if some, err := lora.Match(names, []string{target}); len(some) != want {
				t.Errorf("%s: %s means %d modules of %d layers, %v", config.ModelType, target, len(some), config.NumHiddenLayers, err)
			}
		}
	}
}
