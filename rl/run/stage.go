package run

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/report"
)

// StageConfig configures the run folder of a training stage.
type StageConfig struct {
	Dir    string
	Info   Info
	Resume bool // resume the run in Dir, if there is one
	// From is the checkpoint in Dir to resume from; "" = the newest complete one. If it is set, a finished run can resume.
	From string
	// Changed lists changed lengths of a resumed run ("num_steps was 2, is now 4"). If it is not empty, a finished run can
	// resume.
	Changed   []string
	Inexact   []string    // other reasons why the run may differ from an uninterrupted one; a finished run gets them too
	SaveEvery int         // steps between checkpoints
	Keep      int         // newest checkpoints to keep; 0 = all
	KeepRuns  int         // earlier runs in Dir to keep; 0 = 1
	LogEvery  int         // steps between rows
	Prompts   int         // prompts of a logged step whose completions are saved; 0 = none, below 0 = all
	Group     *dist.Group // as in Hooks; only rank 0 saves checkpoints
	// Trackers also get the metrics: TensorBoard, WandB. Settings are for them.
	Trackers []string
	Settings map[string]any
	Deadline time.Time // as in Hooks
	Times    bool      // print the share of each phase at the end
	Console  *report.Console
	Now      func() time.Time
}

// Stage is a training stage with its run folder: logs, metrics and checkpoints.
type Stage struct {
	config     StageConfig
	run        *Run
	log        report.Lines
	metrics    report.Lines
	kept       report.Lines // completions
	trackers   trackers
	progress   report.Progress
	from       int       // steps done at the first call of Hooks.Progress
	began      time.Time // when that was
	bar        *report.Bar
	ending     string
	timed      bool // bar began with a finished step
	phases     *Phases
	checkpoint string // to resume from; "" = start from step 0
}

// ErrFinished is returned by OpenStage if the run to resume has finished.
var ErrFinished = errors.New("the run is finished")

const offsetsFile = "offsets.json"

// offsets are the lengths of the logs at a checkpoint. Resuming truncates them there.
type offsets struct {
	Metrics     int64                      `json:"metrics"`
	Log         int64                      `json:"log"`
	Completions int64                      `json:"completions"`
	Trackers    map[string]json.RawMessage `json:"trackers,omitempty"`
}

// OpenStage creates the run folder, or resumes it at its newest complete checkpoint.
func OpenStage(c StageConfig) (*Stage, error) {
	s := &Stage{config: c}
	s.phases = &Phases{now: c.Now, show: s.work, spent: map[string]time.Duration{}}
	record, err := ReadRun(c.Dir)
	switch {
	case !c.Resume || errors.Is(err, fs.ErrNotExist):
		if s.run, err = Create(c.Dir, c.KeepRuns, c.Info); err == nil && c.Inexact != nil {
			err = s.run.note(c.Info.Inputs, c.Inexact)
		}
	case err != nil:
	case record.Status == StatusFinished && c.From == "" && c.Changed == nil:
		return nil, cmp.Or(record.Verify(c.Dir), s.noteFinished(), ErrFinished)
	default:
		err = s.reopen()
	}
	if err != nil {
		return nil, err
	}
	if err := s.openLogs(); err != nil {
		return nil, errors.Join(err, s.Close(StatusFailed, err.Error()))
	}
	return s, nil
}

// noteFinished records in a finished run why it may differ from an uninterrupted one.
func (s *Stage) noteFinished() error {
	c := s.config
	if c.Inexact == nil {
		return nil
	}
	r, err := Resume(c.Dir, true)
	if err != nil {
		return err
	}
	defer r.lock.release()
	for _, reason := range c.Inexact {
		if err := c.Console.Print("warning: results may differ from an uninterrupted run: " + reason); err != nil {
			return err
		}
	}
	return r.note(c.Info.Inputs, c.Inexact)
}

func (s *Stage) reopen() error {
	var err error
	c := s.config
	if s.run, err = Resume(c.Dir, c.From != "" || c.Changed != nil); err != nil {
		return err
	}
	dir, step, skipped, err := s.startFrom()
	if err != nil {
		s.run.lock.release() // run.json stays unchanged
		return err
	}
	for _, damaged := range skipped {
		if err := s.config.Console.Print("warning: skipped damaged " + damaged); err != nil {
			return err
		}
	}
	s.checkpoint = dir
	differences, err := s.run.Continue(c.Info, slices.Concat(c.Changed, c.Inexact))
	if err != nil {
		return err
	}
	for _, d := range differences {
		if err := s.config.Console.Print("warning: results may differ from an uninterrupted run: " + d); err != nil {
			return err
		}
	}
	if dir == "" {
		return s.config.Console.Print("Resuming " + s.config.Dir + " from step 0: no checkpoint yet")
	}
	return s.config.Console.Print(fmt.Sprintf("Resuming %s at step %d", s.config.Dir, step))
}

