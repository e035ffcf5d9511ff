package pickle_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/pickle"
)

// Pieces of pickles.
const (
	begin       = "\x80\x02"
	rebuild     = "ctorch._utils\n_rebuild_tensor_v2\n"
	parameter   = "ctorch._utils\n_rebuild_parameter\n"
	ordered     = "ccollections\nOrderedDict\n"
	no          = "\x89"
	emptyHooks  = ordered + ")R"
	halfStorage = "ctorch\nHalfStorage\n"
)

func word(s string) string {
	return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
}

func number(n int64) string {
	return "\x8a\x08" + string(binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

func numbers(list ...int64) string {
	text := "("
	for _, n := range list {
		text += number(n)
	}
	return text + "t"
}

// in is the storage of a tensor.
func in(kind, key string, numel int64) string {
	return "(" + word("storage") + kind + word(key) + word("cpu") + number(numel) + "tQ"
}

func tensor(storage string, offset int64, shape, strides string) string {
	return rebuild + "(" + storage + number(offset) + shape + strides + no + emptyHooks + "tR"
}

// plain is a tensor [2, 3] with the six float16 values of record 0.
var plain = tensor(in(halfStorage, "0", 6), 0, numbers(2, 3), numbers(3, 1))

func dictOf(items ...string) string { return begin + "}(" + strings.Join(items, "") + "u." }

type record struct {
	name, data string
	method     uint16
}

func archive(t testing.TB, records ...record) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, r := range records {
		must.Get(must.Get(w.CreateHeader(&zip.FileHeader{Name: r.name, Method: r.method}))(t).Write([]byte(r.data)))(t)
	}
	must.Do(t, w.Close())
	return b.Bytes()
}

// file is an archive with this program and one record of six float16 values.
func file(t testing.TB, program string, more ...record) []byte {
	t.Helper()
	return archive(t, append([]record{{name: "m/data.pkl", data: program}, {name: "m/data/0", data: "aabbccddeeff"}}, more...)...)
}

func read(data []byte) ([]pickle.Tensor, error) {
	return pickle.Read(bytes.NewReader(data), int64(len(data)))
}

func TestRead(t *testing.T) {
	data := file(t, dictOf(
		word("a"), plain,
		word("turned"), parameter+"("+tensor(in(halfStorage, "0", 6), 1, numbers(2, 2), numbers(1, 3))+"\x88"+emptyHooks+"tR",
		word("scalar"), tensor(in(halfStorage, "0", 6), 5, ")", ")"),
		word("none"), tensor(in(halfStorage, "0", 6), 6, numbers(0, 9), numbers(9, 1)),
		word("odd"), tensor(in(halfStorage, "0", 6), 0, numbers(0, 3, 2), numbers(1<<30, 1<<30, 7)),
	))
	got := must.Get(read(data))(t)
	start := int64(bytes.Index(data, []byte("aabbcc")))
	want := []pickle.Tensor{
		{Name: "a", DType: "F16", Shape: []int64{2, 3}, Offset: start},
		{Name: "turned", DType: "F16", Shape: []int64{2, 2}, Strides: []int64{1, 3}, Offset: start + 2},
		{Name: "scalar", DType: "F16", Shape: []int64{}, Offset: start + 10},
		{Name: "none", DType: "F16", Shape: []int64{0, 9}, Offset: start + 12},
		{Name: "odd", DType: "F16", Shape: []int64{0, 3, 2}, Offset: start},
	}
	expect.Equal(t, want, got)
}

// TestReadProgram: the instructions of a state dict with attributes, with memo and short numbers.
func TestReadProgram(t *testing.T) {
	odd := "(G\x3f\xf0\x00\x00\x00\x00\x00\x00K\x01N\x85M\x01\x00J\xff\xff\xff\xff\x86\x88\x89)\x87t"
	program := begin + ordered + ")Rq\x00(" + word("a") + "q\x01" + plain + "r\x02\x00\x00\x00" + word("b") + "j\x02\x00\x00\x00u" +
		"}" + word("_metadata") + ordered + ")R" + word("") + "}" + word("version") + odd + "sssb."
	got := must.Get(read(file(t, program)))(t)
	expect.True(t, len(got) == 2 && got[0].Name == "a" && got[1].Name == "b" && got[0].Offset == got[1].Offset, "tensors %+v", got)
}

func TestReadRefusesPrograms(t *testing.T) {
	for name, tc := range map[string]struct{ program, want string }{
		"a function":              {begin + "cos\nsystem\n(" + word("true") + "tR.", `data.pkl: byte 2: "os.system" is not allowed in a dictionary of tensors`},
		"a module":                {begin + "ctorch.nn.modules.linear\nLinear\n.", `"torch.nn.modules.linear.Linear"`},
		"a builtin":               {begin + "c__builtin__\neval\n.", `"__builtin__.eval"`},
		"another storage":         {begin + "ctorch\nComplexFloatStorage\n.", `"torch.ComplexFloatStorage"`},
		"an object":               {begin + "(i__main__\nX\n.", "instruction 0x69"},
		"a list":                  {begin + "].", "instruction 0x5d"},
		"protocol 4":              {"\x80\x04}.", "protocol 4"},
		"no pickle":               {"hello", "not a pickle"},
		"nothing":                 {"", "not a pickle"},
		"cut":                     {begin + "}", "no STOP instruction"},
		"cut text":                {begin + "X\xff\xff\xff\x7fabc", "2147483647 bytes announced but only 3 left"},
		"cut name":                {begin + "cos\nsys", "unterminated name"},
		"a long name":             {begin + "c" + strings.Repeat("x", 300) + "\n", "longer than 256"},
		"bytes that are no text":  {begin + "X\x01\x00\x00\x00\xff.", "not valid UTF-8"},
		"a long integer":          {begin + "\x8a\x09123456789.", "integer of 9 bytes is too large"},
		"no value":                {begin + ".", "the pickle leaves 0 values"},
		"two values":              {begin + "}}.", "the pickle leaves 2 values"},
		"an empty stack":          {begin + "R", "2 values needed but the stack has 0"},
		"values below a mark":     {begin + "}}(s", "2 values needed but the stack has 0"},
		"no mark":                 {begin + "t", "no mark"},
		"marks in marks":          {begin + strings.Repeat("(", 100), "nested deeper than 64"},
		"an empty memo":           {begin + "h\x05.", "memo entry 5"},
		"items of no dictionary":  {begin + "NK\x01K\x02s.", "2 keys and values for None"},
		"a key without its value": {begin + "}(" + word("a") + "u.", "1 keys and values for a dictionary"},
		"a number as key":         {begin + "}K\x01Ns.", "key is a number"},
		"call of a number":        {begin + "K\x01)R.", "call of a number"},
		"a call without a tuple":  {begin + ordered + "NR.", "call with None"},
		"items in a call":         {begin + ordered + "N\x85R.", "with 1 arguments, want none"},
		"attributes of a number":  {begin + "K\x01}b.", "attributes for a number"},
		"attributes in a tuple":   {begin + "})b.", "attributes are a tuple of 0"},
		"a parameter of nothing":  {begin + parameter + "N\x85R.", "needs a tensor and two more"},
		"a persistent number":     {begin + "K\x01Q.", "persistent id is a number"},
		"a persistent module":     {begin + "(" + word("module") + "NNNNtQ.", "persistent id is a tuple of 5"},
		"a storage of no type":    {begin + "(" + word("storage") + "NNNNtQ.", "a storage needs a type, a key"},
		"a tensor of nothing":     {begin + rebuild + ")R.", "tensor with 0 arguments"},
		"a tensor without data":   {begin + rebuild + "(NNNNNNtR.", "tensor in None"},
		"an offset too far":       {dictOf(word("a"), tensor(in(halfStorage, "0", 6), 7, ")", ")")), "starts at 7 in a storage of 6"},
		"an offset before":        {dictOf(word("a"), tensor(in(halfStorage, "0", 6), -1, ")", ")")), "starts at -1"},
		"after the end":           {dictOf(word("a"), tensor(in(halfStorage, "0", 6), 6, ")", ")")), "exceeds its storage of 6"},
		"rows too far":            {dictOf(word("a"), tensor(in(halfStorage, "0", 6), 1, numbers(2, 3), numbers(3, 1))), "shape [2 3] and strides [3 1] at offset 1 exceeds its storage"},
		"a stride that overflows": {dictOf(word("a"), tensor(in(halfStorage, "0", 6), 0, numbers(3), numbers(1<<62))), "exceeds its storage"},
		"a size that overflows":   {dictOf(word("a"), tensor(in(halfStorage, "0", 6), 0, numbers(1<<32, 1<<32), numbers(0, 0))), "more elements than its storage"},
		"one element many times":  {dictOf(word("a"), tensor(in(halfStorage, "0", 6), 0, numbers(1000), numbers(0))), "more elements than its storage (6"},
		"a negative size":         {dictOf(word("a"), tensor(in(halfStorage, "0", 6), 0, numbers(-1), numbers(1))), "shape or strides contain -1"},
		"a stride short":          {dictOf(word("a"), tensor(in(halfStorage, "0", 6), 0, numbers(2, 3), numbers(1))), "2 dimensions has 1 strides"},
		"a size that is no tuple": {dictOf(word("a"), tensor(in(halfStorage, "0", 6), 0, "N", numbers(1))), "shape or strides are None"},
		"no dictionary":           {begin + plain + ".", "the file holds a tensor; want a dictionary of tensors"},
		"more than tensors":       {dictOf(word("epoch"), "K\x01"), `"epoch" is a number`},
		"a dictionary within":     {dictOf(word("state"), "}"), `"state" is a dictionary`},
		"a name twice":            {dictOf(word("a"), plain, word("a"), plain), `duplicate tensor "a"`},
		"no record":               {dictOf(word("a"), tensor(in(halfStorage, "../0", 6), 0, ")", ")")), `no record "data/../0"`},
		"a size that lies":        {dictOf(word("a"), tensor(in(halfStorage, "0", 7), 0, ")", ")")), "has 12 bytes, which does not fit a storage of 7 elements of F16"},
		"a huge size that lies":   {dictOf(word("a"), tensor(in(halfStorage, "0", 1<<62), 0, ")", ")")), "has 12 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(file(t, tc.program))
			expect.True(t, err != nil && strings.Contains(err.Error(), tc.want) && !strings.Contains(err.Error(), "\n"), "error %v, want %q", err, tc.want)
		})
	}
}

