package gguf_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/safetensors"
)

func open(t *testing.T, path string) *gguf.File {
	t.Helper()
	return must.Open(gguf.Open(path))(t)
}

// Every type dequantises to the same bits as in the Python package gguf.
func TestDequantize(t *testing.T) {
	f := open(t, "testdata/types.gguf")
	want := must.Open(safetensors.Open("testdata/types.safetensors"))(t)
	expect.Require(t, len(f.Tensors()) == 14, "%d tensors, want one of each of 14 types", len(f.Tensors()))
	for _, tensor := range f.Tensors() {
		expect.True(t, tensor.Name == string(tensor.Type) && slices.Equal(tensor.Shape, []int64{3, 512}), "tensor %s has type %s and shape %v", tensor.Name, tensor.Type, tensor.Shape)
		values := must.Get(want.Float32s(tensor.Name))(t)
		got := f.Float32s(tensor)
		expect.Require(t, len(got) == len(values), "%s: %d values, want %d", tensor.Name, len(got), len(values))
		for i, v := range values {
			if math.Float32bits(got[i]) != math.Float32bits(v) {
				t.Errorf("%s: value %d is %g, want %g", tensor.Name, i, got[i], v)
				break
			}
		}
	}
}

func TestMetadata(t *testing.T) {
	f := open(t, "testdata/types.gguf")
	for key, want := range map[string]int64{
		"test.uint8": 200, "test.int8": -100, "test.uint16": 60000, "test.int16": -30000, "test.uint32": 4000000000,
		"test.int32": -2000000000, "test.uint64": 9000000000000000000, "test.int64": -9000000000000000000,
	} {
		n, ok, err := f.Int(key)
		expect.True(t, n == want && ok && err == nil, "%s: %d, %t, %v, want %d", key, n, ok, err, want)
	}
	for key, want := range map[string]float64{"test.float32": float64(float32(.1)), "test.float64": .1, "test.int8": -100} {
		x, ok, err := f.Float(key)
		expect.True(t, x == want && ok && err == nil, "%s: %g, %t, %v, want %g", key, x, ok, err, want)
	}
	b, ok, err := f.Bool("test.bool")
	expect.True(t, b && ok && err == nil, "test.bool: %t, %t, %v", b, ok, err)
	if s, ok, err := f.Text("test.string"); s != "Größe ▁" || !ok || err != nil {
		t.Errorf("test.string: %q, %t, %v", s, ok, err)
	}
	texts, _, err := f.Texts("test.strings")
	if diff := cmp.Diff([]string{"a", "", "▁b"}, texts); diff != "" || err != nil {
		t.Error(diff, err)
	}
	ints, _, err := f.Ints("test.ints")
	if diff := cmp.Diff([]int64{3, -1, 2}, ints); diff != "" || err != nil {
		t.Error(diff, err)
	}
	floats, _, err := f.Floats("test.floats")
	if diff := cmp.Diff([]float64{.5, -2}, floats); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, ok, err := f.Int("test.none"); ok || err != nil {
		t.Errorf("a key that is not there: %t, %v", ok, err)
	}
	for _, key := range []string{"test.string", "test.float32", "test.bool", "test.ints"} {
		_, _, err = f.Int(key)
		expect.True(t, err != nil, "%s was read as an integer", key)
	}
	large := filepath.Join(t.TempDir(), "large.gguf")
	must.Do(t, os.WriteFile(large, header(1, 1).put("large", uint32(10), uint64(1)<<63).tensor("w", 0, 0, 1).data(4), 0o644))
	n, _, err := open(t, large).Int("large")
	expect.True(t, err != nil, "2⁶³ was read as %d", n)
}

