package rl_test

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

func TestWhiten(t *testing.T) {
	tests := []struct {
		name    string
		x, want []float32
	}{
		{"empty", []float32{}, []float32{}},
		{"one entry stays", []float32{3}, []float32{3}},
		{"two entries", []float32{1, 3}, []float32{-1, 1}},
		// mean 2, population variance 2
		{"five entries", []float32{0, 1, 2, 3, 4}, []float32{-1.4142135, -0.70710677, 0, 0.70710677, 1.4142135}},
		// mean 5e-5, variance 2.5e-9, so the 1e-8 counts: ±5e-5/√1.25e-8
		{"small spread", []float32{0, 1e-4}, []float32{-0.4472136, 0.4472136}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rl.Whiten(test.x)
			expect.Equal(t, test.want, test.x, near)
		})
	}
}

func TestWhitenOfEqualRewardsIsExactlyZero(t *testing.T) {
	for _, value := range []float32{0.1, 0.3, 1.0 / 3, -0.7, 1e-30, 12345.678} {
		for n := 2; n < 40; n++ {
			x := make([]float32, n)
			for i := range x {
				x[i] = value
			}
			rl.Whiten(x)
			for i, v := range x {
				expect.Require(t, v == 0, "%d entries of %g: entry %d is %g, want exactly 0", n, value, i, v)
			}
		}
	}
}

func TestExplainedVariance(t *testing.T) {
	tests := []struct {
		name            string
		values, returns []float32
		want            float64
	}{
		{"empty", nil, nil, 0},
		{"perfect", []float32{1, 2, 3}, []float32{1, 2, 3}, 1},
		{"perfect up to a constant", []float32{2, 3, 4}, []float32{1, 2, 3}, 1},
		{"constant value", []float32{7, 7, 7}, []float32{1, 2, 3}, 0},
		{"half", []float32{0, 1, 0, 1}, []float32{0, 1, 1, 2}, 0.5},
		{"worse than a constant", []float32{3, 2, 1}, []float32{1, 2, 3}, -3},
		{"equal returns have nothing to explain", []float32{1, 2, 3}, []float32{0.1, 0.1, 0.1}, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := rl.ExplainedVariance(test.values, test.returns)
			expect.True(t, math.Abs(got-test.want) <= 1e-6, "got %g, want %g", got, test.want)
		})
	}
}
