package safetensors_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// rawFile is a file with the given header and data, valid or not.
func rawFile(header, data string) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func writeRaw(t testing.TB, raw []byte) string {
	t.Helper()
	return must.File(t, "x.safetensors", string(raw))
}

// entry is one header member.
func entry(name, dtype, shape, offsets string) string {
	return `"` + name + `":{"dtype":"` + dtype + `","shape":` + shape + `,"data_offsets":` + offsets + `}`
}

func TestOpen(t *testing.T) {
	header := `{"__metadata__":{"format":"pt","note":"hi"},` +
		entry("b", "I64", "[1]", "[4,12]") + "," + entry("scalar", "F32", "[]", "[0,4]") + "," +
		entry("none", "F16", "[3,0]", "[12,12]") + "}  "
	path := writeRaw(t, rawFile(header, "\x00\x00\x80\x3f"+"\x07\x00\x00\x00\x00\x00\x00\x00"))
	f := must.Open(safetensors.Open(path))(t)
	expect.Equal(t, []string{"scalar", "b", "none"}, f.Names())
	expect.Equal(t, map[string]string{"format": "pt", "note": "hi"}, f.Metadata())
	got, _ := f.Lookup("b")
	expect.Equal(t, safetensors.Entry{Name: "b", DType: "I64", Shape: []int64{1}, Offset: int64(8 + len(header) + 4), Size: 8}, got)
	v, err := f.Float32s("scalar")
	expect.True(t, err == nil && v[0] == 1, "scalar = %v, %v", v, err)
	v, err = f.Float32s("none")
	expect.True(t, err == nil && len(v) == 0, "none = %v, %v", v, err)
	b, err := f.Bytes("b")
	expect.True(t, err == nil && string(b) == "\x07\x00\x00\x00\x00\x00\x00\x00", "b = %q, %v", b, err)
	expect.Failure(f.Float32s("b"))(t, `tensor "b": cannot convert I64`)
	expect.Failure(f.Bytes("c"))(t, `no tensor "c"`)
}

func TestOpenRefuses(t *testing.T) {
	four := "\x00\x00\x00\x00"
	one := func(dtype, shape, offsets string) []byte {
		return rawFile("{"+entry("w", dtype, shape, offsets)+"}", four)
	}
	for _, tt := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"empty", nil, "too few"},
		{"no header", []byte("1234567"), "too few"},
		{"huge header", []byte("\xff\xff\xff\xff\xff\xff\xff\xff{}"), "maximum 100000000"},
		{"header past the end", []byte("\x03\x00\x00\x00\x00\x00\x00\x00{}"), "truncated"},
		{"empty header", rawFile("", ""), "unexpected end of"},
		{"an array", rawFile("[]", ""), `want "{"`},
		{"text after", rawFile("{}x", ""), "after the JSON object"},
		{"second object", rawFile("{}{}", ""), "after the JSON object"},
		{"deep", rawFile(`{"w":`+strings.Repeat("[", 100_000)+strings.Repeat("]", 100_000)+"}", ""), `tensor "w": got [`},
		{"deep metadata", rawFile(`{"__metadata__":{"a":`+strings.Repeat(`{"a":`, 20_000), ""), `"a": got {, want a string`},
		{"metadata number", rawFile(`{"__metadata__":{"a":1}}`, ""), "want a string"},
		{"name twice", rawFile("{"+entry("w", "U8", "[0]", "[0,0]")+","+entry("w", "U8", "[0]", "[0,0]")+"}", ""), `duplicate key "w"`},
		{"escaped twice", rawFile("{"+entry("w", "U8", "[0]", "[0,0]")+","+entry(`\u0077`, "U8", "[0]", "[0,0]")+"}", ""), `duplicate key "w"`},
		{"field twice", rawFile(`{"w":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}`, ""), `duplicate key "dtype"`},
		{"field missing", rawFile(`{"w":{"dtype":"U8","shape":[0]}}`, ""), `tensor "w": a field is missing`},
		{"field unknown", rawFile(`{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1}}`, ""), `unknown field "x"`},
		{"bad UTF-8", rawFile(`{"`+"\xff"+`":{}}`, ""), "UTF-8"},
		{"unknown dtype", one("F33", "[1]", "[0,4]"), `tensor "w": unknown dtype "F33"`},
		{"negative dimension", one("F32", "[-1]", "[0,4]"), `tensor "w": shape: -1 is not`},
		{"fraction", one("F32", "[1.0]", "[0,4]"), "1.0 is not"},
		{"past int64", one("F32", "[9223372036854775808]", "[0,4]"), "is not an integer"},
		{"overflow to fit", one("F32", "[4611686018427387905]", "[0,4]"), "larger than 2^63"},
		{"overflow of product", one("U8", "[4294967296,4294967296,4]", "[0,4]"), "larger than 2^63"},
		{"null shape", one("F32", "null", "[0,4]"), "got null"},
		{"size differs", one("F32", "[2]", "[0,4]"), `tensor "w": F32 [2] needs 8 bytes, but data_offsets [0, 4] give 4`},
		{"offsets reversed", one("F32", "[1]", "[4,0]"), "data_offsets [4, 0]"},
		{"offsets outside", one("F32", "[2]", "[0,8]"), "truncated"},
		{"three offsets", one("F32", "[1]", "[0,4,4]"), "3 numbers"},
		{"hole", rawFile("{"+entry("w", "U8", "[1]", "[3,4]")+"}", four), "3 unused bytes"},
		{"overlap", rawFile("{"+entry("v", "U8", "[3]", "[0,3]")+","+entry("w", "U8", "[2]", "[2,4]")+"}", four), `tensor "w": its data overlaps`},
		{"data left over", one("U8", "[3]", "[0,3]"), "1 bytes of data belong to no tensor"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := writeRaw(t, tt.raw)
			_, err := safetensors.Open(path)
			expect.Require(t, err != nil, "no error")
			expect.True(t, strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), path), "error %q, want it to contain %q and the path", err, tt.want)
			expect.True(t, len(err.Error()) <= 400+len(path) && !strings.ContainsAny(err.Error(), "\n\r"), "not one short line: %q", err)
		})
	}
}

