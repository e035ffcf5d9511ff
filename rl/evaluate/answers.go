package evaluate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
)

// Metrics that can pick the best weights of a classifier.
const (
	MetricLoss       = "loss"
	MetricAccuracy   = "accuracy"
	MetricF1Macro    = "f1_macro"
	MetricF1Weighted = "f1_weighted"
	MetricBrier      = "brier"
	MetricECE        = "ece"
	MetricReward     = "reward" // the reward expected over the policy's choice
)

// LabelScores is a classifier evaluated on held-out rows.
type LabelScores struct {
	rl.Evaluation
	Loss   float64 // mean cross-entropy in nats
	Reward float64 // mean expected reward; 0 without rewards
}

// by is a metric, negated if lower is better.
func (v LabelScores) by(metric string) (float64, error) {
	switch metric {
	case MetricLoss:
		return -v.Loss, nil
	case MetricAccuracy:
		return v.Accuracy, nil
	case MetricF1Macro:
		return v.F1Macro, nil
	case MetricF1Weighted:
		return v.F1Weighted, nil
	case MetricBrier:
		return -v.Brier, nil
	case MetricECE:
		return -v.ECE, nil
	case MetricReward:
		return v.Reward, nil
	}
	return 0, fmt.Errorf("unknown metric %q", metric)
}

// Labels evaluates a classifier on validation rows every so many steps, and picks the best by a metric. With rewards, which
// may be nil, it also computes the reward expected over the policy's choice, if they can be enumerated.
func Labels(p *policy.Classifier, validation policy.Examples, metric string, every int, rewards *reward.Labels) (*Plan, error) {
	if validation.Len() == 0 {
		return nil, errors.New("no validation rows")
	}
	if _, err := (LabelScores{}).by(metric); err != nil {
		return nil, err
	}
	return &Plan{Rows: validation.Len(), Every: every, First: rewards != nil, KeepBest: true, Run: func(ctx context.Context, steps int) (Scores, error) {
		probs, err := p.Probs(context.WithoutCancel(ctx), validation.IDs)
		if err != nil {
			return Scores{}, err
		}
		v := LabelScores{Evaluation: rl.Evaluate(p.Labels, validation.Labels, probs), Loss: crossEntropy(validation.Labels, probs)}
		row := report.Row{
			"eval_accuracy": v.Accuracy, "eval_accuracy_low": v.Intervals.Accuracy[0], "eval_accuracy_high": v.Intervals.Accuracy[1], "eval_f1_macro": v.F1Macro, "eval_f1_weighted": v.F1Weighted,
			"eval_brier": v.Brier, "eval_ece": v.ECE, "eval_loss": v.Loss,
		}
		if rewards == nil {
			epoch := (steps + every - 1) / every
			row["epoch"] = float64(epoch)
			return v.scores(metric, row, func(int) string {
				return fmt.Sprintf("Epoch %d: validation loss=%.4f, accuracy=%.4f, f1_weighted=%.4f, f1_macro=%.4f, ece=%.4f, brier=%.4f",
					epoch, v.Loss, v.Accuracy, v.F1Weighted, v.F1Macro, v.ECE, v.Brier)
			})
		}
		if rewards.Enumerable() {
			v.Reward = expectedReward(rewards, validation.Labels, probs)
			row["eval_reward"] = v.Reward
		}
		return v.scores(metric, row, func(best int) string {
			return fmt.Sprintf("Validation: accuracy=%.4f, f1_macro=%.4f, ece=%.4f, brier=%.4f, reward=%.4f (best episode: %d)",
				v.Accuracy, v.F1Macro, v.ECE, v.Brier, v.Reward, best)
		})
	}}, nil
}

func (v LabelScores) scores(metric string, row report.Row, line func(best int) string) (Scores, error) {
	score, err := v.by(metric)
	scores := Scores{Name: metric, Score: score, Row: row, Line: line, Value: v}
	switch metric {
	case MetricAccuracy, MetricF1Macro, MetricF1Weighted:
		scores.Error = v.Intervals.Accuracy.StandardError()
	case MetricECE:
		scores.Error = v.Intervals.ECE.StandardError()
	}
	return scores, err
}

// expectedReward is the mean over the rows whose reward did not fail.
func expectedReward(rewards *reward.Labels, truths []int, probs [][]float32) float64 {
	scores, _ := rewards.Expected(truths, slices.Concat(probs...))
	sum, n := 0.0, 0.0
	for _, total := range scores.Total {
		if !math.IsNaN(total) {
			sum, n = sum+total, n+1
		}
	}
	return sum / max(1, n)
}

// crossEntropy is the mean of −log π(label). A probability that underflowed counts as the smallest one.
func crossEntropy(labels []int, probs [][]float32) float64 {
	sum := 0.0
	for i, y := range labels {
		sum -= math.Log(math.Max(float64(probs[i][y]), math.SmallestNonzeroFloat32))
	}
	return sum / float64(max(1, len(labels)))
}

