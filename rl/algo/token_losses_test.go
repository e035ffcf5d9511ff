package algo

import (
	"math"
	"math/rand/v2"
	"testing"

	"rltrain/rl"
	"rltrain/torch"
)

// lossCase is tokens of three sequences of 5, 1 and 10 tokens.
type lossCase struct {
	logProb, old, advantage, weight []float32
	of                              []int // sequence of each token
}

func newLossCase(seed uint64) lossCase {
	rng := rand.New(rand.NewPCG(seed, 0))
	c := lossCase{logProb: normal(rng, 16, 0.4), old: normal(rng, 16, 0.1), advantage: normal(rng, 16, 1), weight: normal(rng, 16, 1)}
	for i, n := range []int{5, 1, 10} {
		for range n {
			c.of = append(c.of, i)
		}
	}
	return c
}

func TestReinforceLoss(t *testing.T) {
	c := newLossCase(1)
	value, grad := lossAndGrad(t, c.logProb, []int64{16}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
		return reinforceLoss(s, x, s.Floats(c.advantage, 16), s.Floats(c.weight, 16))
	})
	checkGrad(t, c.logProb, grad, value, func(x []float64) float64 {
		sum := 0.0
		for i := range x {
			sum -= float64(c.weight[i]) * float64(c.advantage[i]) * x[i]
		}
		return sum
	})
}

func TestRLOOLoss(t *testing.T) {
	c := newLossCase(2)
	const low, high = 0.2, 0.3
	value, grad := lossAndGrad(t, c.logProb, []int64{16}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
		member := membership(s, &rl.Batch{Sequences: make([][]int32, 3), Sequence: c.of})
		return rlooLoss(s, x, s.Floats(c.old, 16), member, s.Floats(c.advantage[:3], 3), low, high)
	})
	checkGrad(t, c.logProb, grad, value, func(x []float64) float64 {
		var d [3]float64
		for i := range x {
			d[c.of[i]] += x[i] - float64(c.old[i])
		}
		sum := 0.0
		for i := range d {
			a, ratio := float64(c.advantage[i]), math.Exp(d[i])
			sum -= math.Min(ratio*a, math.Min(math.Max(ratio, 1-low), 1+high)*a)
		}
		return sum
	})
}

func TestGRPOLoss(t *testing.T) {
	c := newLossCase(3)
	const low, high = 0.2, 0.28
	value, grad := lossAndGrad(t, c.logProb, []int64{16}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
		return grpoLoss(s, x, s.Floats(c.old, 16), s.Floats(c.advantage, 16), s.Floats(c.weight, 16), low, high)
	})
	checkGrad(t, c.logProb, grad, value, func(x []float64) float64 {
		sum := 0.0
		for i := range x {
			a, ratio := float64(c.advantage[i]), math.Exp(x[i]-float64(c.old[i]))
			sum -= float64(c.weight[i]) * math.Min(ratio*a, math.Min(math.Max(ratio, 1-low), 1+high)*a)
		}
		return sum
	})
}

func TestKLLoss(t *testing.T) {
	c := newLossCase(4)
	for _, kind := range []rl.KLKind{rl.K1, rl.K2, rl.K3} {
		value, grad := lossAndGrad(t, c.logProb, []int64{16}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
			return klLoss(s, kind, x, s.Floats(c.old, 16), s.Floats(c.weight, 16))
		})
		checkGrad(t, c.logProb, grad, value, func(x []float64) float64 {
			sum := 0.0
			for i := range x {
				sum += float64(c.weight[i]) * kind.Value(x[i], float64(c.old[i]))
			}
			return sum
		})
	}
	// Tokens that have run away: finite, as the metric has it, and pulled back.
	for _, d := range []float32{-20, -30, -1000, 40} {
		value, grad := lossAndGrad(t, []float32{d}, []int64{1}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
			return klLoss(s, rl.K3, x, s.Floats([]float32{0}, 1), s.Floats([]float32{1}, 1))
		})
		want := rl.K3.Value(float64(d), 0)
		slope := 1 - math.Exp(-math.Max(float64(d), -20))
		if d == -20 {
			slope = float64(grad[0]) // the joint, which belongs to both sides
		}
		if math.Abs(value/want-1) > 1e-5 || math.Abs(float64(grad[0])/slope-1) > 1e-5 || d < 0 && grad[0] >= 0 {
			t.Errorf("k3 at %v: %v with slope %v, want %v with slope %v", d, value, grad[0], want, slope)
		}
	}
}

