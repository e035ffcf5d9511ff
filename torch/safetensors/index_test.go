package safetensors_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/torch/safetensors"
)

func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":12},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":null},"weight_map":{}}`))
	f.Add([]byte(`{"metadata":[[[[1e999]]]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		weightMap, err := safetensors.ParseIndex(data, ".safetensors")
		if err != nil {
			expect.True(t, !strings.Contains(err.Error(), "\n"), "more than one line: %q", err)
			return
		}
		for name, shard := range weightMap {
			expect.Same(t, "dir", filepath.Dir(filepath.Join("dir", shard)), "%q is in %q, outside the folder", name, shard)
		}
	})
}