func TestOpenRefusesFolder(t *testing.T) {
	expect.Failure(safetensors.Open(t.TempDir()))(t, "not a regular file")
}

func TestCutAtEveryByte(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "whole.safetensors")
	must.Do(t, safetensors.Write(path, []safetensors.Tensor{
		safetensors.FromFloat32s("encoder.weight", []int64{2, 3}, []float32{1, 2, 3, 4, 5, 6}),
		safetensors.FromInt64s("steps", nil, []int64{7}),
		{Name: "flags", DType: safetensors.Bool, Shape: []int64{3}, Data: []byte{0, 1, 0}},
	}, nil))
	raw := must.Get(os.ReadFile(path))(t)
	cut := filepath.Join(dir, "cut.safetensors")
	for n := range raw {
		must.Do(t, os.WriteFile(cut, raw[:n], 0o600))
		_, err := safetensors.Open(cut)
		expect.Require(t, err != nil && strings.Contains(err.Error(), cut) && !strings.Contains(err.Error(), "\n"), "cut at %d of %d bytes: %v", n, len(raw), err)
	}
}

func TestFloat32sWidens(t *testing.T) {
	u16 := func(v ...uint16) []byte {
		var b []byte
		for _, x := range v {
			b = binary.LittleEndian.AppendUint16(b, x)
		}
		return b
	}
	inf := float32(math.Inf(1))
	negZero := math.Float32frombits(1 << 31)
	for _, tt := range []struct {
		dtype safetensors.DType
		data  []byte
		want  []float32
	}{
		// binary16: one, smallest and largest subnormal, smallest and largest normal.
		{safetensors.F16, u16(0x3c00, 0x0001, 0x03ff, 0x0400, 0x7bff, 0xc000, 0x8001, 0x7c00, 0xfc00, 0x8000),
			[]float32{1, 0x1p-24, 0x3ffp-24, 0x1p-14, 65504, -2, -0x1p-24, inf, -inf, negZero}},
		{safetensors.BF16, u16(0x3f80, 0xbf80, 0x0001, 0x7f80, 0x8000, 0x4049),
			[]float32{1, -1, 0x1p-133, inf, negZero, 3.140625}},
	} {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		tensor := safetensors.Tensor{Name: "x", DType: tt.dtype, Shape: []int64{int64(len(tt.want))}, Data: tt.data}
		must.Do(t, safetensors.Write(path, []safetensors.Tensor{tensor}, nil))
		fromFile := must.Get(must.Open(safetensors.Open(path))(t).Float32s("x"))(t)
		fromTensor := must.Get(tensor.Float32s())(t)
		for i, want := range tt.want {
			expect.True(t, math.Float32bits(fromFile[i]) == math.Float32bits(want) && math.Float32bits(fromTensor[i]) == math.Float32bits(want),
				"%s element %d = %v from the file, %v from the tensor, want %v", tt.dtype, i, fromFile[i], fromTensor[i], want)
		}
	}
	nan := safetensors.Tensor{Name: "x", DType: safetensors.F16, Shape: []int64{1}, Data: u16(0x7e00)}
	if v, err := nan.Float32s(); err != nil || !math.IsNaN(float64(v[0])) {
		t.Errorf("NaN = %v, %v", v, err)
	}
}

