package lora

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// TestOrthogonalStart: the product is 0 up to rounding, and the elements of both matrices have the variance of PEFT's, 1/200.
func TestOrthogonalStart(t *testing.T) {
	for _, r := range []int{2, 8, 64} {
		const in, out = 96, 160
		p := InitOrthogonal("m", in, out, r, 2, rand.New(rand.NewPCG(1, uint64(r))))
		expect.True(t, p.check() == nil && p.R == r && p.Scale == 2, "%v", p.check())
		square := func(m []float32) (mean float64) {
			for _, x := range m {
				mean += float64(x) * float64(x) / float64(len(m))
			}
			return mean
		}
		a, b := square(p.A)*200, square(p.B)*200
		expect.True(t, math.Abs(a-1) < 0.25 && math.Abs(b-1) < 0.25, "rank %d: mean squares are %.3f and %.3f of PEFT's", r, a, b)
		w := make([]float32, out*in)
		p.MergeInto(w)
		expect.True(t, math.Sqrt(square(w)) < 1e-6, "rank %d: the product is %g on average", r, math.Sqrt(square(w)))
	}
}