func TestReadRefusesArchives(t *testing.T) {
	good := dictOf(word("a"), plain)
	flipped := file(t, good)
	flipped[bytes.Index(flipped, []byte("aabbcc"))] ^= 1
	whole := file(t, good)
	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":               {nil, "not a torch.save file: no zip archive"},
		"another format":        {[]byte("\x1f\x8b\x08rest"), "not a torch.save file: no zip archive"},
		"legacy":                {[]byte("\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."), "before PyTorch 1.6"},
		"cut":                   {whole[:len(whole)/2], "truncated"},
		"another zip":           {archive(t, record{name: "x.txt"}), "has no data.pkl"},
		"a bit turned":          {flipped, "checksum error; the file may be damaged"},
		"big endian":            {file(t, good, record{name: "m/byteorder", data: "big"}), `byte order "big" is`},
		"a record twice":        {file(t, good, record{name: "m/data/0", data: "x"}), `duplicate record "data/0"`},
		"two pickles":           {file(t, good, record{name: "n/data.pkl", data: good}), "more than one data.pkl"},
		"a compressed record":   {archive(t, record{name: "m/data.pkl", data: good}, record{"m/data/0", "aabbccddeeff", zip.Deflate}), `"data/0" is compressed`},
		"a compressed pickle":   {archive(t, record{"m/data.pkl", good, zip.Deflate}), `"data.pkl" is compressed`},
		"a record that is long": {archive(t, record{name: "m/data.pkl", data: good}, record{name: "m/data/0", data: "aabbccddeeffg"}), "has 13 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := read(tc.data)
			expect.True(t, err != nil && strings.Contains(err.Error(), tc.want) && !strings.Contains(err.Error(), "\n"), "error %v, want %q", err, tc.want)
		})
	}
}