// A tensor longer than one read must be complete and in order.
func TestFloat32sAcrossReads(t *testing.T) {
	want := make([]float32, 200_001)
	for i := range want {
		want[i] = float32(i)
	}
	path := filepath.Join(t.TempDir(), "x.safetensors")
	must.Do(t, safetensors.Write(path, []safetensors.Tensor{
		safetensors.FromFloat32s("a", []int64{1}, []float32{-1}),
		safetensors.FromFloat32s("x", []int64{int64(len(want))}, want),
	}, nil))
	f := must.Open(safetensors.Open(path))(t)
	expect.True(t, cmp.Equal(want, must.Get(f.Float32s("x"))(t)), "the elements differ")
	// The file may shrink while it is open.
	must.Do(t, os.Truncate(path, 1000))
	expect.Failure(f.Float32s("x"))(t, `reading tensor "x"`)
}

func FuzzOpen(f *testing.F) {
	f.Add(rawFile("{}", ""))
	f.Add(rawFile("{"+entry("w", "F32", "[1]", "[0,4]")+"}", "\x00\x00\x80\x3f"))
	f.Add(rawFile(`{"__metadata__":{"format":"pt"},`+entry("w", "BF16", "[2,1]", "[0,4]")+","+entry("e", "U8", "[0]", "[4,4]")+"}   ", "abcd"))
	f.Add(rawFile("{"+entry("w", "F32", "[4611686018427387905]", "[0,4]")+"}", "abcd"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := writeRaw(t, raw)
		file, err := safetensors.Open(path)
		if err != nil {
			expect.True(t, !strings.Contains(err.Error(), "\n"), "more than one line: %q", err)
			return
		}
		defer file.Close()
		covered := make([]bool, len(raw))
		for _, name := range file.Names() {
			e, ok := file.Lookup(name)
			expect.Require(t, ok, "no entry for %q", name)
			expect.Same(t, string(raw[e.Offset:e.Offset+e.Size]), string(must.Get(file.Bytes(name))(t)), "%q reads other bytes", name)
			for i := e.Offset; i < e.Offset+e.Size; i++ {
				expect.Require(t, !covered[i], "byte %d belongs to two tensors", i)
				covered[i] = true
			}
		}
		start := 8 + int(binary.LittleEndian.Uint64(raw))
		for i := start; i < len(raw); i++ {
			expect.Require(t, covered[i], "byte %d belongs to no tensor", i)
		}
	})
}

// The number of empty tensors in a header is bounded.
func TestOpenRefusesTooManyTensors(t *testing.T) {
	var header strings.Builder
	for i := range 1<<18 + 1 {
		header.WriteString("," + entry(strconv.Itoa(i), "F32", "[0]", "[0,0]"))
	}
	expect.Failure(safetensors.Open(writeRaw(t, rawFile("{"+header.String()[1:]+"}", ""))))(t, "more than 262144 tensors")
}

const (
	shard1 = "model-00001-of-00002.safetensors"
	shard2 = "model-00002-of-00002.safetensors"
)

// writeShards writes a (in the first shard) and b, c (in the second) with an index.
func writeShards(t *testing.T, index string) string {
	t.Helper()
	dir := t.TempDir()
	one := func(name string, v float32) safetensors.Tensor {
		return safetensors.FromFloat32s(name, []int64{1}, []float32{v})
	}
	for file, tensors := range map[string][]safetensors.Tensor{
		shard1: {one("a", 1)},
		shard2: {one("b", 2), one("c", 3)},
	} {
		must.Do(t, safetensors.Write(filepath.Join(dir, file), tensors, nil))
	}
	must.Write(t, filepath.Join(dir, "model.safetensors.index.json"), index)
	return dir
}

