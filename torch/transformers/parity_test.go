package transformers_test

import (
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// tolerance is how far results of transformers and PEFT, which scripts/fixtures wrote, may be from ours.
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

// adapt adds the fixture's adapters and returns their matrices by name.
func (f fixture) adapt(t *testing.T) map[string]*torch.Var {
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
		must.Do(t, f.model.Encoder.Adapt(linear.Layer, pair[0], pair[1], nil, 3.0/2))
	}
	return params
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

// TestDropoutDoesNotDependOnBatch: a sequence's mask is the same in any batch, differs between keys, and preserves the
// expectation.
func TestDropoutDoesNotDependOnBatch(t *testing.T) {
	f := open(t, "encoders/bert")
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
	f := open(t, "encoders/bert")
	expect.Failure(transformers.Load(filepath.Join("testdata", "encoders", "bert"), "int8"))(t, "int8")
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
