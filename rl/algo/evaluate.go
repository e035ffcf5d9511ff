package algo

import (
	"context"
	"encoding/json"
	"fmt"

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
	if j.Best == nil || scores.Score > j.BestScore {
		j.Best, j.BestScore, j.BestStep = j.Last, scores.Score, t.state.Step
		if e.KeepBest {
			if t.best, err = run.TakeSnapshot(t.policy); err != nil {
				return err
			}
		}
	}
	if first {
		j.Before = j.Last
	}
	t.state.Done = scores.Done
	row := report.Row{"step": t.state.Step, "policy_version": t.state.Version}
	for name, value := range scores.Row {
		row[name] = value
	}
	if err := t.hooks.Write(row); err != nil {
		return err
	}
	if scores.Line == nil {
		return nil
	}
	return t.hooks.Logf("%s", scores.Line(j.BestStep))
}
