package rl_test

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

// These values are part of the format: a change would alter every recorded run.
func TestStreamIsStable(t *testing.T) {
	expect.Same(t, uint64(2050404075864848589), rl.Stream(42, 1, 2, 3).Uint64(), "first value of Stream(42, 1, 2, 3)")
}

func TestStreamsDiffer(t *testing.T) {
	seen := map[uint64][]uint64{}
	add := func(seed uint64, ids ...uint64) {
		t.Helper()
		draw := rl.Stream(seed, ids...).Uint64()
		other, ok := seen[draw]
		expect.True(t, !ok, "Stream(%d, %v) begins like %v", seed, ids, other)
		seen[draw] = append([]uint64{seed}, ids...)
	}
	add(0)
	add(0, 0)
	add(0, 0, 0)
	add(0, 1, 2)
	add(0, 2, 1)
	add(math.MaxUint64)
	add(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	for seed := range uint64(20) {
		for step := range uint64(20) {
			for sample := range uint64(20) {
				add(1000+seed, 1000+step, sample)
			}
		}
	}
}

// Neighbouring ids are the usual case, so first values across ids must look as uniform as one stream: chi-square over
// 16 cells (15 degrees of freedom, 99.99 % point 44.3), and no correlation between neighbours.
func TestStreamsAreUniformAcrossIDs(t *testing.T) {
	const n = 16000
	var cells [16]int
	var product, previous float64
	for id := range uint64(n) {
		x := rl.Stream(7, id).Float64()
		cells[int(x*16)]++
		product += (x - 0.5) * (previous - 0.5)
		previous = x
	}
	chi := 0.0
	for _, count := range cells {
		d := float64(count) - n/16
		chi += d * d / (n / 16)
	}
	expect.True(t, chi <= 44.3, "chi-square %.1f over 16 cells: %v", chi, cells)
	// The mean product has standard deviation (1/12)/√n.
	z := product / n * 12 * math.Sqrt(n)
	expect.True(t, math.Abs(z) <= 4, "neighbouring streams correlate: z = %.1f", z)
}
