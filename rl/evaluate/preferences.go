package evaluate

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
)

// PreferenceScores is a policy evaluated on held-out preferences, with 95 % bootstrap intervals.
type PreferenceScores struct {
	N        int         `json:"n"`
	Loss     float64     `json:"loss"`
	Accuracy rl.Estimate `json:"accuracy"` // fraction of pairs whose chosen response has the higher implicit reward
	Margin   rl.Estimate `json:"margin"`   // of the implicit rewards
	Chosen   rl.Estimate `json:"logps_chosen"`
	Rejected rl.Estimate `json:"logps_rejected"`

	Units []UnitScore `json:"-"` // in the order of the units
}

// UnitScore is a unit as a policy or a reward model scores it.
type UnitScore struct {
	Rewards  []float64 // of each response, the best first; of a policy the implicit ones
	LogProbs []float64 // of each response; nil for a reward model
	Margin   float64   // of a policy: by how much the better response is preferred, or a single one judged right
}

// preferenceTokens is how many tokens a forward pass of an evaluation may have.
const preferenceTokens = 4096

// ScorePreferences evaluates a policy on pairs, or on single answers, with the loss of an algorithm that learns from
// them. Its samples carry the reference's log-probabilities if the loss needs them. Accuracy and margin are those of the
// implicit rewards, where ties count ½: of a pair the chosen answer's less the rejected one's, of a single answer its own, negated if the answer
// is bad.
func ScorePreferences(ctx context.Context, p policy.Policy, a algo.Algorithm, units [][]*rl.Sample) (PreferenceScores, error) {
	samples, needs := slices.Concat(units...), a.Needs()
	scores, figures := PreferenceScores{N: len(units)}, map[string]float64{}
	var sums []float64
	actions := 0
	for _, x := range samples {
		actions += x.Len()
	}
	for _, part := range rl.Parts(samples, needs.Together, preferenceTokens) {
		if err := ctx.Err(); err != nil {
			return scores, err
		}
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			out := p.Forward(s, rl.NewBatch(part), policy.Pass{Temperature: 1})
			rl.PerSample(part, s.Read(out.LogProbs), func(_ *rl.Sample, v []float32) { sums = append(sums, rl.Total(v)) })
			b := &algo.Batch{LogProbs: out.LogProbs, Samples: float64(len(samples)), Actions: actions, Whole: samples, Part: part, Figures: figures}
			scores.Loss += s.Item(a.Loss(s, b))
			return nil
		}); err != nil {
			return scores, fmt.Errorf("evaluating preferences: %w", err)
		}
	}
	var right, margins []float64
	sides := map[bool][]float64{}
	at := 0
	for _, unit := range units {
		var rewards, logProbs []float64
		for _, x := range unit {
			sum := sums[at]
			at++
			good := x.Index == 0 && x.Truth == 1
			sides[good] = append(sides[good], sum)
			rewards, logProbs = append(rewards, implicitReward(needs, x, sum)), append(logProbs, sum)
		}
		margin := rewards[0]
		switch {
		case len(unit) == 2:
			margin -= rewards[1]
		case unit[0].Truth != 1:
			margin = -margin
		}
		margins = append(margins, margin)
		right = append(right, preferred(margin))
		scores.Units = append(scores.Units, UnitScore{rewards, logProbs, margin})
	}
	scores.Accuracy, scores.Margin = rl.RateEstimate(right), rl.MeanEstimate(margins)
	scores.Chosen, scores.Rejected = rl.MeanEstimate(sides[true]), rl.MeanEstimate(sides[false])
	return scores, nil
}

// preferred is 1 if the better response has the higher reward, 0 if it has the lower one, ½ if both are equal.
func preferred(margin float64) float64 { return float64(1+cmp.Compare(margin, 0)) / 2 }

func implicitReward(needs algo.Needs, x *rl.Sample, sum float64) float64 {
	if needs.ImplicitReward != nil {
		return needs.ImplicitReward(x, sum)
	}
	return sum - rl.Total(x.Reference)
}

// AskReference sets Reference of samples; base asks the policy without its adapter.
func AskReference(reference policy.Policy, base bool, samples []*rl.Sample) error {
	return ask(reference, base, samples, func(x *rl.Sample, v []float32) { x.Reference = v })
}

// PrepareKL lets an algorithm estimate its KL from samples that carry the reference's log-probabilities: prompts with
// each other's answers.
func PrepareKL(p policy.Policy, a algo.Algorithm, samples []*rl.Sample) error {
	if err := ask(p, false, samples, func(x *rl.Sample, v []float32) { x.Old = v }); err != nil {
		return err
	}
	return a.Prepare(&rl.Step{KLSamples: samples, Figures: rl.Meter{}})
}

