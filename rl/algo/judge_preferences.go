package algo

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
)

// PreferenceScores are a policy on preferences that it does not train on, with 95 % intervals of a bootstrap over them.
type PreferenceScores struct {
	N        int         `json:"n"`
	Loss     float64     `json:"loss"`
	Accuracy rl.Estimate `json:"accuracy"` // share of pairs whose chosen answer has the higher implicit reward
	Margin   rl.Estimate `json:"margin"`   // of the implicit rewards
	Chosen   rl.Estimate `json:"logps_chosen"`
	Rejected rl.Estimate `json:"logps_rejected"`
}

// preferenceTokens bounds a forward pass of an evaluation.
const preferenceTokens = 4096

// Score judges a policy by pairs, or with loss kto by single answers, whose samples know what the reference thinks of
// them where the loss asks for it. Of a single answer the accuracy is the share on the right side of K, which is that of
// the last step or of Mismatch, and the margin the reward's distance from there.
func (a *DPO) Score(ctx context.Context, p policy.Policy, units [][]*rl.Sample) (PreferenceScores, error) {
	samples := slices.Concat(units...)
	t := &Trainer{policy: p, needs: a.Needs(), config: Config{MicroTokens: preferenceTokens}.complete()}
	scores, figures := PreferenceScores{N: len(units)}, map[string]float64{}
	var sums []float64
	actions := 0
	for _, x := range samples {
		actions += x.Len()
	}
	for _, part := range t.parts(samples) {
		if err := ctx.Err(); err != nil {
			return scores, err
		}
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			out := p.Forward(s, rl.NewBatch(part), policy.Pass{Temperature: 1})
			spread(part, s.Read(out.LogProbs), func(_ *rl.Sample, v []float32) { sums = append(sums, total(v)) })
			b := &Batch{LogProbs: out.LogProbs, Samples: len(samples), Actions: actions, Whole: samples, Part: part, figures: figures}
			scores.Loss += s.Item(a.loss(s, b))
			return nil
		}); err != nil {
			return scores, fmt.Errorf("judging preferences: %w", err)
		}
	}
	var right, margins []float64
	sides := map[bool][]float64{}
	at := 0
	for _, unit := range units {
		var rewards []float64
		for _, x := range unit {
			sum := sums[at]
			at++
			sides[x.Index == 0 && x.Truth == 1] = append(sides[x.Index == 0 && x.Truth == 1], sum)
			rewards = append(rewards, a.reward(x, sum))
		}
		margin := 0.0
		switch {
		case len(unit) == 2:
			margin = rewards[0] - rewards[1]
		case unit[0].Truth == 1:
			margin = rewards[0] - a.Beta*a.kl
		default:
			margin = a.Beta*a.kl - rewards[0]
		}
		margins = append(margins, margin)
		right = append(right, map[bool]float64{true: 1}[margin > 0])
	}
	scores.Accuracy, scores.Margin = rl.MeanEstimate(right), rl.MeanEstimate(margins)
	scores.Chosen, scores.Rejected = rl.MeanEstimate(sides[true]), rl.MeanEstimate(sides[false])
	return scores, nil
}

// Refer asks a reference about samples; base asks it without its adapter.
func Refer(reference policy.Policy, base bool, samples []*rl.Sample) error {
	t := &Trainer{policy: reference, config: Config{MicroTokens: preferenceTokens}.complete()}
	return t.askReference(samples, reference, base)
}

// Mismatch takes K of loss kto from prompts with each other's answers, about which the reference was asked, for Score.
func (a *DPO) Mismatch(p policy.Policy, aside []*rl.Sample) error {
	t := &Trainer{policy: p, config: Config{MicroTokens: preferenceTokens}.complete()}
	if err := t.askAside(aside); err != nil {
		return err
	}
	a.kl = meanRatio(aside)
	return nil
}

// reward is the implicit reward of an answer with Σ log π.
func (a *DPO) reward(x *rl.Sample, sum float64) float64 {
	for _, name := range a.Losses {
		if slices.Contains(averaged, name) {
			return a.Beta * sum / float64(x.Len())
		}
	}
	if x.Reference == nil {
		return a.Beta * sum
	}
	return a.Beta * (sum - total(x.Reference))
}

// JudgePreferences judges a policy by held-out preferences before the first step and every so many steps; the weights
// with the least loss are kept. Without units it is nil: nothing is judged.
func JudgePreferences(p policy.Policy, a *DPO, units [][]*rl.Sample, every int) *Evaluation {
	if len(units) == 0 {
		return nil
	}
	return &Evaluation{Every: every, First: true, KeepBest: true, Run: func(ctx context.Context, steps int) (Scores, error) {
		v, err := a.Score(context.WithoutCancel(ctx), p, units)
		if err != nil {
			return Scores{}, err
		}
		row := report.Row{
			"eval_loss": v.Loss, "eval_rewards/accuracies": v.Accuracy.Value, "eval_rewards/margins": v.Margin.Value,
			"eval_logps/chosen": v.Chosen.Value, "eval_logps/rejected": v.Rejected.Value,
		}
		return Scores{Score: -v.Loss, Row: row, Value: v, Line: func(best int) string {
			return fmt.Sprintf("Held-out preferences after step %d: %s (best step: %d)", steps, v, best)
		}}, nil
	}}
}

// String is the scores on one line.
func (v PreferenceScores) String() string {
	return fmt.Sprintf("loss %.4f, accuracy %.1f %% [%.1f, %.1f] of %d, reward margin %.4f [%.4f, %.4f], log-probabilities %.2f and %.2f",
		v.Loss, 100*v.Accuracy.Value, 100*v.Accuracy.Interval[0], 100*v.Accuracy.Interval[1], v.N,
		v.Margin.Value, v.Margin.Interval[0], v.Margin.Interval[1], v.Chosen.Value, v.Rejected.Value)
}