// startFrom finds the checkpoint to resume from; dir is "" if there is none.
func (s *Stage) startFrom() (dir string, step int, skipped []string, err error) {
	if s.config.From == "" {
		return LatestCheckpoint(s.run.Dir())
	}
	dir = filepath.Join(s.run.Dir(), checkpointsDir, filepath.Base(s.config.From))
	step, err = checkpointAt(s.run.Dir(), dir)
	return dir, step, nil, err
}

// logs are the files that grow with the run, each with its length in at.
func (s *Stage) logs(at *offsets) []grown {
	return []grown{{"metrics.jsonl", &s.metrics, &at.Metrics}, {"training_log.txt", &s.log, &at.Log}, {CompletionsFile, &s.kept, &at.Completions}}
}

type grown struct {
	name   string
	lines  *report.Lines
	length *int64
}

func (s *Stage) openLogs() error {
	var at offsets
	if s.checkpoint != "" {
		if err := files.LoadJSON(filepath.Join(s.checkpoint, offsetsFile), &at); err != nil {
			return err
		}
	}
	for _, log := range s.logs(&at) {
		path, err := s.run.File("logs", log.name)
		if err != nil {
			return err
		}
		if *log.lines, err = report.OpenLines(path, *log.length); err != nil {
			return err
		}
	}
	rows, err := report.ReadMetrics(s.metrics.Name())
	if err != nil {
		return err
	}
	s.trackers.warn = s.config.Console.Warn
	s.trackers.begin(s.config, s.run, at.Trackers, rows)
	return nil
}

// CompletionsFile, in logs/, holds completions of the policy.
const CompletionsFile = "completions.jsonl"

// Name is the stage's name in run.json.
func (s *Stage) Name() string { return s.config.Info.Stage }

// Resumed reports whether the stage resumes from a checkpoint.
func (s *Stage) Resumed() bool { return s.checkpoint != "" }

// Dir is the current path of the run folder.
func (s *Stage) Dir() string { return s.run.Dir() }

// Home is its path once the run has a checkpoint or has finished.
func (s *Stage) Home() string { return s.run.Home() }

// File returns the path of a file in a subfolder of the run, which it creates if needed.
func (s *Stage) File(folder, name string) (string, error) { return s.run.File(folder, name) }

// Printf writes a line to the console and to logs/training_log.txt.
func (s *Stage) Printf(format string, args ...any) error {
	if err := s.there(); err != nil {
		return err
	}
	text := fmt.Sprintf(format, args...)
	if err := s.config.Console.Print(text); err != nil {
		return err
	}
	return s.log.Print(text)
}

// row writes a row of metrics.
func (s *Stage) row(row report.Row) error {
	if err := s.there(); err != nil {
		return err
	}
	if err := s.metrics.Write(row); err != nil {
		return err
	}
	s.trackers.row(row)
	return nil
}

// step writes the line of a step to the training log, and its figures to the console.
func (s *Stage) step(line string, figures report.Row) error {
	if err := s.Keepf("%s", line); err != nil {
		return err
	}
	if line = report.StepLine(s.progress, figures, s.config.Console.Terminal()); line == "" {
		return nil
	}
	return s.config.Console.Print(line)
}

// Keepf writes a line to logs/training_log.txt only.
func (s *Stage) Keepf(format string, args ...any) error {
	if err := s.there(); err != nil {
		return err
	}
	return s.log.Print(fmt.Sprintf(format, args...))
}

// keep saves completions of the policy.
func (s *Stage) keep(records []rl.Record) error {
	if err := s.there(); err != nil {
		return err
	}
	for _, r := range records {
		if err := s.kept.Write(r); err != nil {
			return err
		}
	}
	return nil
}