func TestSplit(t *testing.T) {
	whole := open(t, "testdata/types.gguf")
	for _, part := range []string{"split-00001-of-00002.gguf", "split-00002-of-00002.gguf"} {
		f := open(t, filepath.Join("testdata", part))
		expect.Same(t, "split-00001-of-00002.gguf", filepath.Base(f.Path()), "%s: the metadata is read from", part)
		names := map[string]string{}
		for _, tensor := range f.Tensors() {
			names[tensor.Name] = filepath.Base(tensor.Path)
			same, _ := whole.Tensor(tensor.Name)
			expect.True(t, slices.Equal(f.Float32s(tensor), whole.Float32s(same)[:512]), "%s: tensor %s differs from the one in one file", part, tensor.Name)
		}
		expect.Equal(t, map[string]string{"Q8_0": "split-00001-of-00002.gguf", "Q4_0": "split-00001-of-00002.gguf", "F16": "split-00002-of-00002.gguf"}, names)
	}
}

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
		got := gguf.Q4_K.Dequantize(data)
		expect.True(t, (math.Abs(float64(v)) != 1 || deviation(same, got) <= 1e-3) && (v != 0 || got[0] == 0), "%g became %g", v, got[0])
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
	diff := cmp.Diff(slices.Delete(slices.Clone(metadata), 2, 3), again)
	expect.True(t, diff == "" && err == nil, "%v %v", diff, err)
	n, _, _ := f.Int("a.negative")
	expect.True(t, n == -7, "a.negative is %d", n)
	for _, kind := range []gguf.Type{gguf.F16, gguf.Q5_0, gguf.F32} {
		tensor, ok := f.Tensor(string(kind))
		want, _ := kind.Quantize(values)
		expect.True(t, ok && tensor.Type == kind && slices.Equal(tensor.Shape, []int64{3, 64}) && bytes.Equal(f.Bytes(tensor), want), "%s: %+v", kind, tensor)
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
		expect.Fails(os.Stat(path))(t, "%s: a file was left", name)
	}
}

// A raw file is written field by field, valid or not.
type raw struct{ bytes.Buffer }