// RewardScores are a reward model on pairs that it does not train on.
type RewardScores struct {
	N          int         `json:"n"`        // pairs; all of a list count
	Accuracy   float64     `json:"accuracy"` // share of pairs whose better answer has the higher score
	Interval   rl.Interval `json:"interval"` // of it
	Margin     rl.Estimate `json:"margin"`
	Loss       float64     `json:"loss"` // −log σ(r_c − r_r)
	ECE        float64     `json:"ece"`  // of P(chosen) = σ(r_c − r_r), over 15 bins
	Brier      float64     `json:"brier"`
	MeanReward float64     `json:"mean_reward"`
	Longer     rl.Estimate `json:"longer"` // share of pairs whose better answer has more tokens
}

// ScoreRewards judges a reward model.
func ScoreRewards(ctx context.Context, m *policy.RewardModel, units [][]*rl.Sample) (RewardScores, error) {
	var v RewardScores
	var sequences [][]int32
	for _, x := range slices.Concat(units...) {
		sequences = append(sequences, x.Tokens)
	}
	rewards, err := m.Scores(ctx, sequences)
	if err != nil {
		return v, err
	}
	var truth []int
	var probs [][]float32
	var margins, longer []float64
	at := 0
	for _, unit := range units {
		for i := range unit {
			v.MeanReward += rewards[at+i] / float64(len(rewards))
			for j := i + 1; j < len(unit); j++ {
				margin := rewards[at+i] - rewards[at+j]
				margins = append(margins, margin)
				longer = append(longer, isLonger(unit[i], unit[j]))
				v.Loss += math.Log1p(math.Exp(-math.Abs(margin))) + math.Max(0, -margin)
				// The better answer is by turns the first and the second, so that both say something.
				first := float32(1 / (1 + math.Exp(-margin)))
				label := len(truth) % 2
				pair := []float32{first, 1 - first}
				if label == 1 {
					slices.Reverse(pair)
				}
				truth, probs = append(truth, label), append(probs, pair)
			}
		}
		at += len(unit)
	}
	v.N = len(margins)
	if v.N == 0 {
		return v, nil
	}
	e := rl.Evaluate([]string{"first", "second"}, truth, probs)
	v.Accuracy, v.Interval, v.ECE, v.Brier = e.Accuracy, e.Intervals.Accuracy, e.ECE, e.Brier
	v.Margin, v.Longer = rl.MeanEstimate(margins), rl.MeanEstimate(longer)
	v.Loss /= float64(v.N)
	return v, nil
}

// isLonger is 1 where a has more tokens than b, 0 where it has fewer, and between them where they have the same number.
func isLonger(a, b *rl.Sample) float64 {
	return float64(1+cmp.Compare(len(a.Tokens), len(b.Tokens))) / 2
}

// LengthRule is what a reward model has to beat: the choice of the longer answer, or of the shorter one, whichever is
// the better one in more of the pairs to learn from.
type LengthRule struct {
	Prefers  string      `json:"prefers"`  // longer or shorter
	Accuracy rl.Estimate `json:"accuracy"` // on the held-out pairs; equal lengths count one half
}

// RuleOfLength finds the rule on units to learn from, and measures it on those that held was measured on.
func RuleOfLength(units [][]*rl.Sample, held RewardScores) LengthRule {
	longer, n := 0.0, 0.0
	for _, unit := range units {
		for i := range unit {
			for _, worse := range unit[i+1:] {
				longer, n = longer+isLonger(unit[i], worse), n+1
			}
		}
	}
	if longer >= n/2 {
		return LengthRule{"longer", held.Longer}
	}
	low, high := held.Longer.Interval[0], held.Longer.Interval[1]
	return LengthRule{"shorter", rl.Estimate{Value: 1 - held.Longer.Value, Interval: rl.Interval{1 - high, 1 - low}}}
}

// String is the rule on one line.
func (r LengthRule) String() string {
	return fmt.Sprintf("the %s answer is the better one in %.1f %% [%.1f, %.1f] of them", r.Prefers, 100*r.Accuracy.Value, 100*r.Accuracy.Interval[0], 100*r.Accuracy.Interval[1])
}

// JudgeRewards judges a reward model by held-out pairs before the first step and every so many steps; the weights with
// the least loss are kept. Without units it is nil.
func JudgeRewards(m *policy.RewardModel, units [][]*rl.Sample, every int) *Evaluation {
	if len(units) == 0 {
		return nil
	}
	return &Evaluation{Every: every, First: true, KeepBest: true, Run: func(ctx context.Context, steps int) (Scores, error) {
		v, err := ScoreRewards(context.WithoutCancel(ctx), m, units)
		if err != nil {
			return Scores{}, err
		}
		row := report.Row{"eval_loss": v.Loss, "eval_accuracy": v.Accuracy, "eval_margin": v.Margin.Value, "eval_ece": v.ECE, "eval_brier": v.Brier, "eval_mean_reward": v.MeanReward}
		return Scores{Score: -v.Loss, Row: row, Value: v, Line: func(best int) string {
			return fmt.Sprintf("Held-out pairs after step %d: %s (best step: %d)", steps, v, best)
		}}, nil
	}}
}

// String is the scores on one line.
func (v RewardScores) String() string {
	return fmt.Sprintf("accuracy %.1f %% [%.1f, %.1f] of %d, margin %.4f [%.4f, %.4f], loss %.4f, ECE %.4f, Brier %.4f",
		100*v.Accuracy, 100*v.Interval[0], 100*v.Interval[1], v.N, v.Margin.Value, v.Margin.Interval[0], v.Margin.Interval[1], v.Loss, v.ECE, v.Brier)
}
