package run

import (
	"errors"
	"fmt"
	"time"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/report"
)

// Hooks connect training to what surrounds it. The zero value trains in silence and saves nothing.
type Hooks struct {
	// Log takes the lines for people.
	Log func(format string, args ...any) error
	// Row takes the lines for programs: some steps or an evaluation each.
	Row func(row report.Row) error
	// LogEvery is the number of steps between rows; 0 = 1.
	LogEvery int
	// Line takes the line of a step, for the training log.
	Line func(line string) error
	// Keep takes answers of a step whose figures are written, those to Prompts prompts, or with a negative number to all.
	Keep    func(records []rl.Record) error
	Prompts int
	// Enough, asked after each step, ends training with an evaluation, as its last step does, but without a checkpoint; nil = at
	// its end.
	Enough func() bool
	// Seen hears of each step that was learnt from, and of how many there are to be.
	Seen func(step *rl.Step, total int)
	// Progress is told after each step.
	Progress func(done, total int, note string)
	// Now times steps; without it rows carry no times.
	Now func() time.Time

	// SaveEvery is the number of steps between checkpoints; 0 = none.
	SaveEvery int
	// Save makes a checkpoint of the state after step steps, in a folder that write fills.
	Save func(step int, write func(dir string) error) error
	// Resume is the folder of a checkpoint to continue from; "" = from the start.
	Resume string
	// Group are the ranks that train together; nil = this process alone.
	Group *dist.Group

	// Dump keeps the samples of an update that broke training and returns where.
	Dump func(name string, v any) (path string, err error)
}

// ErrStopped is returned by training whose context ended. It has saved a checkpoint, if it can.
var ErrStopped = errors.New("stopped before the end")

// Logf writes a line for people.
func (h Hooks) Logf(format string, args ...any) error {
	if h.Log == nil {
		return nil
	}
	return h.Log(format, args...)
}

// Write writes a line for programs.
func (h Hooks) Write(row report.Row) error {
	if h.Row == nil {
		return nil
	}
	return h.Row(row)
}

// StepLine writes the line of a step to the training log.
func (h Hooks) StepLine(line string) error {
	if h.Line == nil {
		return h.Logf("%s", line)
	}
	return h.Line(line)
}

// Record keeps answers of a step.
func (h Hooks) Record(step *rl.Step) error {
	if h.Keep == nil || h.Prompts == 0 || step.Records == nil {
		return nil
	}
	records, err := step.Records(h.Prompts)
	if err != nil {
		return fmt.Errorf("answers to keep: %w", err)
	}
	return h.Keep(records)
}

// LogDue says whether a row is to be written after so many steps.
func (h Hooks) LogDue(step int) bool { return step%max(1, h.LogEvery) == 0 }

// SaveDue says whether a checkpoint is to be made after so many steps.
func (h Hooks) SaveDue(step int) bool {
	return h.Save != nil && h.SaveEvery > 0 && step%h.SaveEvery == 0
}

// Advance tells of a finished step.
func (h Hooks) Advance(done, total int, note string) {
	if h.Progress != nil {
		h.Progress(done, total, note)
	}
}

// Time is the time, always the same where nothing is timed.
func (h Hooks) Time() time.Time {
	if h.Now == nil {
		return time.Time{}
	}
	return h.Now()
}

// Broken explains samples that broke training, with details in a file where there is room for one.
func (h Hooks) Broken(step int, prompts []int, details map[string]any, cause error) error {
	if h.Dump != nil {
		details["step"], details["prompts"], details["cause"] = step, prompts, cause.Error()
		if path, err := h.Dump("nonfinite.json", details); err == nil {
			return fmt.Errorf("step %d: %w; its samples are in %s; a lower learning rate is the usual cure", step, cause, path)
		}
	}
	return fmt.Errorf("step %d (prompts %v): %w; a lower learning rate is the usual cure", step, prompts, cause)
}