func TestTokenPPOLoss(t *testing.T) {
	c := newLossCase(5)
	rng := rand.New(rand.NewPCG(6, 0))
	values, oldValues, returns := normal(rng, 16, 1), normal(rng, 16, 1), normal(rng, 16, 1)
	config := TokenRLConfig{ClipLow: 0.2, ClipHigh: 0.2, ValueClip: 0.3}
	ppo, err := findAlgorithm(TokenPPO)
	if err != nil {
		t.Fatal(err)
	}
	both := func(s *torch.Scope, logProb, values torch.Tensor) torch.Tensor {
		b := &LossBatch{LogProb: logProb, Old: s.Floats(c.old, 16), Advantage: s.Floats(c.advantage, 16), Tokens: 16,
			Value: values, OldValue: s.Floats(oldValues, 16), Return: s.Floats(returns, 16)}
		return s.Add(ppo.Loss(s, b, config), ppo.ValueLoss(s, b, config))
	}
	oracle := func(logProb, values []float64) float64 {
		sum := 0.0
		for i := range logProb {
			a, ratio := float64(c.advantage[i]), math.Exp(logProb[i]-float64(c.old[i]))
			sum += math.Max(-a*ratio, -a*math.Min(math.Max(ratio, 0.8), 1.2))
			v, old, r := values[i], float64(oldValues[i]), float64(returns[i])
			moved := old + math.Min(math.Max(v-old, -0.3), 0.3)
			sum += 0.5 * math.Max((v-r)*(v-r), (moved-r)*(moved-r))
		}
		return sum / 16
	}
	wide := func(x []float32) []float64 { return gather(x, func(v float32) float64 { return float64(v) }) }
	value, grad := lossAndGrad(t, c.logProb, []int64{16}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
		return both(s, x, s.Floats(values, 16))
	})
	checkGrad(t, c.logProb, grad, value, func(x []float64) float64 { return oracle(x, wide(values)) })
	value, grad = lossAndGrad(t, values, []int64{16}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
		return both(s, s.Floats(c.logProb, 16), x)
	})
	checkGrad(t, values, grad, value, func(x []float64) float64 { return oracle(wide(c.logProb), x) })
}

func TestTokenWeight(t *testing.T) {
	lengths := []int{5, 1, 10}
	for reduction, want := range map[string][3]float64{
		ReduceToken: {1. / 16, 1. / 16, 1. / 16}, ReduceSequence: {1. / 15, 1. / 3, 1. / 30}, ReduceDrGRPO: {1. / 60, 1. / 60, 1. / 60},
	} {
		for i, n := range lengths {
			if got := tokenWeight(reduction, n, 3, 16, 20); got != want[i] {
				t.Errorf("%s: a token of %d weighs %v, want %v", reduction, n, got, want[i])
			}
		}
	}
}

// TestEstimateAdvantages has two turns of two and one sampled tokens, with text of the environment between
// them, and a penalty of each token.
func TestEstimateAdvantages(t *testing.T) {
	x := &TokenSample{Trajectory: &rl.Trajectory{}, Overlong: -0.5}
	x.Give(1, 2)
	x.Draw(3, -1, -1)
	x.Draw(4, -1, -1)
	x.Give(5)
	x.EndTurn(1)
	x.Draw(6, -1, -1)
	x.EndTurn(2)
	x.Old, x.Penalty, x.Value = make([]float32, 3), []float64{0.1, 0.2, 0.3}, []float32{0.5, 0.25, 1}
	estimateAdvantages([]*TokenSample{x}, 1, 1)
	// Rewards −0.1, 1−0.2, 2−0.5−0.3: with γ = λ = 1 the returns are their sums from each token on.
	want := []float64{1.9, 2, 1.2}
	sum := 0.0
	for i, r := range x.Return {
		sum += float64(x.Advantage[i])
		if math.Abs(float64(r)-want[i]) > 1e-6 {
			t.Errorf("return %d is %v, want %v", i, r, want[i])
		}
	}
	if math.Abs(sum) > 1e-6 {
		t.Errorf("whitened advantages add up to %v", sum)
	}
}
