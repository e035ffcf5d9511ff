package run

import (
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

// tracker is another program's record of a run.
type tracker interface {
	row(at time.Time, step int64, numbers map[string]float64) error
	state() (any, error) // where it stands, durably; encodes to JSON
	close(at time.Time, code int) error
}

// trackers are those of a stage. One that cannot be written is left out from then on: training goes on without it.
type trackers struct {
	open  map[string]tracker
	names []string // of open, in the order that the user gave
	now   func() time.Time
	warn  func(text string)
}

// lost tells of a tracker that cannot be written.
func (t *trackers) lost(name string, err error) {
	delete(t.open, name)
	t.warn(fmt.Sprintf("warning: the run goes on without %s: %v", name, err))
}

// begin opens the trackers of a stage, those that were open at the checkpoint where they stood then, and new ones from
// the run's first row, of which rows are those that are written.
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
			continue // it is not wanted after all
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

// row gives a row to all trackers.
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
	if err := one.row(t.now(), int64(step), numbers); err != nil {
		t.lost(name, err)
	}
}

// states are where the trackers stand.
func (t *trackers) states() map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	for name, one := range t.open {
		state, err := one.state()
		if err == nil {
			all[name], err = json.Marshal(state)
		}
		if err != nil {
			t.lost(name, err)
		}
	}
	return all
}

// close ends the trackers. code is 0 where the run came to its end.
func (t *trackers) close(code int) {
	for _, name := range t.names {
		if one := t.open[name]; one != nil {
			if err := one.close(t.now(), code); err != nil {
				t.lost(name, err)
			}
		}
	}
	t.open = nil
}

// boardState is where an event file stands.
type boardState struct {
	File   string `json:"file"`
	Offset int64  `json:"offset"`
}

type board struct{ *tfevents.Writer }

// boardFolder is where TensorBoard finds a run, in logs/.
const boardFolder = "tensorboard"

func openTensorBoard(c StageConfig, run *Run, saved json.RawMessage) (tracker, error) {
	dir, err := run.File("logs", boardFolder)
	if err != nil {
		return nil, err
	}
	if saved != nil {
		var s boardState
		if err := json.Unmarshal(saved, &s); err != nil {
			return nil, err
		}
		w, err := tfevents.OpenAt(filepath.Join(dir, filepath.Base(s.File)), s.Offset)
		if err != nil {
			return nil, err
		}
		return board{w}, nil
	}
	w, err := tfevents.Create(dir, c.Now())
	if err != nil {
		return nil, err
	}
	if err := w.Settings(c.Now(), c.Settings, "train/loss", "train/reward", "eval/accuracy", "eval/reward", "eval/loss"); err != nil {
		return nil, err
	}
	return board{w}, w.Text(c.Now(), 0, "config", "    "+strings.ReplaceAll(c.Config, "\n", "\n    "))
}

func (b board) row(at time.Time, step int64, numbers map[string]float64) error {
	return b.Scalars(at, step, numbers)
}

func (b board) state() (any, error) {
	offset, err := b.Offset()
	return boardState{b.Name(), offset}, err
}

func (b board) close(time.Time, int) error { return b.Close() }

type wandbRun struct {
	*wandb.Writer
	sync func()
}

// openWandB is nil where WANDB_MODE turns it off.
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
		if about.Project == "" {
			about.Project = program
		}
		if about.Name == "" {
			about.Name = filepath.Base(run.Home())
		}
		if about.JobType == "" {
			about.JobType = c.Info.Stage
		}
		w, err = wandb.Create(dir, about)
	}
	if err != nil {
		return nil, err
	}
	return wandbRun{w, func() {
		// What cannot be printed is no reason to fail: the run itself says so.
		_ = c.Console.Print("To upload the run to Weights & Biases: wandb sync " + filepath.Join(final, w.Folder()))
	}}, nil
}

func (w wandbRun) row(at time.Time, _ int64, numbers map[string]float64) error {
	row := map[string]any{}
	for name, v := range numbers {
		row[name] = v
	}
	return w.Row(at, row)
}

func (w wandbRun) state() (any, error) { return w.State() }

func (w wandbRun) close(at time.Time, code int) error {
	err := w.Finish(at, code)
	if err == nil {
		w.sync()
	}
	return err
}
