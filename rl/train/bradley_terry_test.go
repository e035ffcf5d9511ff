package train

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// bradleyTerryOracle is the loss of units by its definition.
func bradleyTerryOracle(a *algo.BradleyTerry, units [][]*rl.Sample, scores []float64) float64 {
	loss, at := 0.0, 0
	for _, unit := range units {
		n := len(unit)
		for i := range n {
			for j := i + 1; j < n; j++ {
				c, r := scores[at+i], scores[at+j]
				pair := -math.Log(sigma(c-r-unit[i].Margin)) + a.Centring*(c+r)*(c+r)
				loss += pair / (float64(n*(n-1)) / 2) / float64(len(units))
			}
		}
		at += n
	}
	return loss
}

func TestBradleyTerryByHand(t *testing.T) {
	sizes := []int{2, 4, 2, 3}
	var units [][]*rl.Sample
	var scores []float32
	rng := rand.New(rand.NewPCG(5, 5))
	for u, n := range sizes {
		var unit []*rl.Sample
		for i := range n {
			unit = append(unit, &rl.Sample{Tokens: []int32{1}, Actions: []int32{0}, Prompt: u, Index: i})
			scores = append(scores, float32(rng.NormFloat64()))
		}
		unit[0].Margin = float64(u) / 4
		units = append(units, unit)
	}
	samples := slices.Concat(units...)
	exact := make([]float64, len(scores))
	for i, r := range scores {
		exact[i] = float64(r)
	}
	for _, a := range []*algo.BradleyTerry{{}, {Centring: 0.3}} {
		v, bounds := must.Open(torch.Parameter(scores, int64(len(scores))))(t), rl.Meter{}
		var grad []float32
		torchtest.Do(t, torch.Train, func(s *torch.Scope) {
			loss := a.Loss(s, &algo.Batch{Scores: v.T(), Samples: float64(len(samples)), Whole: samples, Part: samples, Figures: map[string]float64{}, Bounds: bounds})
			want := bradleyTerryOracle(a, units, exact)
			expect.True(t, math.Abs(s.Item(loss)-want) <= 1e-6, "loss %v, want %v", s.Item(loss), want)
			s.Backward(loss)
			g, _ := s.Grad(v)
			grad = s.Read(g)
		})
		for i := range exact {
			at := func(d float64) float64 {
				moved := slices.Clone(exact)
				moved[i] += d
				return bradleyTerryOracle(a, units, moved)
			}
			want := (at(1e-5) - at(-1e-5)) / 2e-5
			expect.True(t, math.Abs(float64(grad[i])-want) <= 1e-6, "gradient %v of score %d, want %v", grad[i], i, want)
		}
		expect.True(t, bounds.Get("min_reward") == slices.Min(exact) && bounds.Get("max_reward") == slices.Max(exact), "%v of %v", bounds, exact)
	}
	figures, bounds := map[string]float64{}, rl.Meter{}
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		b := &algo.Batch{Scores: s.Floats([]float32{2, 1, 0, 3}, 4), Samples: 4, Whole: slices.Concat(units[0], units[2]), Part: slices.Concat(units[0], units[2]), Figures: figures, Bounds: bounds}
		(&algo.BradleyTerry{}).Loss(s, b)
	})
	delete(figures, "loss")
	want := map[string]float64{"margin": (1.0 - 3) / 2, "accuracy": 0.5, "mean_reward": 1.5}
	expect.Equal(t, want, figures)
}

// tinyReward is a reward model on a tiny language model or encoder.
func tinyReward(t testing.TB, encoder bool) *policy.RewardModel {
	t.Helper()
	torchtest.NoLeaks(t)
	dir := t.TempDir() + "/tiny"
	if encoder {
		dir = policytest.Encoder(t)
	} else {
		must.Do(t, policy.TinyModel(dir, 2, 32, 3))
	}
	return must.Open(policy.NewRewardModel(policy.Config{Dir: dir, R: 4, Alpha: 8, Seed: 5}))(t)
}

