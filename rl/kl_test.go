package rl

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestKLValue(t *testing.T) {
	for _, test := range []struct {
		kind         KLKind
		logProb, ref float64
		want         float64
	}{
		{K1, -1, -1.5, 0.5},
		{K1, -1.5, -1, -0.5},
		{K2, -1, -1.5, 0.125},
		{K2, -1.5, -1, 0.125},
		{K3, -1, -1, 0},
		{K3, -1, -1.5, math.Exp(-0.5) - 1 + 0.5},
		{K3, -1.5, -1, math.Exp(0.5) - 1 - 0.5},
		{K3, -20, 0, math.Exp(20) - 1 - 20},
		{K3, -21, 0, math.Exp(20) - 1 - 20 + (math.Exp(20) - 1)},
		{K3, 0, -1000, 999},
	} {
		if got := test.kind.Value(test.logProb, test.ref); math.Abs(got-test.want) > 1e-12*max(1, math.Abs(test.want)) {
			t.Errorf("%s of %g and %g is %g, want %g", test.kind, test.logProb, test.ref, got, test.want)
		}
	}
	got := K3.Value(-1e6, 0)
	expect.True(t, isFinite(got) && got > K3.Value(-1e5, 0), "k3 far out is %g", got)
}

// Averaged over samples from π, k1 and k3 estimate the KL Σ π·log(π/ρ); k2 does not.
func TestKLIsUnbiased(t *testing.T) {
	policy, reference := []float64{0.5, 0.3, 0.2}, []float64{0.2, 0.3, 0.5}
	divergence, mean := 0.0, map[KLKind]float64{}
	for i, p := range policy {
		divergence += p * math.Log(p/reference[i])
		for _, kind := range []KLKind{K1, K2, K3} {
			mean[kind] += p * kind.Value(math.Log(p), math.Log(reference[i]))
		}
	}
	if math.Abs(mean[K1]-divergence) > 1e-12 || math.Abs(mean[K3]-divergence) > 1e-12 || math.Abs(mean[K2]-divergence) < 1e-3 {
		t.Errorf("KL %g, estimates %v", divergence, mean)
	}
}

func TestKLController(t *testing.T) {
	c := must.Get(NewKLController(0.1, 6, 100))(t)
	for i, test := range []struct {
		kl   float64
		n    int
		want float64
	}{
		{6, 10, 0.1},
		{6.6, 10, 0.1 * (1 + 0.1*0.1)},
		{600, 10, 0.101 * 1.02},
		{0, 1000, 0.101 * 1.02 * 0.8},
		{math.NaN(), 10, 0.101 * 1.02 * 0.8},
	} {
		c.Update(test.kl, test.n)
		expect.True(t, math.Abs(c.Coef()-test.want) <= 1e-12, "update %d: coefficient %g, want %g", i, c.Coef(), test.want)
	}
	fixed := must.Get(NewKLController(0.1, 0, 0))(t)
	if fixed.Update(100, 10); fixed.Coef() != 0.1 {
		t.Errorf("a fixed coefficient became %g", fixed.Coef())
	}
	for _, bad := range [][3]float64{{-1, 0, 0}, {0, 6, 100}, {0.1, 6, 0}, {0.1, 0, 5}, {0.1, -6, -1}, {math.NaN(), 0, 0}, {math.Inf(1), 0, 0}} {
		_, err := NewKLController(bad[0], bad[1], bad[2])
		expect.True(t, err != nil, "%v is taken", bad)
	}
}

func TestParseKLKind(t *testing.T) {
	k, err := ParseKLKind("k3")
	expect.True(t, k == K3 && err == nil, "%v, %v", k, err)
	_, err = ParseKLKind("k4")
	expect.True(t, err != nil, "k4 is taken")
}
