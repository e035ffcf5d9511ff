package gguf_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/gguf"
)

// Values quantise to the same bytes as in the Python package gguf.
func TestQuantize(t *testing.T) {
	f := open(t, "testdata/quantized.gguf")
	plain, _ := f.Tensor("F32")
	values := f.Float32s(plain)
	for _, tensor := range f.Tensors() {
		got := must.Get(tensor.Type.Quantize(values))(t)
		if want := f.Bytes(tensor); !bytes.Equal(got, want) {
			at := slices.IndexFunc(got, func(byte) bool { return true })
			for at < len(got) && got[at] == want[at] {
				at++
			}
			t.Errorf("%s: byte %d is %d, want %d", tensor.Type, at, got[at], want[at])
		}
	}
}

// deviation is the root mean square error relative to that of the values.
func deviation(values, other []float32) float64 {
	e, n := 0.0, 0.0
	for i, v := range values {
		e += math.Pow(float64(v-other[i]), 2)
		n += float64(v) * float64(v)
	}
	return math.Sqrt(e / n)
}

// The Python package gguf cannot write Q4_K, so there is nothing to compare: it must be more accurate than the other
// 4-bit types, since it searches for its scales, and keep blocks of equal values exactly.
func TestQuantizeK(t *testing.T) {
	f := open(t, "testdata/quantized.gguf")
	plain, _ := f.Tensor("F32")
	values := f.Float32s(plain)
	errorOf := func(kind gguf.Type) float64 {
		data := must.Get(kind.Quantize(values))(t)
		return deviation(values, kind.Dequantize(data))
	}
	k, q0, q1 := errorOf(gguf.Q4_K), errorOf(gguf.Q4_0), errorOf(gguf.Q4_1)
	expect.True(t, k < q0 && k < 0.93*q1, "relative error %.4f of Q4_K, %.4f of Q4_0, %.4f of Q4_1", k, q0, q1)
	for _, v := range []float32{0, 1, -1, 1e-30, 3e38, -3e38} {
		same := slices.Repeat([]float32{v}, 256)
		data := must.Get(gguf.Q4_K.Quantize(same))(t)
		if got := gguf.Q4_K.Dequantize(data); math.Abs(float64(v)) == 1 && deviation(same, got) > 1e-3 || v == 0 && got[0] != 0 {
			t.Errorf("%g became %g", v, got[0])
		}
	}
}

func TestQuantizeRefuses(t *testing.T) {
	for kind, n := range map[gguf.Type]int{gguf.Q8_0: 33, gguf.Q4_K: 32, gguf.Q6_K: 256} {
		expect.Failure(kind.Quantize(make([]float32, n)))(t, string(kind))
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	metadata := []gguf.Pair{
		{"a.text", "Größe"}, {"a.number", uint32(7)}, {"a.negative", int32(-7)}, {"a.real", float32(.5)}, {"a.truth", true},
		{"a.texts", []string{"x", ""}}, {"a.ints", []int32{-1, 2}}, {"a.reals", []float32{.25}},
	}
	values := make([]float32, 3*64)
	for i := range values {
		values[i] = float32(i) / 8
	}
	source := func(kind gguf.Type) gguf.Source {
		return gguf.Source{Name: string(kind), Type: kind, Shape: []int64{3, 64}, Data: func() ([]byte, error) { return kind.Quantize(values) }}
	}
	must.Do(t, gguf.Write(path, metadata, []gguf.Source{source(gguf.F16), source(gguf.Q5_0), source(gguf.F32)}))
	f := open(t, path)
	again, err := f.Pairs(func(key string) bool { return key != "a.negative" })
	if diff := cmp.Diff(slices.Delete(slices.Clone(metadata), 2, 3), again); diff != "" || err != nil {
		t.Error(diff, err)
	}
	n, _, _ := f.Int("a.negative")
	expect.True(t, n == -7, "a.negative is %d", n)
	for _, kind := range []gguf.Type{gguf.F16, gguf.Q5_0, gguf.F32} {
		tensor, ok := f.Tensor(string(kind))
		want, _ := kind.Quantize(values)
		if !ok || tensor.Type != kind || !slices.Equal(tensor.Shape, []int64{3, 64}) || !bytes.Equal(f.Bytes(tensor), want) {
			t.Errorf("%s: %+v", kind, tensor)
		}
	}
}

// A failed write leaves no file.
func TestWriteFails(t *testing.T) {
	full := errors.New("no data")
	for name, s := range map[string]gguf.Source{
		"an error of the data": {Name: "w", Type: gguf.F32, Shape: []int64{2}, Data: func() ([]byte, error) { return nil, full }},
		"too little data":      {Name: "w", Type: gguf.F32, Shape: []int64{2}, Data: func() ([]byte, error) { return make([]byte, 7), nil }},
		"half a block":         {Name: "w", Type: gguf.Q8_0, Shape: []int64{2, 16}, Data: func() ([]byte, error) { return nil, nil }},
	} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		expect.Error(t, gguf.Write(path, nil, []gguf.Source{s}), `"w"`)
		_, err := os.Stat(path)
		expect.True(t, err != nil, "%s: a file was left", name)
	}
}