// scored returns n units of two or three answers; more of token 5 is better.
func scored(n int, seed uint64) [][]*rl.Sample {
	rng := rand.New(rand.NewPCG(seed, 3))
	var units [][]*rl.Sample
	for u := range n {
		var unit []*rl.Sample
		for i := range 2 + u%2 {
			x := &rl.Sample{Tokens: []int32{2, 3}, Actions: []int32{0}, Prompt: u, Index: i}
			for k := range 6 {
				token := int32(6 + rng.IntN(4))
				if k < 5-2*i {
					token = 5
				}
				x.Tokens = append(x.Tokens, token)
			}
			rng.Shuffle(6, func(a, b int) { x.Tokens[2+a], x.Tokens[2+b] = x.Tokens[2+b], x.Tokens[2+a] })
			unit = append(unit, x)
		}
		units = append(units, unit)
	}
	return units
}

func rewardRun(ctx context.Context, t *testing.T, m *policy.RewardModel, steps int, h run.Hooks) (Result, error) {
	t.Helper()
	return launch(ctx, m, epochs.NewPreferences(scored(21, 1), 4, 0, 5), &algo.BradleyTerry{Centring: 0.01}, Config{
		Steps: steps, HeadRate: 2e-2, Seed: 3, Memory: Memory{MicroTokens: 50}, Evaluate: evaluate.Rewards(m, scored(20, 2), 3),
		Optimisation: Optimisation{LearningRate: 1e-2, Schedule: "cosine", WarmupSteps: 2, MaxGradNorm: 0.5},
	}, h)
}

func ofRewards(encoder bool) resumable {
	return func(ctx context.Context, t *testing.T, h run.Hooks) (policy.Policy, Result, error) {
		m := tinyReward(t, encoder)
		result, err := rewardRun(ctx, t, m, 7, h)
		return m, result, err
	}
}

// TestScoreRewardsByHand evaluates known scores.
func TestScoreRewardsByHand(t *testing.T) {
	m := tinyReward(t, true)
	units := scored(6, 4)
	v := must.Get(evaluate.ScoreRewards(t.Context(), m, units))(t)
	var sequences [][]int32
	for _, x := range slices.Concat(units...) {
		sequences = append(sequences, x.Tokens)
	}
	scores := must.Get(m.Scores(t.Context(), sequences))(t)
	right, loss, brier, n, at := 0.0, 0.0, 0.0, 0.0, 0
	mean := average(scores)
	expect.True(t, math.Abs(v.MeanReward-mean) <= 1e-9, "mean reward %v, want %v", v.MeanReward, mean)
	for _, unit := range units {
		for i := range unit {
			for j := i + 1; j < len(unit); j++ {
				d := scores[at+i] - scores[at+j]
				if d > 0 {
					right++
				}
				loss, n = loss-math.Log(sigma(d)), n+1
				brier += 2 * (1 - sigma(d)) * (1 - sigma(d))
			}
		}
		at += len(unit)
	}
	expect.True(t, math.Abs(v.Accuracy-right/n) <= 1e-9 && math.Abs(v.Loss-loss/n) <= 1e-6 && math.Abs(v.Brier-brier/n) <= 1e-6 && v.Longer.Value == 0.5 && v.N == int(n),
		"%+v; want accuracy %v, loss %v, Brier %v", v, right/n, loss/n, brier/n)
}

// TestRuleOfLength: the direction comes from the training pairs, the accuracy from the held-out ones.
func TestRuleOfLength(t *testing.T) {
	of := func(lengths ...int) (unit []*rl.Sample) {
		for _, n := range lengths {
			unit = append(unit, &rl.Sample{Tokens: make([]int32, n)})
		}
		return unit
	}
	held := evaluate.RewardScores{Longer: rl.Estimate{Value: 0.25, Interval: rl.Interval{0.125, 0.5}}}
	for _, test := range []struct {
		units [][]*rl.Sample
		want  evaluate.LengthRule
	}{
		{[][]*rl.Sample{of(3, 2), of(5, 1), of(1, 2)}, evaluate.LengthRule{Prefers: "longer", Accuracy: held.Longer}},
		{[][]*rl.Sample{of(1, 2, 3), of(5, 1), of(4, 4)}, evaluate.LengthRule{Prefers: "shorter", Accuracy: rl.Estimate{Value: 0.75, Interval: rl.Interval{0.5, 0.875}}}},
	} {
		expect.Equal(t, test.want, evaluate.RuleOfLength(test.units, held))
	}
}
