package train

import (
	"context"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/decisions"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// supervise builds the supervised stage.
func (t *decisionRun) supervise(_ context.Context, w *work, p *policy.Decider, rows, val asked) error {
	c := t.config
	var units [][]*rl.Sample
	for _, row := range decisions.Rows(rows.cases) {
		var unit []*rl.Sample
		for _, i := range row {
			unit = append(unit, rows.samples[i])
		}
		units = append(units, unit)
	}
	source := epochs.NewPreferences(units, c.Supervised.BatchSize, 0, c.General.Seed)
	learning := &decisions.Supervised{LossOptions: c.DecisionSFT.LossOptions, Cases: rows.cases}
	w.what, w.source, w.algorithm, w.label, w.unit = "supervised training on answers with LoRA", source, learning, "supervised", "update"
	w.settings = t.settings(updates(c.Supervised.Epochs, c.Supervised.MaxSteps, source.PerEpoch()), c.Supervised.Optimisation, c.Supervised.Stopping, tokenMicroTokens, "loss")
	w.settings.HeadRate = c.DecisionSFT.HeadLearningRate
	w.settings.Evaluate = t.watch(p, val, c.DecisionSFT.Metric, source.PerEpoch(), nil)
	w.finish = func(_ context.Context, stage *run.Stage, found train.Result) error {
		return stage.Printf("Supervised training complete after %s (best: update %d by %s)", report.Plural(found.Steps, "update"), found.BestStep, c.DecisionSFT.Metric)
	}
	return nil
}

// reinforce builds the RL stage.
func (t *decisionRun) reinforce(_ context.Context, w *work, p *policy.Decider, rows, val asked) error {
	c, o := t.config, t.config.LabelRollouts
	if c.LabelReplay != nil {
		return c.Errorf("algorithm", "%s learns from a replay buffer, which decisions do not have", c.RL.Algorithm)
	}
	spec, key := o.RewardSpec()
	rewards, err := decisions.NewRewards(spec, rows.cases)
	if err != nil {
		return c.Errorf(key, "%v", err)
	}
	judged, err := decisions.NewRewards(spec, val.cases)
	if err != nil {
		return c.Errorf(key, "%v", err)
	}
	metric, err := decisionMetric(o.Metric, rewards.Names())
	if err != nil {
		return c.Errorf("rl_metric_for_best", "%v", err)
	}
	learning, way := c.Learning, c.RL.Algorithm
	chosen := c.Settings.(envs.DecisionSource).OnlyChosen()
	exact := !chosen || rewards.ReadsProbs() || decisions.Logged(rows.cases)
	if exact {
		way = "the exact gradient of the expected reward"
		if chosen {
			way = "an unbiased gradient of the expected reward, from whether a sampled answer was right"
		}
		learned := algo.New[decisions.Exact]()
		learned.Rewards, learned.Chosen = rewards, chosen
		learning = learned
	}
	w.what, w.algorithm, w.label, w.unit = "reinforcement learning with "+way, learning, c.RL.Algorithm, "rollout"
	w.settings = t.reinforced(o.Episodes, tokenMicroTokens, "reward")
	w.settings.Samples = o.Samples
	if learning.Needs().Ratio != algo.NoRatio {
		w.settings.MinibatchSize = o.BatchSize
	}
	w.settings.Evaluate = t.watch(p, val, metric, o.EvalEvery, judged)
	var source *decisions.Rollouts
	w.open = func(stage *run.Stage) error {
		source = decisions.NewRollouts(p, rows.cases, rows.samples, rewards, decisions.RolloutConfig{
			LabelOptions: t.trial.limitLabels(o.LabelOptions), Algorithm: c.RL.Algorithm, Steps: o.Episodes, Seed: c.General.Seed,
		})
		w.source = source
		return nil
	}
	w.finish = func(_ context.Context, stage *run.Stage, found train.Result) error {
		return stage.Printf("RL complete. Highest reward of a rollout: %.4f (best by %s: rollout %d)", source.BestReward(), metric, found.BestStep)
	}
	return nil
}

// decisionMetric is the validation figure that picks the best weights.
func decisionMetric(metric string, rewards []string) (string, error) {
	if strings.HasPrefix(metric, "f1") {
		return "", fmt.Errorf("%s is of classifiers; choose auto, accuracy, brier or ece", metric)
	}
	if metric = bestMetric(metric, rewards); metric == evaluate.MetricReward && len(rewards) == 1 && rewards[0] == "brier" {
		metric = evaluate.MetricBrier
	}
	return metric, nil
}

// watch evaluates the policy on validation rows, once in `every` steps.
func (t *decisionRun) watch(p *policy.Decider, val asked, metric string, every int, rewards *decisions.Rewards) *evaluate.Plan {
	of := decisions.Labelled(val.cases)
	return &evaluate.Plan{Rows: len(of), Every: every, First: rewards != nil, KeepBest: true, Run: func(ctx context.Context, _ int) (evaluate.Scores, error) {
		logProbs, err := p.LogProbs(context.WithoutCancel(ctx), val.samples)
		if err != nil {
			return evaluate.Scores{}, err
		}
		probs := make([][]float64, len(logProbs))
		for i, row := range logProbs {
			probs[i] = policy.Softmax(row, 1)
		}
		s := decisions.Evaluate(val.cases, probs).Scores
		row := report.Row{
			"eval_accuracy": s.Accuracy.Value, "eval_accuracy_low": s.Accuracy.Interval[0], "eval_accuracy_high": s.Accuracy.Interval[1],
			"eval_brier": s.Brier.Value, "eval_ece": s.ECE.Value, "eval_loss": s.Loss,
		}
		scores := evaluate.Scores{Name: metric, Row: row, Value: s}
		if s.Ranked != nil {
			row["eval_ranked"] = s.Ranked.Value
		}
		reward := 0.0
		if rewards != nil {
			for _, i := range of {
				small := make([]float32, len(probs[i]))
				for k, x := range probs[i] {
					small[k] = float32(x)
				}
				value, _ := rewards.Objective(i, val.cases[i].Target, small)
				reward += value / float64(len(of))
			}
			row["eval_reward"] = reward
		}
		switch metric {
		case evaluate.MetricAccuracy:
			scores.Score, scores.Error = s.Accuracy.Value, s.Accuracy.Interval.StandardError()
		case evaluate.MetricBrier:
			scores.Score, scores.Error = -s.Brier.Value, s.Brier.Interval.StandardError()
		case evaluate.MetricECE:
			scores.Score, scores.Error = -s.ECE.Value, s.ECE.Interval.StandardError()
		case evaluate.MetricReward:
			scores.Score = reward
		default:
			scores.Score = -s.Loss
		}
		scores.Line = func(int) string {
			line := "Validation: " + s.String()
			if rewards != nil {
				line += fmt.Sprintf(", reward=%.4f", reward)
			}
			return line
		}
		return scores, nil
	}}
}
