package algo

import (
	"math"
	"math/rand/v2"
	"testing"

	"rltrain/envs/intent"
	"rltrain/torch"
	"rltrain/torch/torchtest"
)

// lossAndGrad runs loss on a parameter of the given values and returns its value and gradient.
func lossAndGrad(t *testing.T, x []float32, dims []int64, loss func(s *torch.Scope, x torch.Tensor) torch.Tensor) (value float64, grad []float32) {
	t.Helper()
	torchtest.NoLeaks(t)
	p, err := torch.Parameter(x, dims...)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := torch.Do(torch.Train, func(s *torch.Scope) error {
		l := loss(s, p.T())
		value = s.Item(l)
		s.Backward(l)
		g, _ := s.Grad(p)
		grad = s.Read(g)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return value, grad
}

// checkGrad compares with central differences of the oracle in float64.
func checkGrad(t *testing.T, x, grad []float32, value float64, oracle func(x []float64) float64) {
	t.Helper()
	wide := make([]float64, len(x))
	for i, v := range x {
		wide[i] = float64(v)
	}
	if want := oracle(wide); math.Abs(value-want) > 1e-5*(1+math.Abs(want)) {
		t.Errorf("loss %v, want %v", value, want)
	}
	const h = 1e-6
	for i := range wide {
		kept := wide[i]
		wide[i] = kept + h
		up := oracle(wide)
		wide[i] = kept - h
		down := oracle(wide)
		wide[i] = kept
		if want := (up - down) / (2 * h); math.Abs(float64(grad[i])-want) > 1e-4*(1+math.Abs(want)) {
			t.Errorf("gradient %d: %v, want %v", i, grad[i], want)
		}
	}
}

func normal(rng *rand.Rand, n int, scale float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(scale * rng.NormFloat64())
	}
	return x
}

func TestClippedSurrogate(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	const n, low, high = 64, 0.2, 0.3
	logProb, old, advantage := normal(rng, n, 0.4), normal(rng, n, 0.1), normal(rng, n, 1)
	value, grad := lossAndGrad(t, logProb, []int64{n}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
		return clippedSurrogate(s, x, s.Floats(old, n), s.Floats(advantage, n), low, high)
	})
	checkGrad(t, logProb, grad, value, func(x []float64) float64 {
		sum := 0.0
		for i := range x {
			a, ratio := float64(advantage[i]), math.Exp(x[i]-float64(old[i]))
			sum += math.Max(-a*ratio, -a*math.Min(math.Max(ratio, 1-low), 1+high))
		}
		return sum
	})
}

func TestSurrogateAtRatioOneHasThePolicyGradient(t *testing.T) {
	advantage := []float32{2, -1, 0.5}
	same := []float32{-0.1, -2, -0.7}
	_, grad := lossAndGrad(t, same, []int64{3}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
		return clippedSurrogate(s, x, s.Floats(same, 3), s.Floats(advantage, 3), 0.2, 0.2)
	})
	for i := range grad {
		if grad[i] != -advantage[i] {
			t.Errorf("gradient %d: %v, want %v, that of REINFORCE", i, grad[i], -advantage[i])
		}
	}
}

func TestClippedValueLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	const n = 64
	values, old, returns := normal(rng, n, 1), normal(rng, n, 1), normal(rng, n, 1)
	for _, limit := range []float64{0, 0.2, 1} {
		value, grad := lossAndGrad(t, values, []int64{n}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
			return clippedValueLoss(s, x, s.Floats(old, n), s.Floats(returns, n), limit)
		})
		checkGrad(t, values, grad, value, func(x []float64) float64 {
			sum := 0.0
			for i := range x {
				o, r := float64(old[i]), float64(returns[i])
				miss := (x[i] - r) * (x[i] - r)
				if limit > 0 {
					moved := o + math.Min(math.Max(x[i]-o, -limit), limit) - r
					miss = math.Max(miss, moved*moved)
				}
				sum += 0.5 * miss
			}
			return sum
		})
	}
}

func TestCrossEntropyLoss(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	const rows, classes, batch = 5, 4, 8
	logits := normal(rng, rows*classes, 2)
	labels := []int64{0, 3, 1, 1, 2}
	value, grad := lossAndGrad(t, logits, []int64{rows, classes}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
		return crossEntropyLoss(s, s.LogSoftmax(x), s.Ints(labels, rows), batch)
	})
	checkGrad(t, logits, grad, value, func(x []float64) float64 {
		sum := 0.0
		for i, y := range labels {
			row, total := x[i*classes:(i+1)*classes], 0.0
			for _, v := range row {
				total += math.Exp(v)
			}
			sum -= row[y] - math.Log(total)
		}
		return sum / batch
	})
}

// TestEnumeratedObjective differentiates −Σ_a π_a R(a, π) through the softmax, for rewards that read π.
func TestEnumeratedObjective(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 1))
	names := []string{"a", "b", "c"}
	const rows, classes = 4, 3
	logits := normal(rng, rows*classes, 1)
	labels := []int64{0, 2, 1, 1}
	for spec, reward := range map[string]func(correct, confidence float64, pi []float64, y int64) float64{
		"calibration": func(_, _ float64, pi []float64, y int64) float64 {
			sum := 0.0
			for k, p := range pi {
				hit := 0.0
				if int64(k) == y {
					hit = 1
				}
				sum += (p - hit) * (p - hit)
			}
			return 1 - sum/2
		},
		"accuracy=2,expr:'correct - 0.5*(1-correct)*confidence'": func(correct, confidence float64, _ []float64, _ int64) float64 {
			return 2*correct + correct - 0.5*(1-correct)*confidence
		},
	} {
		rewards, err := intent.ParseRewards(spec, names)
		if err != nil {
			t.Fatal(err)
		}
		trainer := &ppo{policy: &LabelPolicy{Labels: names}, rewards: rewards}
		value, grad := lossAndGrad(t, logits, []int64{rows, classes}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
			return trainer.enumerated(s, s.Exp(s.LogSoftmax(x)), labels)
		})
		checkGrad(t, logits, grad, value, func(x []float64) float64 {
			sum := 0.0
			for i, y := range labels {
				pi, total := make([]float64, classes), 0.0
				for k := range pi {
					pi[k] = math.Exp(x[i*classes+k])
					total += pi[k]
				}
				for k := range pi {
					pi[k] /= total
				}
				for a, p := range pi {
					correct := 0.0
					if int64(a) == y {
						correct = 1
					}
					sum -= p * reward(correct, p, pi, y)
				}
			}
			return sum
		})
	}
}
