package policy

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/hub"
)

// TestAdapterAsGGUF: layers with ranks and alphas of their own keep the size of their changes under the file's one alpha.
func TestAdapterAsGGUF(t *testing.T) {
	dir := adapterData("rslora")
	_, pairs, _, err := lora.Load(dir)
	must.Do(t, err)
	p := must.Get(LoadCausalLM(t.Context(), &hub.Client{}, adapterBase(t, "llama"), dir, "", false))(t)
	defer p.Close()
	path := filepath.Join(t.TempDir(), "adapter.gguf")
	must.Do(t, p.SaveAdapterGGUF(path, "x"))
	file := must.Get(gguf.Open(path))(t)
	defer file.Close()
	alpha, _, err := file.Float("adapter.lora.alpha")
	must.Do(t, err)
	size := func(values []float32, scale float64) (sum float64) {
		for _, v := range values {
			sum += math.Abs(float64(v)) * scale
		}
		return sum
	}
	var want, got []float64 // of every A and B, in any order
	for _, pair := range pairs {
		want = append(want, size(pair.A, 1), size(pair.B, pair.Scale))
	}
	for _, tensor := range file.Tensors() {
		scale := 1.0
		if strings.HasSuffix(tensor.Name, ".lora_b") {
			scale = alpha / float64(tensor.Shape[1])
		}
		got = append(got, size(file.Float32s(tensor), scale))
	}
	slices.Sort(want)
	slices.Sort(got)
	diff := cmp.Diff(want, got, cmpopts.EquateApprox(1e-5, 0))
	expect.True(t, diff == "" && slices.Min(want) != 0, "sizes (-adapter +file):\n%s", diff)
}
