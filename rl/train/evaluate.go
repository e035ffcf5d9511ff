package train

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// evaluator evaluates the policy, keeps its best weights, and says when training is done.
type evaluator struct {
	*reporter
	best run.Snapshot
}

// verdict is the part of an evaluation that decides how training continues.
type verdict struct {
	Score float64
	Done  bool
}

// ifDue evaluates after the last step and after every so many.
func (t *evaluator) ifDue(ctx context.Context) error {
	e, step := t.config.Evaluate, t.state.Step
	if e == nil || step < t.config.Steps && (e.Every == 0 || step%e.Every != 0) {
		return nil
	}
	return t.evaluate(context.WithoutCancel(ctx))
}

// evaluate runs the plan, and reports what it found.
func (t *evaluator) evaluate(ctx context.Context) error {
	e, j := t.config.Evaluate, &t.state.Judged
	t.hooks.Phases.Begin(run.PhaseEvaluation)
	torch.ReleaseMemory()
	defer torch.ReleaseMemory()
	scores, err := e.Run(ctx, t.state.Step)
	if err != nil {
		return err
	}
	if j.Last, err = json.Marshal(scores.Value); err != nil {
		return fmt.Errorf("evaluation: %w", err)
	}
	score, standardError, err := e.Pick(scores)
	if err != nil {
		return err
	}
	// Ranks may differ in the last bit; rank 0 decides for all.
	if t.hooks.Group.Size() > 1 {
		first, err := dist.First(t.hooks.Group, verdict{score, scores.Done})
		if err != nil {
			return err
		}
		score, scores.Done = first.Score, first.Done
	}
	j.LastScore = e.Describe(score, scores.Name)
	if err := t.compare(score); err != nil {
		return err
	}
	stop := t.config.Patience > 0 && j.Waited >= t.config.Patience
	t.state.Done = scores.Done || stop
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
	if err := t.warn(t.state.Watch.Evaluated(score, standardError)); err != nil {
		return err
	}
	if err := t.warn(t.state.Watch.Held(e.Rows)); err != nil {
		return err
	}
	if a, ok := scores.Value.(rl.AnswerScores); ok {
		if err := t.warn(t.state.Watch.Strict(a, rl.DefaultAlarmLimits())); err != nil {
			return err
		}
	}
	if stop && t.state.Step < t.config.Steps {
		return t.hooks.Logf("Early stopping: %s in a row without a new best since step %d", report.Plural(j.Waited, "evaluation"), j.BestStep)
	}
	return nil
}

// compare keeps the weights if score is the best so far.
func (t *evaluator) compare(score float64) (err error) {
	j := &t.state.Judged
	j.Waited++
	if j.Best == nil || score > j.BestScore+t.config.Threshold {
		j.Waited = 0
	}
	if j.Best != nil && !(score > j.BestScore) {
		return nil
	}
	j.Best, j.BestScore, j.BestStep = j.Last, score, t.state.Step
	switch {
	case !t.config.Evaluate.KeepBest:
	case t.best == nil:
		t.best, err = run.TakeSnapshot(t.policy)
	default:
		err = t.best.Take(t.policy)
	}
	return err
}