func TestOpenModelSharded(t *testing.T) {
	dir := writeShards(t, `{"metadata":{"total_size":12,"more":[1,{"x":null}]},"weight_map":{"c":"`+shard2+`","a":"`+shard1+`","b":"`+shard2+`"}}`)
	m := must.Open(safetensors.OpenModel(dir))(t)
	expect.Equal(t, []string{"a", "b", "c"}, m.Names())
	path, e, ok := m.Entry("c")
	expect.True(t, ok && path == filepath.Join(dir, shard2) && e.Size == 4, "c is at %s, %+v, %v", path, e, ok)
	v, err := m.Float32s("c")
	expect.True(t, err == nil && v[0] == 3, "c = %v, %v", v, err)
	_, _, ok = m.Entry("d")
	expect.True(t, !ok, "d exists")
	expect.Failure(m.Float32s("d"))(t, `no tensor "d"`)
}

func TestOpenModelPrefersSingle(t *testing.T) {
	dir := writeShards(t, "nonsense")
	must.Write(t, filepath.Join(dir, "pytorch_model.bin"), "nonsense")
	must.Do(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), []safetensors.Tensor{safetensors.FromInt64s("x", nil, []int64{1})}, nil))
	m := must.Open(safetensors.OpenModel(dir))(t)
	expect.Equal(t, []string{"x"}, m.Names())
	expect.Same(t, filepath.Join(dir, "model.safetensors"), m.Path(), "path")
}

func TestOpenModelRefuses(t *testing.T) {
	weightMap := func(a, b, c string) string {
		return `{"weight_map":{"a":"` + a + `","b":"` + b + `","c":"` + c + `"}}`
	}
	for _, tt := range []struct{ name, index, want string }{
		{"not JSON", "{", "unexpected end of"},
		{"no map", `{"metadata":{}}`, "weight_map is missing"},
		{"text after", weightMap(shard1, shard2, shard2) + "x", "after the JSON object"},
		{"not UTF-8", "{\"\xff\":1}", "UTF-8"},
		{"name twice", `{"weight_map":{"a":"` + shard1 + `","a":"` + shard2 + `"}}`, `duplicate key "a"`},
		{"file missing", weightMap("gone.safetensors", shard2, shard2), "gone.safetensors"},
		{"tensor not in the file", `{"weight_map":{"a":"` + shard1 + `","b":"` + shard2 + `","c":"` + shard2 + `","d":"` + shard1 + `"}}`, `tensor "d" is missing in ` + shard1},
		{"tensor elsewhere", weightMap(shard1, shard1, shard2), `tensor "b" is in ` + shard2 + ", but weight_map says " + shard1},
		{"tensor left out", `{"weight_map":{"a":"` + shard1 + `","b":"` + shard2 + `"}}`, `tensor "c" of ` + shard2 + " is missing in weight_map"},
		{"parent", weightMap("../"+shard1, shard2, shard2), "same folder"},
		{"backslash", weightMap(`..\\`+shard1, shard2, shard2), "same folder"},
		{"other kind", weightMap("model.bin", shard2, shard2), "same folder"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := writeShards(t, tt.index)
			_, err := safetensors.OpenModel(dir)
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), dir) && !strings.Contains(err.Error(), "\n"),
				"error %v, want %q", err, tt.want)
		})
	}
}

func TestOpenModelTensorInTwoFiles(t *testing.T) {
	dir := writeShards(t, `{"weight_map":{"a":"`+shard1+`","b":"`+shard2+`","c":"`+shard2+`"}}`)
	b := safetensors.FromFloat32s("b", []int64{1}, []float32{9})
	a := safetensors.FromFloat32s("a", []int64{1}, []float32{1})
	must.Do(t, safetensors.Write(filepath.Join(dir, shard1), []safetensors.Tensor{a, b}, nil))
	expect.Failure(safetensors.OpenModel(dir))(t, `tensor "b" is in `+shard1)
}

func TestOpenModelNoWeights(t *testing.T) {
	dir := t.TempDir()
	expect.Failure(safetensors.OpenModel(dir))(t, dir+" has no weights; want model.safetensors")
}