// ask reads a policy's log-probabilities of the actions of samples.
func ask(p policy.Policy, base bool, samples []*rl.Sample, take func(x *rl.Sample, logProbs []float32)) error {
	for _, part := range rl.Parts(samples, false, preferenceTokens) {
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			out := p.Forward(s, rl.NewBatch(part), policy.Pass{Base: base, Temperature: 1})
			rl.PerSample(part, s.Read(out.LogProbs), take)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// Preferences evaluates a policy on held-out preferences before the first step and every so many steps, and keeps the
// weights with the lowest loss. Without units it is nil: no evaluation.
func Preferences(p policy.Policy, a algo.Algorithm, units [][]*rl.Sample, every int) *Plan {
	if len(units) == 0 {
		return nil
	}
	return &Plan{Rows: len(units), Every: every, First: true, KeepBest: true, Run: func(ctx context.Context, steps int) (Scores, error) {
		v, err := ScorePreferences(context.WithoutCancel(ctx), p, a, units)
		if err != nil {
			return Scores{}, err
		}
		row := report.Row{
			"eval_loss": v.Loss, "eval_rewards/accuracies": v.Accuracy.Value, "eval_rewards/margins": v.Margin.Value,
			"eval_logps/chosen": v.Chosen.Value, "eval_logps/rejected": v.Rejected.Value,
		}
		return Scores{Name: "loss", Score: -v.Loss, Row: row, Value: v, Line: func(best int) string {
			return fmt.Sprintf("Held-out preferences, step %d: %s (best step: %d)", steps, v, best)
		}}, nil
	}}
}

// String returns the scores on one line.
func (v PreferenceScores) String() string {
	return fmt.Sprintf("loss %.4f, accuracy %.1f %% (95 %% CI %.1f–%.1f, n = %d), reward margin %.4f (%.4f to %.4f), log-probabilities %.2f chosen, %.2f rejected",
		v.Loss, 100*v.Accuracy.Value, 100*v.Accuracy.Interval[0], 100*v.Accuracy.Interval[1], v.N,
		v.Margin.Value, v.Margin.Interval[0], v.Margin.Interval[1], v.Chosen.Value, v.Rejected.Value)
}

// RewardScores is a reward model evaluated on held-out pairs.
type RewardScores struct {
	N          int         `json:"n"`        // pairs; all pairs of a ranking count
	Accuracy   float64     `json:"accuracy"` // fraction of pairs whose better response has the higher reward; ties count ½
	Interval   rl.Interval `json:"interval"` // of it
	Margin     rl.Estimate `json:"margin"`
	Loss       float64     `json:"loss"` // −log σ(r_c − r_r)
	ECE        float64     `json:"ece"`  // of P(chosen) = σ(r_c − r_r), over 15 bins
	Brier      float64     `json:"brier"`
	MeanReward float64     `json:"mean_reward"`
	Longer     rl.Estimate `json:"longer"` // fraction of pairs whose better response has more tokens

	Units []UnitScore `json:"-"` // in the order of the units
}

// ScoreRewards evaluates a reward model.
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
	var margins, right, longer []float64
	at := 0
	for _, unit := range units {
		v.Units = append(v.Units, UnitScore{Rewards: rewards[at : at+len(unit)]})
		for i := range unit {
			v.MeanReward += rewards[at+i] / float64(len(rewards))
			for j := i + 1; j < len(unit); j++ {
				margin := rewards[at+i] - rewards[at+j]
				margins, right = append(margins, margin), append(right, preferred(margin))
				longer = append(longer, isLonger(unit[i], unit[j]))
				v.Loss += math.Log1p(math.Exp(-math.Abs(margin))) + math.Max(0, -margin)
				// The better response is the first and the second in turn, so that both labels occur.
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
	accuracy := rl.RateEstimate(right)
	v.Accuracy, v.Interval, v.ECE, v.Brier = accuracy.Value, accuracy.Interval, e.ECE, e.Brier
	v.Margin, v.Longer = rl.MeanEstimate(margins), rl.RateEstimate(longer)
	v.Loss /= float64(v.N)
	return v, nil
}

// isLonger is 1 if a has more tokens than b, 0 if it has fewer, ½ if they have as many.
func isLonger(a, b *rl.Sample) float64 {
	return float64(1+cmp.Compare(len(a.Tokens), len(b.Tokens))) / 2
}

// LengthRule is a baseline for reward models: prefer the longer response, or the shorter one, whichever is right for more
// training pairs.
type LengthRule struct {
	Prefers  string      `json:"prefers"`  // longer or shorter
	Accuracy rl.Estimate `json:"accuracy"` // on the held-out pairs; equal lengths count ½
}

// RuleOfLength finds the rule on training units, and evaluates it on the pairs of held.
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

// String returns the rule on one line.
func (r LengthRule) String() string {
	return fmt.Sprintf("preferring the %s response has accuracy %.1f %% (95 %% CI %.1f–%.1f)", r.Prefers, 100*r.Accuracy.Value, 100*r.Accuracy.Interval[0], 100*r.Accuracy.Interval[1])
}

// Rewards evaluates a reward model on held-out pairs before the first step and every so many steps, and keeps the weights
// with the lowest loss. Without units it is nil.
func Rewards(m *policy.RewardModel, units [][]*rl.Sample, every int) *Plan {
	if len(units) == 0 {
		return nil
	}
	return &Plan{Rows: len(units), Every: every, First: true, KeepBest: true, Run: func(ctx context.Context, steps int) (Scores, error) {
		v, err := ScoreRewards(context.WithoutCancel(ctx), m, units)
		if err != nil {
			return Scores{}, err
		}
		row := report.Row{"eval_loss": v.Loss, "eval_accuracy": v.Accuracy, "eval_margin": v.Margin.Value, "eval_ece": v.ECE, "eval_brier": v.Brier, "eval_mean_reward": v.MeanReward}
		return Scores{Name: "loss", Score: -v.Loss, Row: row, Value: v, Line: func(best int) string {
			return fmt.Sprintf("Held-out pairs, step %d: %s (best step: %d)", steps, v, best)
		}}, nil
	}}
}

// String returns the scores on one line.
func (v RewardScores) String() string {
	return fmt.Sprintf("accuracy %.1f %% (95 %% CI %.1f–%.1f, n = %d), margin %.4f (%.4f to %.4f), loss %.4f, ECE %.4f, Brier %.4f",
		100*v.Accuracy, 100*v.Interval[0], 100*v.Interval[1], v.N, v.Margin.Value, v.Margin.Interval[0], v.Margin.Interval[1], v.Loss, v.ECE, v.Brier)
}
