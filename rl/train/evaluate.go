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
			if t.best == nil {
				t.best, err = run.TakeSnapshot(t.policy)
			} else {
				err = t.best.Take(t.policy)
			}
			if err != nil {
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
	if err := t.warn(t.state.Watch.Evaluated(score, standardError)); err != nil {
		return err
	}
	if impatient && t.state.Step < t.config.Steps {
		return t.hooks.Logf("Stopped early: %s in a row no better than that after step %d", report.Plural(j.Waited, "evaluation"), j.BestStep)
	}
	return nil
}

// report writes the line and the row of a step, and what the alarms say.
func (t *Trainer) report(step *rl.Step) error {
	m, s, c := step.Figures, &t.state, t.config
	m.Last("step", float64(s.Step))
	m.Last("policy_version", float64(s.Version))
	if step.Health != nil {
		for tier, share := range s.Watch.Shares(step.Health.Tiers) {
			m.Mean("tiers/"+tier, share, 1)
		}
	}
	t.countTraffic(m)
	s.Window.Merge(m)
	note := ""
	if c.Summary != "" {
		note = fmt.Sprintf("%s %.3f", c.Summary, m.Get(c.Summary))
	}
	t.hooks.Advance(s.Step, c.Steps, note)
	if t.hooks.LogDue(s.Step) || s.Step == c.Steps {
		if err := t.flush(step.Line == nil); err != nil {
			return err
		}
		if err := t.hooks.Record(step); err != nil {
			return err
		}
	}
	if step.Line != nil {
		if err := t.hooks.StepLine(step.Line(m)); err != nil {
			return err
		}
	}
	for _, note := range step.Notes {
		if err := t.hooks.Logf("%s", note); err != nil {
			return err
		}
	}
	paid := t.needs.Rewards && t.needs.Teacher == ""
	if _, ok := m["reward"]; ok && paid {
		s.Watch.Learnt(m.Get("reward"))
	} else if _, ok := m["loss"]; ok && !paid {
		s.Watch.Learnt(-m.Get("loss"))
	}
	if step.Health == nil {
		return nil
	}
	step.Health.KL = m.Get("kl/k3")
	step.Health.Taught = t.needs.Teacher != ""
	return t.warn(s.Watch.Step(*step.Health, rl.DefaultAlarmLimits()))
}

// flush writes a row of the figures since the last one, and with say a line of it.
func (t *Trainer) flush(say bool) error {
	row := report.Row{}
	t.state.Window.Fill(row)
	if t.hooks.Now == nil {
		dropTimes(row)
	}
	t.state.Window = rl.Meter{}
	if err := t.hooks.Write(row); err != nil || !say {
		return err
	}
	return t.hooks.StepLine(fmt.Sprintf("step %d/%d %s", t.state.Step, t.config.Steps, report.RowLine(row)))
}

// warn tells of alarms.
func (t *Trainer) warn(alarms []rl.Alarm) error {
	for _, alarm := range alarms {
		if err := t.hooks.Logf("warning: %s: %s", alarm.Name, alarm.Text); err != nil {
			return err
		}
	}
	return nil
}
