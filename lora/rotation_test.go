package lora

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestRotation(t *testing.T) {
	const n = 3
	q := skew([]float32{0.2, -0.1, 0.3}, n)
	exact := rotation(q, n, 0)
	for i := range n {
		for j := range n {
			dot, want := 0.0, 0.0
			for k := range n {
				dot += exact[i*n+k] * exact[j*n+k]
			}
			if i == j {
				want = 1
			}
			expect.True(t, math.Abs(dot-want) <= 1e-12, "rows %d and %d: %g", i, j, dot)
		}
	}
	// The series has the other sign, and its last term has half the factor of the others.
	for terms, tolerance := range map[int]float64{1: 0.7, 2: 0.3, 4: 0.1, 5: 0.03, 40: 1e-12} {
		series := rotation(q, n, terms)
		for i := range n {
			for j := range n {
				d := math.Abs(series[i*n+j] - exact[j*n+i])
				expect.True(t, d <= tolerance, "%d terms: element %d, %d differs by %g", terms, i, j, d)
			}
		}
	}
}
