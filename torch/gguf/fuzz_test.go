package gguf

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// Any bytes give an error, or a file that can be read completely.
func FuzzHeader(f *testing.F) {
	data := must.Get(os.ReadFile(filepath.Join("testdata", "split-00002-of-00002.gguf")))(f)
	f.Add(data)
	f.Add(seed(3, 64, "general.alignment", kindUint32, uint32(64)))
	f.Add(seed(2, 32, "a", kindArray, kindString, uint64(2), uint64(1), byte('b'), uint64(0)))
	f.Add(seed(3, 32, "a", kindArray, kindInt16, uint64(3), [3]int16{1, 2, 3}))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := &File{index: map[string]int{}, mapped: map[string][]byte{"": data}}
		if err := file.add("", data, 0, 1); err != nil {
			return
		}
		for _, key := range file.Keys() {
			_, _, _ = file.Int(key)
			_, _, _ = file.Float(key)
			_, _, _ = file.Bool(key)
			_, _, _ = file.Text(key)
			_, _, _ = file.Ints(key)
			_, _, _ = file.Floats(key)
			_, _, _ = file.Bools(key)
			_, _, _ = file.Texts(key)
		}
		for _, tensor := range file.Tensors() {
			n := int64(1)
			for _, d := range tensor.Shape {
				n *= d
			}
			got := file.Float32s(tensor)
			expect.True(t, int64(len(got)) == n, "tensor %q of shape %v has %d values", tensor.Name, tensor.Shape, len(got))
		}
	})
}

// seed is a file with one metadata pair and a tensor of two blocks.
func seed(version uint32, alignment int, key string, value ...any) []byte {
	var b bytes.Buffer
	b.WriteString("GGUF")
	put := func(values ...any) {
		for _, v := range values {
			if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
				panic(err)
			}
		}
	}
	put(version, uint64(1), uint64(1), uint64(len(key)), []byte(key))
	put(value...)
	put(uint64(1), byte('w'), uint32(2), uint64(32), uint64(2), formats[Q4_0].id, uint64(0))
	for b.Len()%alignment != 0 {
		b.WriteByte(0)
	}
	return append(b.Bytes(), make([]byte, 36)...)
}