func (r *raw) put(values ...any) *raw {
	for _, v := range values {
		if s, ok := v.(string); ok {
			r.put(uint64(len(s)))
			r.WriteString(s)
			continue
		}
		if err := binary.Write(r, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	return r
}

// header starts a file.
func header(tensors, pairs uint64) *raw {
	r := &raw{}
	r.WriteString("GGUF")
	return r.put(uint32(3), tensors, pairs)
}

// tensor describes a tensor with dimensions dims, fastest first.
func (r *raw) tensor(name string, kind uint32, offset uint64, dims ...uint64) *raw {
	return r.put(name, uint32(len(dims)), dims, kind, offset)
}

// data ends the header and adds n bytes of data.
func (r *raw) data(n int) []byte {
	for r.Len()%32 != 0 {
		r.WriteByte(0)
	}
	return append(r.Bytes(), make([]byte, n)...)
}

func TestOpenRefuses(t *testing.T) {
	const u32, text, array = uint32(4), uint32(8), uint32(9)
	big := uint64(1) << 60
	for name, c := range map[string]struct {
		file []byte
		want []string // parts of the error
	}{
		"empty":                     {nil, []string{"0 bytes"}},
		"another format":            {append([]byte("PK\x03\x04"), make([]byte, 40)...), []string{"GGUF"}},
		"version 1":                 {append([]byte("GGUF\x01\x00\x00\x00"), make([]byte, 40)...), []string{"version 1"}},
		"big-endian":                {append([]byte("GGUF\x00\x00\x00\x03"), make([]byte, 40)...), []string{"big-endian"}},
		"2^60 tensors":              {header(big, 0).data(0), []string{"1152921504606846976 tensors"}},
		"2^60 pairs":                {header(0, big).data(0), []string{"1152921504606846976 metadata"}},
		"more tensors than there":   {header(1<<18, 0).data(64), []string{"tensor"}},
		"more pairs than there":     {header(0, 1<<16).Bytes(), []string{"metadata key 0"}},
		"key of 4 GiB":              {header(0, 1).put(uint64(4) << 30).data(64), []string{"metadata key 0", "4294967296"}},
		"string of 4 GiB":           {header(0, 1).put("general.name", text, uint64(4)<<30).data(64), []string{`"general.name"`, "4294967296"}},
		"array of 2^60":             {header(0, 1).put("a.b", array, u32, big).data(64), []string{`"a.b"`, "1152921504606846976"}},
		"array of 2^60 strings":     {header(0, 1).put("a.b", array, text, big).data(64), []string{`"a.b"`, "1152921504606846976"}},
		"array of arrays":           {header(0, 1).put("a.b", array, array, uint64(1), u32, uint64(0)).data(64), []string{`"a.b"`, "array of arrays"}},
		"unknown kind":              {header(0, 1).put("a.b", uint32(77), uint64(0)).data(64), []string{`"a.b"`, "77"}},
		"unknown kind of elements":  {header(0, 1).put("a.b", array, uint32(77), uint64(1), uint64(0)).data(64), []string{`"a.b"`, "77"}},
		"key twice":                 {header(0, 2).put("a.b", u32, u32, "a.b", u32, u32).data(0), []string{`"a.b"`, "twice"}},
		"empty key":                 {header(0, 1).put("", u32, u32).data(0), []string{"metadata key 0"}},
		"alignment of 3":            {header(0, 1).put("general.alignment", u32, uint32(3)).data(0), []string{"general.alignment", "3"}},
		"alignment of 0":            {header(0, 1).put("general.alignment", u32, uint32(0)).data(0), []string{"general.alignment", "0"}},
		"alignment that is a text":  {header(0, 1).put("general.alignment", text, "32").data(0), []string{"general.alignment", "string"}},
		"tensor twice":              {header(2, 0).tensor("w", 0, 0, 8).tensor("w", 0, 32, 8).data(64), []string{`"w"`, "twice"}},
		"unknown type":              {header(1, 0).tensor("w", 99, 0, 8).data(64), []string{`"w"`, "99"}},
		"unsupported type":          {header(1, 0).tensor("w", 16, 0, 256).data(512), []string{`"w"`, "IQ2_XXS", "Q4_K"}},
		"removed type":              {header(1, 0).tensor("w", 4, 0, 256).data(512), []string{`"w"`, "4"}},
		"no dimensions":             {header(1, 0).tensor("w", 0, 0).data(64), []string{`"w"`, "0 dimensions"}},
		"2^31 dimensions":           {header(1, 0).put("w", uint32(1)<<31).data(64), []string{`"w"`, "2147483648 dimensions"}},
		"dimension of 0":            {header(1, 0).tensor("w", 0, 0, 0).data(64), []string{`"w"`, "dimension of 0"}},
		"dimension of 2^60 twice":   {header(1, 0).tensor("w", 0, 0, big, big).data(64), []string{`"w"`, "2^60"}},
		"2^32 by 2^32":              {header(1, 0).tensor("w", 0, 0, 1<<32, 1<<32).data(64), []string{`"w"`, "2^60"}},
		"rows of half a block":      {header(1, 0).tensor("w", 2, 0, 48).data(64), []string{`"w"`, "48", "32"}},
		"offset outside":            {header(1, 0).tensor("w", 0, 1<<40, 8).data(64), []string{`"w"`, "1099511627776"}},
		"offset of 2^64 - 32":       {header(1, 0).tensor("w", 0, 1<<64-32, 8).data(64), []string{`"w"`, "outside"}},
		"offset not aligned":        {header(1, 0).tensor("w", 0, 4, 8).data(64), []string{`"w"`, "alignment 32"}},
		"data that ends early":      {header(1, 0).tensor("w", 0, 32, 8).data(63), []string{`"w"`, "cut short"}},
		"tensors over one another":  {header(2, 0).tensor("v", 0, 0, 16).tensor("w", 0, 32, 8).data(64), []string{`"v"`, `"w"`, "overlap"}},
		"part that stands alone":    {header(0, 1).put("split.count", uint32(2), uint16(2)).data(0), []string{"split.count", "2"}},
		"name of a tensor of 1 MiB": {header(1, 0).tensor(strings.Repeat("w", 1<<20), 0, 0, 8).data(64), []string{"tensor 0", "1048576"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "m.gguf")
			must.Do(t, os.WriteFile(path, c.file, 0o644))
			f, err := gguf.Open(path)
			if err == nil {
				f.Close()
				t.Fatal("no error")
			}
			expect.Contains(t, err.Error(), append(c.want, path)...)
		})
	}
}

// A file truncated at any byte is an error, never a panic.
func TestOpenCut(t *testing.T) {
	data := must.Get(os.ReadFile("testdata/split-00001-of-00002.gguf"))(t)
	path := filepath.Join(t.TempDir(), "m.gguf")
	for n := range data {
		must.Do(t, os.WriteFile(path, data[:n], 0o644))
		if f, err := gguf.Open(path); err == nil {
			f.Close()
			t.Fatalf("%d of %d bytes were accepted", n, len(data))
		}
	}
}

func TestOpenRefusesNonFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe.gguf")
	must.Do(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{dir, pipe, filepath.Join(dir, "none.gguf"), "testdata/types-00001-of-00002.gguf", filepath.Join(dir, "x-00002-of-00001.gguf")} {
		if f, err := gguf.Open(path); err == nil {
			f.Close()
			t.Errorf("%s was opened", path)
		} else if !strings.Contains(err.Error(), filepath.Base(path)[:1]) {
			t.Errorf("%q does not name %s", err, path)
		}
	}
}

// Opening a file with one large array allocates no memory for it.
func TestOpenIsFrugal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	must.Do(t, os.WriteFile(path, header(0, 1).put("a.b", uint32(9), uint32(0), uint64(64<<20)).data(64<<20), 0o644))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := gguf.Open(path)
	runtime.ReadMemStats(&after)
	must.Do(t, err)
	defer f.Close()
	used := after.TotalAlloc - before.TotalAlloc
	expect.True(t, used <= 1<<20, "opening took %d bytes", used)
}
