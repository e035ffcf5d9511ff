package train

import (
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// reporter writes metrics, lines and warnings.
type reporter struct{ *ranks }

// step reports a finished step.
func (t *reporter) step(step *rl.Step) error {
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
		figures := report.Row{}
		m.Fill(figures)
		if err := t.hooks.StepLine(step.Line(m), figures); err != nil {
			return err
		}
	}
	for _, note := range step.Notes {
		if err := t.hooks.Logf("%s", note); err != nil {
			return err
		}
	}
	if err := t.seek(step); err != nil {
		return err
	}
	return t.watch(step)
}

// watch logs the alarms of a step.
func (t *reporter) watch(step *rl.Step) error {
	m, w := step.Figures, &t.state.Watch
	byReward := t.needs.Rewards && t.needs.Teacher == ""
	if _, ok := m["reward"]; ok && byReward {
		w.Learnt(m.Get("reward"))
	} else if _, ok := m["loss"]; ok && !byReward {
		w.Learnt(-m.Get("loss"))
	}
	if step.Health == nil {
		return nil
	}
	step.Health.KL = m.Get("kl/k3")
	step.Health.HasTeacher = t.needs.Teacher != ""
	return t.warn(w.Step(*step.Health, rl.DefaultAlarmLimits()))
}

// flush writes a row of the figures since the last one, and with line a line of it.
func (t *reporter) flush(line bool) error {
	row := report.Row{}
	t.state.Window.Fill(row)
	if t.hooks.Now == nil {
		dropTimes(row)
	}
	t.state.Window = rl.Meter{}
	if err := t.hooks.Write(row); err != nil || !line {
		return err
	}
	return t.hooks.StepLine(fmt.Sprintf("step %d/%d %s", t.state.Step, t.config.Steps, report.RowLine(row)), row)
}

// dropTimes removes the times of a run without a clock.
func dropTimes(row report.Row) {
	for name := range row {
		if strings.HasPrefix(name, "time/") {
			delete(row, name)
		}
	}
}

// warn logs alarms.
func (t *reporter) warn(alarms []rl.Alarm) error {
	for _, alarm := range alarms {
		if err := t.hooks.Logf("warning: %s: %s", alarm.Name, alarm.Text); err != nil {
			return err
		}
	}
	return nil
}
