package run

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/report/tfevents"
	"github.com/rltrain/rltrain/rl/report/wandb"
)

// Names of the trackers.
const (
	TensorBoard = "tensorboard"
	WandB       = "wandb"
)

// tracker writes metrics for another program.
type tracker interface {
	Row(at time.Time, step int64, numbers map[string]float64) error
	State() (any, error) // position for a checkpoint, synced to disk; encodes to JSON
	Close(at time.Time, code int) error
}

// trackers are those of a stage. A tracker that fails is dropped; training continues without it.
type trackers struct {
	open  map[string]tracker
	names []string // of open, in the order that the user gave
	now   func() time.Time
	warn  func(text string)
}

// lost drops a tracker that failed and prints a warning.
func (t *trackers) lost(name string, err error) {
	delete(t.open, name)
	t.warn(fmt.Sprintf("warning: continuing without %s: %v", name, err))
}

// begin opens the trackers of a stage: at their state if the checkpoint has one, else new, with the rows written so far.
func (t *trackers) begin(c StageConfig, run *Run, states map[string]json.RawMessage, rows []report.Row) {
	t.open, t.now = map[string]tracker{}, c.Now
	for _, name := range c.Trackers {
		var one tracker
		var err error
		switch name {
		case TensorBoard:
			one, err = openTensorBoard(c, run, states[name])
		case WandB:
			one, err = openWandB(c, run, states[name])
		default:
			continue
		}
		if err != nil {
			t.lost(name, err)
			continue
		}
		if one == nil {
			continue // disabled by its environment
		}
		t.open[name], t.names = one, append(t.names, name)
		if states[name] != nil {
			continue
		}
		for _, row := range rows {
			t.to(name, row)
		}
	}
}

// row writes a row to all trackers.
func (t *trackers) row(row report.Row) {
	for _, name := range t.names {
		t.to(name, row)
	}
}

func (t *trackers) to(name string, row report.Row) {
	one := t.open[name]
	if one == nil {
		return
	}
	numbers := report.Tracked(row)
	step := numbers[wandb.StepKey]
	if err := one.Row(t.now(), int64(step), numbers); err != nil {
		t.lost(name, err)
	}
}

// states returns the positions of all trackers.
func (t *trackers) states() map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	for name, one := range t.open {
		state, err := one.State()
		if err == nil {
			all[name], err = json.Marshal(state)
		}
		if err != nil {
			t.lost(name, err)
		}
	}
	return all
}

// close closes the trackers. code is 0 if the run finished.
func (t *trackers) close(code int) {
	for _, name := range t.names {
		if one := t.open[name]; one != nil {
			if err := one.Close(t.now(), code); err != nil {
				t.lost(name, err)
			}
		}
	}
	t.open = nil
}

// boardFolder, in logs/, holds the event files.
const boardFolder = "tensorboard"

func openTensorBoard(c StageConfig, run *Run, saved json.RawMessage) (tracker, error) {
	dir, err := run.File("logs", boardFolder)
	if err != nil {
		return nil, err
	}
	if saved != nil {
		var s tfevents.State
		if err := json.Unmarshal(saved, &s); err != nil {
			return nil, err
		}
		return tfevents.OpenAt(dir, s)
	}
	w, err := tfevents.Create(dir, c.Now())
	if err != nil {
		return nil, err
	}
	if err := w.Settings(c.Now(), c.Settings, "train/loss", "train/reward", "eval/accuracy", "eval/reward", "eval/loss"); err != nil {
		return nil, err
	}
	return w, w.Text(c.Now(), 0, "config", "    "+strings.ReplaceAll(c.Info.Config, "\n", "\n    "))
}

type wandbRun struct {
	*wandb.Writer
	sync func()
}

// openWandB returns nil if WANDB_MODE disables it.
func openWandB(c StageConfig, run *Run, saved json.RawMessage) (tracker, error) {
	about, off := wandb.FromEnvironment(c.Info.Environment)
	if off {
		return nil, nil
	}
	dir, final := run.Dir(), run.Home()
	if other := c.Info.Environment["WANDB_DIR"]; other != "" {
		dir, final = other, other
	}
	var w *wandb.Writer
	var err error
	if saved != nil {
		var s wandb.State
		if err := json.Unmarshal(saved, &s); err != nil {
			return nil, err
		}
		w, err = wandb.OpenAt(dir, s)
	} else {
		about.Started, about.Config = c.Now(), c.Settings
		about.Project, about.Name, about.JobType = cmp.Or(about.Project, program), cmp.Or(about.Name, filepath.Base(run.Home())), cmp.Or(about.JobType, c.Info.Stage)
		w, err = wandb.Create(dir, about)
	}
	if err != nil {
		return nil, err
	}
	return wandbRun{w, func() {
		// A broken console must not fail the run.
		_ = c.Console.Print("Upload the run to Weights & Biases: wandb sync " + filepath.Join(final, w.Folder()))
	}}, nil
}

func (w wandbRun) Close(at time.Time, code int) error {
	err := w.Writer.Close(at, code)
	if err == nil {
		w.sync()
	}
	return err
}
