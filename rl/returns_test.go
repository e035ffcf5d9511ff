package rl

import (
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestReturnsToGo(t *testing.T) {
	for _, test := range []struct {
		rewards []float64
		gamma   float64
		want    []float64
	}{
		{[]float64{1, 2, 4}, 0.5, []float64{3, 4, 4}}, // 1+.5·(2+.5·4)
		{[]float64{0, 0, 1}, 1, []float64{1, 1, 1}},
		{[]float64{1, 2}, 0, []float64{1, 2}},
		{[]float64{1, nan, 2}, 0.9, []float64{nan, nan, 2}},
		{nil, 1, []float64{}},
	} {
		expect.Equal(t, test.want, ReturnsToGo(test.rewards, test.gamma), cmpopts.EquateNaNs(), test.rewards)
	}
}

func TestOverlongPenalty(t *testing.T) {
	for length, want := range map[int]float64{0: 0, 80: 0, 81: -0.05, 90: -0.5, 100: -1, 101: -1, 500: -1} {
		expect.Same(t, want, OverlongPenalty(length, 100, 20), "penalty of %d tokens", length)
	}
}
