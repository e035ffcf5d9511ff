package gguf

import (
	"os"
	"path/filepath"
	"testing"
)

// Whatever the bytes: an error, or a file all of which can be read.
func FuzzHeader(f *testing.F) {
	for _, name := range []string{"split-00002-of-00002.gguf", "types.gguf"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data[:min(len(data), 3072)])
		f.Add(data)
	}
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
			if got := file.Float32s(tensor); int64(len(got)) != n {
				t.Errorf("tensor %q of shape %v has %d values", tensor.Name, tensor.Shape, len(got))
			}
		}
	})
}
