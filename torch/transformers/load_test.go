package transformers

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestEncodersHoldMatricesInTwoBytes as on a GPU: embeddings and linear layers are rounded to 8 bits, and nothing else.
func TestEncodersHoldMatricesInTwoBytes(t *testing.T) {
	const root = "testdata/encoders"
	for _, entry := range must.Get(os.ReadDir(root))(t) {
		t.Run(entry.Name(), func(t *testing.T) {
			torchtest.NoLeaks(t)
			dir := filepath.Join(root, entry.Name())
			config := must.Get(LoadConfig(dir))(t)
			hidden := func(matrices torch.DType) (states []float32) {
				m := must.Get(load(dir, config, matrices))(t)
				defer m.Close()
				packed := torch.Pack([][]int32{{2, 5, 3, 4}, {6, 2}})
				torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
					h, _ := s.Hidden(m.Encoder, packed, torch.Pass{})
					states = s.Read(h)
				})
				return states
			}
			whole := hidden(torch.F32)
			d := torchtest.RelativeError(hidden(torch.BF16), whole)
			expect.True(t, d != 0 && d <= 0.05, "hidden states differ by %g of their length, want some rounding", d)
		})
	}
}
