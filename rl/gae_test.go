package rl_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

var near = cmpopts.EquateApprox(0, 1e-6)

// randomRollout returns n steps with an episode end about every seventh step.
func randomRollout(seed uint64, n int) (rewards, values []float32, done []bool) {
	rng := rl.Stream(seed)
	rewards, values, done = make([]float32, n), make([]float32, n), make([]bool, n)
	for i := range n {
		rewards[i], values[i], done[i] = float32(rng.NormFloat64()), float32(rng.NormFloat64()), rng.IntN(7) == 0
	}
	return rewards, values, done
}

// Equation 16: A_t = Σ_l (γλ)^l δ_{t+l}, summed directly up to the end of the episode or of the rollout.
func TestGAEIsTheDiscountedSumOfResiduals(t *testing.T) {
	for _, c := range []struct{ gamma, lambda float64 }{{0.97, 0.8}, {0.9, 1}, {0.5, 0}, {1, 1}} {
		discountedSum(t, c.gamma, c.lambda)
	}
}

func discountedSum(t *testing.T, gamma, lambda float64) {
	const last = -0.4
	rewards, values, done := randomRollout(2, 200)
	advantages, returns := rl.GAE(rewards, values, done, last, gamma, lambda)
	for start := range rewards {
		want, weight := 0.0, 1.0
		for i := start; i < len(rewards); i++ {
			next := float64(float32(last))
			if i+1 < len(values) {
				next = float64(values[i+1])
			}
			if done[i] {
				next = 0
			}
			want += weight * (float64(rewards[i]) + gamma*next - float64(values[i]))
			weight *= gamma * lambda
			if done[i] {
				break
			}
		}
		if got := float64(advantages[start]); math.Abs(got-want) > 1e-5 || math.Abs(float64(returns[start]-values[start])-want) > 1e-5 {
			t.Fatalf("γ %g, λ %g: advantage %d = %g, return %g; want %g, with the value %g", gamma, lambda, start, got, returns[start], want, values[start])
		}
	}
}

func TestGAEPanicsOnUnequalLengths(t *testing.T) {
	expect.Panic(t, func() { rl.GAE([]float32{1, 2}, []float32{1}, []bool{true, true}, 0, 1, 1) })
}
