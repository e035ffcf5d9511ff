package rl

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestMeterKinds(t *testing.T) {
	m := Meter{}
	for _, v := range []float64{2, 3, -1, 2} {
		m.Mean("mean", v, 2)
		m.Max("max", v)
		m.Min("min", v)
		m.Total("total", v)
		m.Last("last", v)
	}
	m.Mean("nothing counted", 5, 0)
	want := map[string]any{"mean": 6. / 8, "max": 3., "min": -1., "total": 6., "last": 2.}
	row := map[string]any{}
	m.Fill(row)
	expect.Equal(t, want, row)
	expect.Same(t, 0, m.Get("nowhere"), "a figure that was not measured has a value")
}

func TestMeterSkipsNonFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		m := Meter{}
		m.Mean("mean", bad, 1)
		m.Max("max", bad)
		m.Min("min", bad)
		m.Total("total", bad)
		m.Last("last", bad)
		expect.Same(t, 0, len(m), "%v is measured: %v", bad, m)
		m.Mean("mean", 1, 1)
		m.Mean("mean", bad, 1)
		m.Total("total", 1)
		m.Total("total", bad)
		m.Last("last", 1)
		m.Last("last", bad)
		expect.True(t, m.Get("mean") == 1 && m.Get("total") == 1 && m.Get("last") == 1, "%v counts: %v", bad, m)
	}
}

// TestMeterSumsDoNotOverflow adds finite values whose sum overflows.
func TestMeterSumsDoNotOverflow(t *testing.T) {
	m := Meter{}
	for range 3 {
		m.Mean("mean", math.MaxFloat64, 1)
		m.Total("total", math.MaxFloat64)
	}
	for name := range m {
		v := m.Get(name)
		expect.True(t, !math.IsInf(v, 0) && !math.IsNaN(v), "%s is %v, which no JSON can hold", name, v)
	}
}

// TestMergedMetersAreOneMeter splits measurements over two meters, with a JSON round trip.
func TestMergedMetersAreOneMeter(t *testing.T) {
	rng := Stream(11)
	whole, first, second := Meter{}, Meter{}, Meter{}
	for i := range 40 {
		part := first
		if i >= 25 {
			part = second
		}
		for _, m := range []Meter{whole, part} {
			v := math.Ldexp(float64(i%7)-3, i%5) // sums of these are exact in any order
			m.Mean("mean", v, float64(1+i%3))
			m.Max("max", v)
			m.Min("min", v)
			m.Total("total", v)
			m.Last("last", v)
		}
		whole.Last("noise", rng.NormFloat64())
	}
	second.Last("noise", whole.Get("noise"))
	merged := throughJSON(t, first)
	kept := throughJSON(t, merged.Clone())
	merged.Merge(throughJSON(t, second))
	expect.Equal(t, whole, merged)
	expect.Equal(t, kept, first, "a clone has changed with its meter")
}

func TestMeterJSONIsExact(t *testing.T) {
	m := Meter{}
	m.Mean("thirds", 1./3, 3)
	m.Max("least", math.SmallestNonzeroFloat64)
	m.Total("most", math.MaxFloat64)
	m.Last("negative zero", math.Copysign(0, -1))
	back := throughJSON(t, m)
	expect.Equal(t, m, back)
}
