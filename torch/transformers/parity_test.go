package transformers_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// scripts/fixtures/encoder.py writes the fixtures: results of transformers and PEFT.
const tolerance = 1e-4

type fixture struct {
	model     *transformers.Model
	expected  *safetensors.File
	sequences [][]int32
	labels    []int64
}

func open(t *testing.T, name string) fixture {
	t.Helper()
	torchtest.NoLeaks(t)
	dir := filepath.Join("testdata", name)
	model := must.Open(transformers.Load(dir, ""))(t)
	expected := must.Open(safetensors.Open(filepath.Join(dir, "expected.safetensors")))(t)
	f := fixture{model: model, expected: expected, labels: ints(t, expected, "labels")}
	tokens := ints(t, expected, "tokens")
	for _, n := range ints(t, expected, "lengths") {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(tokens[i])
		}
		tokens = tokens[n:]
		f.sequences = append(f.sequences, ids)
	}
	return f
}

// ints reads an I64 tensor.
func ints(t *testing.T, file *safetensors.File, name string) []int64 {
	t.Helper()
	data := must.Get(file.Bytes(name))(t)
	values := make([]int64, len(data)/8)
	for i := range values {
		for b := 7; b >= 0; b-- {
			values[i] = values[i]<<8 | int64(data[8*i+b])
		}
	}
	return values
}

func (f fixture) want(t *testing.T, name string) []float32 {
	t.Helper()
	return must.Get(f.expected.Float32s(name))(t)
}

func TestHiddenStatesEqualTransformers(t *testing.T) {
	for _, name := range []string{"bert", "bert_odd"} {
		t.Run(name, func(t *testing.T) {
			f := open(t, name)
			f.adapt(t) // it is off
			var packed, single []float32
			torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
				hidden, _ := s.Hidden(f.model.Encoder, torch.Pack(f.sequences), torch.Pass{})
				packed = s.Read(hidden)
				for _, ids := range f.sequences {
					hidden, _ := s.Hidden(f.model.Encoder, torch.Pack([][]int32{ids}), torch.Pass{})
					single = append(single, s.Read(hidden)...)
				}
			})
			want := f.want(t, "hidden")
			torchtest.Near(t, packed, want, tolerance, "packed: hidden states")
			torchtest.Near(t, single, packed, 1e-5, "packed and one by one")
		})
	}
}

// adapt adds the fixture's adapters and returns their matrices by name.
func (f fixture) adapt(t *testing.T) map[string]*torch.Var {
	t.Helper()
	return f.adaptFrom(t, 6.0/4)
}

func (f fixture) adaptFrom(t *testing.T, scale float64) map[string]*torch.Var {
	t.Helper()
	params := map[string]*torch.Var{}
	for _, linear := range f.model.Config.Linears() {
		var pair [2]*torch.Var
		for i, matrix := range []string{"lora_A", "lora_B"} {
			key := linear.Name + "." + matrix + ".weight"
			entry, ok := f.expected.Lookup(key)
			expect.Require(t, ok, "no %s in the fixture", key)
			v := must.Open(torch.Parameter(f.want(t, key), entry.Shape...))(t)
			params[key], pair[i] = v, v
		}
		must.Do(t, f.model.Encoder.Adapt(linear.Layer, pair[0], pair[1], nil, scale))
	}
	return params
}

func (f fixture) head(t *testing.T) (weight, bias *torch.Var) {
	t.Helper()
	entry, _ := f.expected.Lookup("classifier.weight")
	weight = must.Open(torch.Constant(f.want(t, "classifier.weight"), entry.Shape...))(t)
	bias = must.Open(torch.Constant(f.want(t, "classifier.bias"), entry.Shape[0]))(t)
	return weight, bias
}

// compareGradients compares the gradients of parameters with those of the fixture.
func compareGradients(t *testing.T, s *torch.Scope, params map[string]*torch.Var, want func(t *testing.T, name string) []float32) {
	t.Helper()
	for key, v := range params {
		if grad, ok := s.Grad(v); !ok {
			t.Errorf("%s has no gradient", key)
		} else if e := torchtest.RelativeError(s.Read(grad), want(t, "grad."+key)); !(e <= tolerance) {
			t.Errorf("gradient of %s: relative error %g", key, e)
		}
	}
}

