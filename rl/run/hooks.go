package run

import (
	"errors"
	"fmt"
	"time"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/report"
)

// Hooks connect training to logs, metrics and checkpoints. The zero value logs and saves nothing.
type Hooks struct {
	// Log takes lines for the console and the training log.
	Log func(format string, args ...any) error
	// Row takes a row of metrics, of some steps or of an evaluation.
	Row func(row report.Row) error
	// LogEvery is the number of steps between rows; 0 = 1.
	LogEvery int
	// Step takes the line of a step, for the training log, and its figures, for the console.
	Step func(line string, figures report.Row) error
	// Keep takes completions of a logged step: those of Prompts prompts, or of all if Prompts is negative.
	Keep    func(records []rl.Record) error
	Prompts int
	// Phases measures the phases of a step and shows progress; nil = neither.
	Phases *Phases
	// Progress is called after each step.
	Progress func(done, total int, note string)
	// Deadline is when training stops between two steps, or before a step that would end later, as a rule; zero = never.
	Deadline time.Time
	// Now is the clock; nil = rows have no times.
	Now func() time.Time

	// SaveEvery is the number of steps between checkpoints; 0 = none.
	SaveEvery int
	// Save creates the checkpoint of a step; write fills its folder.
	Save func(step int, write func(dir string) error) error
	// Resume is the folder of the checkpoint to resume from; "" = start from step 0.
	Resume string
	// Group holds the data-parallel ranks; nil = one process.
	Group *dist.Group

	// Dump saves the samples of a failed update and returns the path.
	Dump func(name string, v any) (path string, err error)
}

// ErrStopped is returned by training whose context ended. It has saved a checkpoint if Save is set.
var ErrStopped = errors.New("stopped before the end")

// ErrTimeUp is the ErrStopped of training that reached its Deadline.
var ErrTimeUp = fmt.Errorf("%w: the time limit is reached", ErrStopped)

// Late reports whether work of a duration would end after the deadline.
func (h Hooks) Late(work time.Duration) bool {
	return !h.Deadline.IsZero() && h.Time().Add(work).After(h.Deadline)
}

// Logf writes a line to the console and the training log.
func (h Hooks) Logf(format string, args ...any) error {
	if h.Log == nil {
		return nil
	}
	return h.Log(format, args...)
}

// Write writes a row of metrics.
func (h Hooks) Write(row report.Row) error {
	if h.Row == nil {
		return nil
	}
	return h.Row(row)
}

// StepLine writes the line of a step to the training log, and its figures to the console.
func (h Hooks) StepLine(line string, figures report.Row) error {
	if h.Step == nil {
		return h.Logf("%s", line)
	}
	return h.Step(line, figures)
}

// Record saves completions of a step.
func (h Hooks) Record(step *rl.Step) error {
	if h.Keep == nil || h.Prompts == 0 || step.Records == nil {
		return nil
	}
	records, err := step.Records(h.Prompts)
	if err != nil {
		return fmt.Errorf("recording completions: %w", err)
	}
	return h.Keep(records)
}

// LogDue reports whether a row is due after a step.
func (h Hooks) LogDue(step int) bool { return step%max(1, h.LogEvery) == 0 }

// SaveDue reports whether a checkpoint is due after a step.
func (h Hooks) SaveDue(step int) bool {
	return h.Save != nil && h.SaveEvery > 0 && step%h.SaveEvery == 0
}

// Advance reports a finished step.
func (h Hooks) Advance(done, total int, note string) {
	if h.Progress != nil {
		h.Progress(done, total, note)
	}
}

// Time returns the time, or the zero time if Now is nil.
func (h Hooks) Time() time.Time {
	if h.Now == nil {
		return time.Time{}
	}
	return h.Now()
}

// Broken wraps the cause of a failed update and saves its samples.
func (h Hooks) Broken(step int, prompts []int, details map[string]any, cause error) error {
	if h.Dump != nil {
		details["step"], details["prompts"], details["cause"] = step, prompts, cause.Error()
		if path, err := h.Dump("nonfinite.json", details); err == nil {
			return fmt.Errorf("step %d: %w; lower the learning rate, or look at the samples in %s", step, cause, path)
		}
	}
	return fmt.Errorf("step %d, prompts %v: %w; lower the learning rate", step, prompts, cause)
}