func TestReadCutAtEveryByte(t *testing.T) {
	whole := file(t, dictOf(word("a"), plain))
	for n := range whole {
		_, err := read(whole[:n])
		expect.True(t, err != nil && !strings.Contains(err.Error(), "\n"), "cut at %d: %v", n, err)
	}
}

// FuzzRead: tensors are within the file and have at most as many elements as it has bytes.
func FuzzRead(f *testing.F) {
	f.Add(file(f, dictOf(word("a"), plain)))
	f.Add(file(f, begin+ordered+")R(u}b."))
	for _, name := range []string{"pytorch_model.bin", "legacy.bin"} {
		data := must.Get(os.ReadFile(filepath.Join("..", "safetensors", "testdata", "kinds", name)))(f)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) { check(t, data) })
}

// FuzzProgram is FuzzRead of an archive around data.pkl.
func FuzzProgram(f *testing.F) {
	f.Add([]byte(dictOf(word("a"), plain, word("b"), plain)))
	f.Add([]byte(dictOf(word("a"), tensor(in(halfStorage, "0", 6), 1, numbers(2, 2), numbers(1, 3)))))
	f.Add([]byte(begin + ordered + ")Rq\x00(" + word("a") + "q\x01" + plain + "r\x02\x00\x00\x00u}b."))
	f.Add([]byte(begin + "cos\nsystem\n(" + word("true") + "tR."))
	f.Add([]byte(begin + "((((K\x01M\x01\x00J\x01\x00\x00\x00G00000000ttttN\x85\x86\x87."))
	f.Fuzz(func(t *testing.T, program []byte) { check(t, file(t, string(program))) })
}

func check(t *testing.T, data []byte) {
	tensors, err := read(data)
	if err != nil {
		expect.True(t, !strings.Contains(err.Error(), "\n"), "more than one line: %q", err)
		return
	}
	for _, x := range tensors {
		n, last := int64(1), int64(0)
		for i, d := range x.Shape {
			n *= d
			if x.Strides != nil {
				last += (d - 1) * x.Strides[i]
			}
		}
		if x.Strides == nil {
			last = n - 1
		}
		expect.True(t, n == 0 || n >= 0 && n <= int64(len(data)) && x.Offset >= 0 && last >= 0 && x.Offset+last < int64(len(data)), "%+v of %d bytes", x, len(data))
	}
}