func TestLogitsAndAdapterGradientsEqualPEFT(t *testing.T) {
	for _, name := range []string{"bert", "bert_odd"} {
		t.Run(name, func(t *testing.T) {
			f := open(t, name)
			params := f.adapt(t)
			weight, bias := f.head(t)
			torchtest.Do(t, torch.Train, func(s *torch.Scope) {
				hidden, cu := s.Hidden(f.model.Encoder, torch.Pack(f.sequences), torch.Pass{Adapter: true})
				logits := s.Linear(s.SegmentMean(hidden, cu), weight.T(), bias.T())
				picked := s.Pick(s.LogSoftmax(logits), s.Ints(f.labels, int64(len(f.labels))))
				loss := s.Scale(s.Sum(picked), -1/float64(len(f.labels)))
				torchtest.Near(t, s.Read(logits), f.want(t, "adapted_logits"), tolerance, "logits")
				torchtest.Near(t, s.Read(loss), f.want(t, "loss"), tolerance, "loss")
				s.Backward(loss)
				compareGradients(t, s, params, f.want)
			})
		})
	}
}

func TestFamilyPoolingEqualsSequenceClassification(t *testing.T) {
	for _, name := range []string{"bert", "bert_odd"} {
		f := open(t, name)
		weight, bias := f.head(t)
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			packed := torch.Pack(f.sequences)
			hidden, _ := s.Hidden(f.model.Encoder, packed, torch.Pass{})
			firsts := make([]int64, packed.Len())
			for i := range firsts {
				firsts[i] = int64(packed.CuSeqlens[i])
			}
			pooled := s.Tanh(s.FrozenLinear(s.Rows(hidden, s.Ints(firsts, int64(len(firsts)))), f.model.Pooler.Weight.T(), f.model.Pooler.Bias.T()))
			logits := s.Linear(pooled, weight.T(), bias.T())
			torchtest.Near(t, s.Read(logits), f.want(t, "family_logits"), tolerance, fmt.Sprintf("%s: logits", name))
		})
	}
}

// TestDropoutDoesNotDependOnBatch: a sequence's mask is the same in any batch, differs between keys, and preserves the
// expectation.
func TestDropoutDoesNotDependOnBatch(t *testing.T) {
	f := open(t, "bert")
	f.adapt(t)
	const p = 0.5
	run := func(s *torch.Scope, sequences [][]int32, keys ...uint64) []float32 {
		hidden, _ := s.Hidden(f.model.Encoder, torch.Pack(sequences), torch.Pass{Adapter: true, Dropout: torch.Dropout{P: p, Keys: keys}})
		return s.Read(hidden)
	}
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		long := f.sequences[3]
		alone := run(s, [][]int32{long}, 11)
		batched := run(s, [][]int32{f.sequences[1], long}, 5, 11)
		d := torchtest.MaxDiff(alone, batched[len(batched)-len(alone):])
		expect.True(t, d <= 1e-5, "the same key gave another mask in a batch: %g", d)
		expect.True(t, torchtest.MaxDiff(alone, run(s, [][]int32{long}, 12)) >= 1e-3, "two keys gave one mask")
	})
}

func TestInputsOutOfRangeAreErrors(t *testing.T) {
	f := open(t, "bert")
	expect.Failure(transformers.Load(filepath.Join("testdata", "bert"), "int8"))(t, "int8")
	for _, tc := range map[string]struct {
		packed torch.Packed
		want   string
	}{
		"token":    {torch.Pack([][]int32{{1, 101}}), "tokens: 101 at 1"},
		"negative": {torch.Pack([][]int32{{-1}}), "tokens: -1 at 0"},
		"too long": {torch.Pack([][]int32{make([]int32, 41)}), "positions: 40 at 40"},
		"borders":  {torch.Packed{Tokens: []int64{1, 2}, Positions: []int64{0, 1}, CuSeqlens: []int32{0, 3}}, "cu_seqlens must run from 0 to 2"},
		"falling":  {torch.Packed{Tokens: []int64{1, 2}, Positions: []int64{0, 1}, CuSeqlens: []int32{0, 5, 2}}, "cu_seqlens falls"},
	} {
		err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			s.Hidden(f.model.Encoder, tc.packed, torch.Pass{Adapter: true})
			return nil
		})
		expect.Error(t, err, tc.want)
	}
}
