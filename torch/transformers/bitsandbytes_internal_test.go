package transformers

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// openFixture opens weights quantised by bitsandbytes; scripts/fixtures/quantized.py writes them.
func openFixture(t *testing.T) *safetensors.Model {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(filepath.Join("..", "testdata", "quantized.safetensors"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "model.safetensors"), data, 0o600)
	}
	must.Do(t, err)
	files := must.Get(safetensors.OpenModel(dir))(t)
	t.Cleanup(func() { _ = files.Close() })
	return files
}

// TestNF4EqualsBitsandbytes: weights have the same values as in bitsandbytes, also with nested scales.
func TestNF4EqualsBitsandbytes(t *testing.T) {
	torchtest.NoLeaks(t)
	files := openFixture(t)
	for _, name := range []string{"f32", "bf16", "double"} {
		want := must.Get(files.Float32s(name + ".dequantized"))(t)
		got := must.Get(nf4Values(files, name+".weight", []int64{6, 192}))(t)
		if name != "f32" { // bitsandbytes returns the type of its input
			v := must.Get(constantAs(got, []int64{6, 192}, torch.BF16))(t)
			got = must.Get(v.Read())(t)
			v.Close()
		}
		for i := range want {
			expect.Require(t, math.Float32bits(got[i]) == math.Float32bits(want[i]), "%s: value %d is %g, want %g", name, i, got[i], want[i])
		}
	}
	for _, shape := range [][]int64{{6, 191}, {192, 6}} {
		expect.Fails(nf4Values(files, "f32.weight", shape))(t, "shape %v is taken for [6 192]", shape)
	}
}
