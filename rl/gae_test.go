package rl

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
)

var near = cmpopts.EquateApprox(0, 1e-6)

func TestGAE(t *testing.T) {
	tests := []struct {
		name            string
		rewards, values []float32
		done            []bool
		last            float32
		gamma, lambda   float64
		advantages      []float32
		returns         []float32
	}{{
		name:       "empty",
		advantages: []float32{}, returns: []float32{},
	}, {
		name:    "bandit: every step done gives r − V, whatever last, gamma and lambda are",
		rewards: []float32{1, 0, 1}, values: []float32{0.25, 0.5, -1}, done: []bool{true, true, true},
		last: 100, gamma: 0.99, lambda: 0.95,
		advantages: []float32{0.75, -0.5, 2}, returns: []float32{1, 0, 1},
	}, {
		// δ = 1+.5·2−1 = 1; 2+.5·4−2 = 2; 3−4 = −1 (done)
		// A₂ = −1; A₁ = 2+.25·(−1) = 1.75; A₀ = 1+.25·1.75 = 1.4375
		name:    "three steps, gamma .5, lambda .5",
		rewards: []float32{1, 2, 3}, values: []float32{1, 2, 4}, done: []bool{false, false, true},
		last: 100, gamma: 0.5, lambda: 0.5,
		advantages: []float32{1.4375, 1.75, -1}, returns: []float32{2.4375, 3.75, 3},
	}, {
		// δ₂ = 3+.5·8−4 = 3; A₁ = 2+.25·3 = 2.75; A₀ = 1+.25·2.75 = 1.6875
		name:    "cut off: the last value is bootstrapped",
		rewards: []float32{1, 2, 3}, values: []float32{1, 2, 4}, done: []bool{false, false, false},
		last: 8, gamma: 0.5, lambda: 0.5,
		advantages: []float32{1.6875, 2.75, 3}, returns: []float32{2.6875, 4.75, 7},
	}, {
		name:    "lambda 0: the TD residual",
		rewards: []float32{1, 2, 3}, values: []float32{1, 2, 4}, done: []bool{false, false, false},
		last: 8, gamma: 0.5, lambda: 0,
		advantages: []float32{1, 2, 3}, returns: []float32{2, 4, 7},
	}, {
		// Two episodes: the first has returns 1+.5·1 = 1.5 and 1, the second 1000+.5·8 = 1004.
		name:    "lambda 1 over two episodes: discounted sums less the values, no leak over done",
		rewards: []float32{1, 1, 1000}, values: []float32{0.5, 0.25, 4}, done: []bool{false, true, false},
		last: 8, gamma: 0.5, lambda: 1,
		advantages: []float32{1, 0.75, 1000}, returns: []float32{1.5, 1, 1004},
	}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			advantages, returns := GAE(test.rewards, test.values, test.done, test.last, test.gamma, test.lambda)
			if diff := cmp.Diff(test.advantages, advantages, near); diff != "" {
				t.Errorf("advantages (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.returns, returns, near); diff != "" {
				t.Errorf("returns (-want +got):\n%s", diff)
			}
		})
	}
}

// randomRollout returns n steps with an episode end about every seventh step.
func randomRollout(seed uint64, n int) (rewards, values []float32, done []bool) {
	rng := Stream(seed)
	rewards, values, done = make([]float32, n), make([]float32, n), make([]bool, n)
	for i := range n {
		rewards[i], values[i], done[i] = float32(rng.NormFloat64()), float32(rng.NormFloat64()), rng.IntN(7) == 0
	}
	return rewards, values, done
}

func TestGAEWithLambdaOneIsReturnLessValue(t *testing.T) {
	const gamma, last = 0.9, 0.7
	rewards, values, done := randomRollout(1, 200)
	advantages, returns := GAE(rewards, values, done, last, gamma, 1)
	for start := range rewards {
		want, discount, ended := 0.0, 1.0, false
		for i := start; i < len(rewards) && !ended; i++ {
			want += discount * float64(rewards[i])
			discount *= gamma
			ended = done[i]
		}
		if !ended {
			want += discount * last
		}
		if math.Abs(float64(returns[start])-want) > 1e-5 {
			t.Fatalf("return %d = %g, want the discounted sum %g", start, returns[start], want)
		}
		if got := float64(advantages[start]); math.Abs(got-(want-float64(values[start]))) > 1e-5 {
			t.Fatalf("advantage %d = %g, want return − value = %g", start, got, want-float64(values[start]))
		}
	}
}

// Equation 16: A_t = Σ_l (γλ)^l δ_{t+l}, summed directly up to the end of the episode.
func TestGAEIsTheDiscountedSumOfResiduals(t *testing.T) {
	const gamma, lambda, last = 0.97, 0.8, -0.4
	rewards, values, done := randomRollout(2, 200)
	advantages, _ := GAE(rewards, values, done, last, gamma, lambda)
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
		if got := float64(advantages[start]); math.Abs(got-want) > 1e-5 {
			t.Fatalf("advantage %d = %g, want %g", start, got, want)
		}
	}
}

func TestGAEDoesNotLeakAcrossDone(t *testing.T) {
	rewards, values, done := randomRollout(3, 50)
	done[29] = true
	before, _ := GAE(rewards, values, done, 0, 0.99, 0.95)
	for i := 30; i < 50; i++ {
		rewards[i] += 1e6
		values[i] -= 1e6
	}
	after, _ := GAE(rewards, values, done, 1e6, 0.99, 0.95)
	expect.Equal(t, before[:30], after[:30], "what follows the end of an episode changed its advantages")
}

func TestGAEPanicsOnUnequalLengths(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic for 2 rewards and 1 value")
		}
	}()
	GAE([]float32{1, 2}, []float32{1}, []bool{true, true}, 0, 1, 1)
}

func BenchmarkGAE(b *testing.B) {
	rewards, values, done := randomRollout(4, 2048)
	b.SetBytes(int64(len(rewards)) * 9)
	for b.Loop() {
		GAE(rewards, values, done, 0, 0.99, 0.95)
	}
}
