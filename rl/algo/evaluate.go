package algo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"rltrain/rl/dist"
	"rltrain/rl/report"
	"rltrain/rl/run"
)

// Evaluation is how a policy is judged while it is trained.
type Evaluation struct {
	// Run judges the policy after so many steps. It is not left half done: it ends with an error only where it fails,
	// or where ctx ends before the first step.
	Run      func(ctx context.Context, steps int) (Scores, error)
	Every    int  // steps between evaluations; 0 = only after the last
	First    bool // judge the policy before the first step too
	KeepBest bool // training ends with the weights of the best evaluation
	// Metric picks the best by a figure of the row, its name without eval_; "" = by Scores.Score.
	Metric string
}

// Stopping says when training ends before its last step.
type Stopping struct {
	Patience  int     `option:"early_stopping_patience" range:"[0,)" help:"stop after this many evaluations in a row that are no better than the best; 0 = never"`
	Threshold float64 `option:"early_stopping_threshold" range:"[0,)" needs:"early_stopping_patience>0" help:"by how much an evaluation has to be better than the best to count"`
}

// Scores is what an evaluation found.
type Scores struct {
	Score float64    // what the best is picked by; more is better
	Row   report.Row // for the metrics, without the step
	Line  func(best int) string
	Value any  // for Result; encodes to JSON
	Done  bool // the policy is good enough: training ends
}

// judgements are what a checkpoint keeps of evaluations.
type judgements struct {
	Before    json.RawMessage `json:"before,omitempty"`
	Best      json.RawMessage `json:"best,omitempty"`
	Last      json.RawMessage `json:"last,omitempty"`
	BestScore float64         `json:"best_score"`
	BestStep  int             `json:"best_step"`
	Waited    int             `json:"waited,omitempty"` // evaluations in a row that were no better
}

// verdict is what of an evaluation the course of the training depends on.
type verdict struct {
	Score float64
	Done  bool
}

func (t *Trainer) evaluateIfDue(ctx context.Context) error {
	e, step := t.config.Evaluate, t.state.Step
	if e == nil || step < t.config.Steps && (e.Every == 0 || step%e.Every != 0) {
		return nil
	}
	return t.evaluate(context.WithoutCancel(ctx), false)
}

// evaluate judges the policy and remembers its weights where they are the best so far.
func (t *Trainer) evaluate(ctx context.Context, first bool) error {
	e, j := t.config.Evaluate, &t.state.Judged
	scores, err := e.Run(ctx, t.state.Step)
	if err != nil {
		return err
	}
	if j.Last, err = json.Marshal(scores.Value); err != nil {
		return fmt.Errorf("evaluation: %w", err)
	}
	score, err := e.score(scores)
	if err != nil {
		return err
	}
	// What follows from it follows for all, whatever the processors of the others make of the last bit.
	if t.hooks.Group.Size() > 1 {
		verdict, err := dist.First(t.hooks.Group, verdict{score, scores.Done})
		if err != nil {
			return err
		}
		score, scores.Done = verdict.Score, verdict.Done
	}
	j.Waited++
	if j.Best == nil || score > j.BestScore+t.config.Threshold {
		j.Waited = 0
	}
	if j.Best == nil || score > j.BestScore {
		j.Best, j.BestScore, j.BestStep = j.Last, score, t.state.Step
		if e.KeepBest {
			if t.best, err = run.TakeSnapshot(t.policy); err != nil {
				return err
			}
		}
	}
	if first {
		j.Before = j.Last
	}
	impatient := t.config.Patience > 0 && j.Waited >= t.config.Patience
	t.state.Done = scores.Done || impatient
	row := report.Row{"step": t.state.Step, "policy_version": t.state.Version}
	for name, value := range scores.Row {
		row[name] = value
	}
	if err := t.hooks.Write(row); err != nil {
		return err
	}
	if scores.Line != nil {
		if err := t.hooks.Logf("%s", scores.Line(j.BestStep)); err != nil {
			return err
		}
	}
	if err := t.warn(t.state.Watch.Evaluated(score)); err != nil {
		return err
	}
	if impatient && t.state.Step < t.config.Steps {
		return t.hooks.Logf("Stopped early: %s in a row no better than that after step %d", report.Plural(j.Waited, "evaluation"), j.BestStep)
	}
	return nil
}

// lessIsBetter are figures of evaluations that fall where a policy gets better.
var lessIsBetter = []string{"loss", "perplexity", "entropy", "ece", "brier"}

// score is what the best is picked by.
func (e *Evaluation) score(s Scores) (float64, error) {
	if e.Metric == "" {
		return s.Score, nil
	}
	value, ok := s.Row["eval_"+e.Metric].(float64)
	if !ok {
		var known []string
		for _, name := range slices.Sorted(maps.Keys(s.Row)) {
			if short, is := strings.CutPrefix(name, "eval_"); is {
				known = append(known, short)
			}
		}
		return 0, fmt.Errorf("the evaluations have no figure %q to pick the best by: choose %s", e.Metric, strings.Join(known, ", "))
	}
	if slices.Contains(lessIsBetter, e.Metric) {
		return -value, nil
	}
	return value, nil
}