// Validated is a language model, here or on a service.
type Validated interface {
	Validate(ctx context.Context, samples []*rl.Sample) (policy.Validation, error)
}

// Loss evaluates a language model by its loss on validation samples every so many steps, one epoch. Without samples it is
// nil: no evaluation.
func Loss(p Validated, validation []*rl.Sample, every int) *Plan {
	if len(validation) == 0 {
		return nil
	}
	return &Plan{Every: every, KeepBest: true, Run: func(ctx context.Context, steps int) (Scores, error) {
		v, err := p.Validate(context.WithoutCancel(ctx), validation)
		if err != nil {
			return Scores{}, err
		}
		epoch := (steps + every - 1) / every
		row := report.Row{"epoch": float64(epoch), "eval_loss": v.Loss, "eval_perplexity": v.Perplexity()}
		line := fmt.Sprintf("Epoch %d: validation loss=%.4f, perplexity=%.3f", epoch, v.Loss, v.Perplexity())
		if !v.Partial {
			row["eval_mean_token_accuracy"], row["eval_entropy"] = v.Accuracy, v.Entropy
			line += fmt.Sprintf(", token accuracy=%.4f", v.Accuracy)
		}
		return Scores{
			Name: "loss", Score: -v.Loss, Value: v,
			Row:  row,
			Line: func(int) string { return line },
		}, nil
	}}
}

// Answers evaluates a language model on the first n held-out episodes of a task, played with c: before the first step,
// every so many steps, and after the last. With n 0 it is nil: no evaluation.
func Answers(sampler rollout.Generator, task envs.Task, n, every int, c rollout.Config) *Plan {
	if n == 0 {
		return nil
	}
	return &Plan{Rows: n, Every: every, First: true, KeepBest: true, Run: func(ctx context.Context, steps int) (Scores, error) {
		failed := 0
		var first error
		c.Failed = func(episode, sample int, err error) {
			if failed++; failed == 1 {
				first = fmt.Errorf("episode %d: %w", episode, err)
			}
		}
		scores, err := rollout.Evaluate(ctx, sampler, task, 0, n, c)
		if err != nil {
			return Scores{}, err
		}
		if failed == scores.N && failed > 0 {
			return Scores{}, fmt.Errorf("all %d episodes of the evaluation failed; the first: %w", failed, first)
		}
		name, score, standardError := "accuracy", scores.Accuracy, scores.Interval.StandardError()
		if scores.Reward != nil {
			name, score, standardError = "reward", *scores.Reward, scores.RewardError
		}
		return Scores{Name: name, Score: score, Error: standardError, Value: scores, Row: AnswerRow(scores), Line: func(best int) string {
			line := "Evaluation: " + DescribeAnswers(scores)
			if failed > 0 {
				line += fmt.Sprintf("; %d episodes failed and count as incorrect, the first: %v", failed, first)
			}
			return line + fmt.Sprintf(" (best step: %d)", best)
		}}, nil
	}}
}

// AnswerRow is the metrics of an evaluation.
func AnswerRow(s rl.AnswerScores) report.Row {
	row := report.Row{
		"eval_accuracy": s.Accuracy, "eval_accuracy_low": s.Interval[0], "eval_accuracy_high": s.Interval[1],
	}
	if !s.FreeForm {
		row["eval_format_rate"] = s.FormatRate
	}
	if s.Reward != nil {
		if !s.Verified() {
			row = report.Row{}
		}
		row["eval_reward"] = *s.Reward
		row["eval_reward_low"], row["eval_reward_high"] = s.RewardInterval()
		if !s.Verified() {
			return row
		}
	}
	for kind, score := range s.Kinds {
		row["eval_accuracy/"+kind] = score.Accuracy
		if score.Reward != nil {
			row["eval_reward/"+kind] = *score.Reward
		}
	}
	return row
}

// DescribeAnswers is an evaluation on one line.
func DescribeAnswers(s rl.AnswerScores) string {
	reward := ""
	if s.Reward != nil {
		low, high := s.RewardInterval()
		if reward = fmt.Sprintf("mean reward %.4f (n = %d, 95 %% CI %.4f–%.4f)", *s.Reward, s.N, low, high); !s.Verified() {
			return reward
		}
		reward += ", "
	}
	forms := s.Forms()
	if forms != "" {
		forms = "; " + forms
	}
	format := ""
	if !s.FreeForm {
		format = fmt.Sprintf(", format rate %.1f %%", 100*s.FormatRate)
	}
	return reward + fmt.Sprintf("accuracy %d/%d = %.1f %% (95 %% CI %.1f–%.1f)%s%s",
		s.Correct, s.N, 100*s.Accuracy, 100*s.Interval[0], 100*s.Interval[1], format, forms)
}
