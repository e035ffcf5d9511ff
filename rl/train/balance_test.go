package train

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestBalanceOfExperts: three tokens choose two of four experts each, in half of a minibatch.
func TestBalanceOfExperts(t *testing.T) {
	load := must.Open(torch.Parameter([]float32{1.5, 0.9, 0.3, 0.3, 3, 2, 1, 0}, 2, 4))(t)
	torchtest.Do(t, torch.Train, func(s *torch.Scope) {
		figures := map[string]float64{}
		loss := balance(s, load.T(), 0.5, figures)
		want := 0.5 * 4 * (3*1.5 + 2*0.9 + 1*0.3) / 9 // equation 4 of Fedus 2021
		expect.True(t, math.Abs(float64(s.Read(loss)[0])-want) < 1e-6, "loss %v, want %g", s.Read(loss), want)
		expect.True(t, math.Abs(figures["router_aux_loss"]-want) < 1e-6 && figures["router_max_load"] == 0.5*3*4/6, "%v", figures)
		s.Backward(loss)
		grad, _ := s.Grad(load)
		for i, g := range s.Read(grad) {
			want := []float64{3, 2, 1, 0, 0, 0, 0, 0}[i] * 0.5 * 4 / 9
			expect.True(t, math.Abs(float64(g)-want) < 1e-6, "gradient %d is %g, want %g", i, g, want)
		}
	})
}