// there checks that the run's folder still exists: writes to open files of a removed folder are lost without an error.
func (s *Stage) there() error {
	if _, err := os.Stat(filepath.Join(s.run.Dir(), runFile)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("run folder %s was removed or moved during training; nothing more can be saved", s.Home())
	}
	return nil
}

// Hooks returns the hooks of the run folder. label and unit name the progress bar.
func (s *Stage) Hooks(label, unit string) Hooks {
	s.bar = s.config.Console.Bar(label, unit, 0, 0)
	h := Hooks{
		Phases: s.phases, Group: s.config.Group, Log: s.Printf, Row: s.row, LogEvery: s.config.LogEvery, Now: s.config.Now,
		Step: s.step, Keep: s.keep, Prompts: s.config.Prompts,
		Progress: func(done, total int, note string) {
			if !s.timed { // the first step is not
				s.bar, s.timed = s.config.Console.Bar(label, unit, done, total), true
				s.from, s.began = done, s.config.Now()
			}
			s.progress = report.Progress{Stage: label, Done: done, Total: total}
			if n := done - s.from; n > 0 {
				s.progress.Left = s.config.Now().Sub(s.began) / time.Duration(n) * time.Duration(total-done)
			}
			s.bar.Set(done, note)
			if done == total {
				s.endBar()
			}
		},
		Deadline: s.config.Deadline, SaveEvery: s.config.SaveEvery, Save: s.save, Resume: s.checkpoint, Dump: s.dump,
	}
	if s.config.Group.Rank() > 0 {
		h.Save = nil
	}
	return h
}

// work shows progress within a step.
func (s *Stage) work(text string) {
	if s.bar != nil {
		s.bar.Work(text)
	}
}

func (s *Stage) endBar() {
	if s.bar != nil {
		s.bar.Done()
		s.bar = nil
	}
}

func (s *Stage) save(step int, write func(dir string) error) error {
	var at offsets
	for _, log := range s.logs(&at) {
		var err error
		if *log.length, err = log.lines.Sync(); err != nil {
			return err
		}
	}
	at.Trackers = s.trackers.states()
	if err := SaveCheckpoint(s.run.Dir(), step, cmp.Or(s.config.Keep, math.MaxInt), func(dir string) error {
		if err := write(dir); err != nil {
			return err
		}
		return files.SaveJSON(filepath.Join(dir, offsetsFile), at)
	}); err != nil {
		return err
	}
	return s.run.Settle()
}

func (s *Stage) dump(name string, v any) (string, error) {
	path, err := s.run.File("logs", name)
	if err != nil {
		return "", err
	}
	return path, files.SaveJSON(path, v)
}

// Close closes the logs, writes status and ending to run.json, and unlocks the folder.
func (s *Stage) Close(status Status, ending string) error {
	s.endBar()
	var errs []error
	for _, log := range s.logs(&offsets{}) {
		if log.lines.Appender != nil {
			errs = append(errs, log.lines.Close())
		}
	}
	code := 0
	if status != StatusFinished {
		code = 1
	}
	s.trackers.close(code)
	if status == StatusFinished {
		errs = append(errs, s.run.Settle())
	}
	s.run.record.Seconds = s.phases.seconds(s.run.record.Seconds)
	if shares := Shares(s.run.record.Seconds); s.config.Times && shares != "" {
		errs = append(errs, s.config.Console.Print("Time of stage "+s.Name()+": "+shares))
	}
	errs = append(errs, s.run.Finish(status, ending, s.config.Now()))
	return errors.Join(errs...)
}

// End sets what run.json says about the end of a finished run.
func (s *Stage) End(text string) { s.ending = text }

// Finish calls run and closes the stage, with or without an error.
func (s *Stage) Finish(run func() error) error {
	if err := run(); err != nil {
		return s.Settle(err)
	}
	return s.Close(StatusFinished, cmp.Or(s.ending, "training completed"))
}

// Settle closes the stage after an error: as stopped if it can be resumed, else as failed. It returns the error to show.
func (s *Stage) Settle(err error) error {
	if errors.Is(err, context.Canceled) {
		err = ErrStopped // after training, whose result is saved
	}
	if errors.Is(err, ErrStopped) {
		ending := "stopped by the user, after saving"
		if errors.Is(err, ErrTimeUp) {
			ending = "stopped at the time limit, after saving; resume to continue"
		}
		return errors.Join(err, s.Close(StatusStopped, ending))
	}
	return errors.Join(err, s.Close(StatusFailed, err.Error()))
}
