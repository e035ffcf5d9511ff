package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// stage opens a stage in dir and returns its console.
func stage(t *testing.T, dir string, resume bool) (*Stage, *strings.Builder, error) {
	t.Helper()
	out := &strings.Builder{}
	s, err := OpenStage(StageConfig{
		Dir: dir, Info: testInfo(), Resume: resume, SaveEvery: 2, Keep: 1, LogEvery: 1,
		Console: report.NewConsole(out, io.Discard, func() time.Time { return noon }), Now: func() time.Time { return noon },
	})
	return s, out, err
}

func mustStage(t *testing.T, dir string, resume bool) (*Stage, *strings.Builder) {
	t.Helper()
	s, out, err := stage(t, dir, resume)
	must.Do(t, err)
	return s, out
}

// steps logs a line and a row for each step, and saves checkpoints when due.
func steps(t *testing.T, s *Stage, from, to int) {
	t.Helper()
	h := s.Hooks("train", "step")
	for step := from; step <= to; step++ {
		must.Do(t, errors.Join(h.Logf("step %d", step), h.Write(report.Row{"step": step})))
		h.Advance(step, to, "")
		if h.SaveDue(step) {
			must.Do(t, h.Save(step, func(dir string) error {
				return os.WriteFile(filepath.Join(dir, "weights"), fmt.Append(nil, step), 0o600)
			}))
		}
	}
}

// TestStageResumesAtItsCheckpoint loses the last of three steps and resumes: the logs equal those of an
// uninterrupted stage.
func TestStageResumesAtItsCheckpoint(t *testing.T) {
	whole, dir := filepath.Join(t.TempDir(), "whole"), filepath.Join(t.TempDir(), "parts")
	s, _ := mustStage(t, whole, false)
	steps(t, s, 1, 5)
	must.Do(t, s.Finish(func() error { return nil }))

	first, _ := mustStage(t, dir, true) // with nothing to resume, it starts
	expect.True(t, !first.Resumed() && first.Hooks("", "").Resume == "", "a stage that begins is resumed")
	steps(t, first, 1, 3)
	err := first.Settle(ErrStopped)
	expect.True(t, errors.Is(err, ErrStopped), "error %v", err)
	second, out := mustStage(t, dir, true)
	expect.True(t, second.Resumed() && strings.Contains(out.String(), "Resuming "+dir+" at step 2"), "resumed %t, console %q", second.Resumed(), out)
	expect.Same(t, "2", must.Read(t, filepath.Join(second.Hooks("", "").Resume, "weights")), "the checkpoint to go on from is of step")
	steps(t, second, 3, 5)
	must.Do(t, second.Finish(func() error { return nil }))
	for _, name := range []string{"metrics.jsonl", "training_log.txt"} {
		expect.Equal(t, must.Read(t, filepath.Join(whole, "logs", name)), must.Read(t, filepath.Join(dir, "logs", name)), name)
	}
	expect.Equal(t, []string{"checkpoint-4"}, names(t, filepath.Join(dir, "checkpoints")), "checkpoints")
	_, _, err = stage(t, dir, true)
	expect.True(t, errors.Is(err, ErrFinished), "resuming a finished stage: %v", err)
}

// TestStageSkipsADamagedCheckpoint and says so.
func TestStageSkipsADamagedCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, _ := mustStage(t, dir, false)
	s.config.Keep = 0 // all
	steps(t, s, 1, 4)
	must.Do(t, s.Close(StatusStopped, "stopped"))
	must.Write(t, filepath.Join(dir, "checkpoints", "checkpoint-4", "weights"), "5")
	again, out := mustStage(t, dir, true)
	expect.True(t, strings.Contains(out.String(), "warning: skipped damaged checkpoint-4") && strings.Contains(out.String(), "at step 2"), "console %q", out)
	must.Do(t, again.Close(StatusStopped, "stopped"))
}

// TestStageEnds checks what each ending records and prints.
func TestStageEnds(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		err, want error
		status    Status
		ending    string
	}{
		"to the end":   {nil, nil, StatusFinished, "training completed"},
		"stopped":      {ErrStopped, ErrStopped, StatusStopped, "stopped by the user, after saving"},
		"stopped late": {fmt.Errorf("report: %w", context.Canceled), ErrStopped, StatusStopped, "stopped by the user, after saving"},
		"failed":       {broken, broken, StatusFailed, "broken"},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		s, _ := mustStage(t, dir, false)
		err := s.Finish(func() error { return test.err })
		expect.True(t, errors.Is(err, test.want), "%s: error %v", name, err)
		record, err := ReadRun(dir)
		expect.True(t, err == nil && record.Status == test.status && record.Ending == test.ending, "%s: %s, %q, %v", name, record.Status, record.Ending, err)
	}
}

// TestNilHooks: hooks may be nil.
func TestNilHooks(t *testing.T) {
	var h Hooks
	expect.NoError(t, errors.Join(h.Logf("x"), h.Write(report.Row{})), "Join")
	h.Advance(1, 2, "")
	expect.True(t, !h.SaveDue(4) && h.LogDue(3) && h.Time().IsZero(), "what is not there is due")
	h.LogEvery, h.SaveEvery = 3, 3
	expect.True(t, !h.SaveDue(3) && !h.LogDue(4) && h.LogDue(6), "every third step is not every third step, or nothing is saved to nowhere")
}

// TestBrokenSamplesAreKept in a file if there is a folder, and the error names the file.
func TestBrokenSamplesAreKept(t *testing.T) {
	cause := errors.New("the gradient's norm is NaN")
	var silent Hooks
	err := silent.Broken(4, []int{7, 9}, map[string]any{"rewards": []float64{1}}, cause)
	expect.Line(t, err, "step 4, prompts [7 9]", cause.Error(), "lower the learning rate")

	dir := filepath.Join(t.TempDir(), "run")
	s, _ := mustStage(t, dir, false)
	err = s.Hooks("", "").Broken(4, []int{7, 9}, map[string]any{"rewards": []float64{1}}, cause)
	path := filepath.Join(dir, "logs", "nonfinite.json")
	expect.Line(t, err, "step 4: ", cause.Error(), path)
	expect.True(t, errors.Is(err, cause), "the cause is lost")
	expect.Contains(t, strings.Join(strings.Fields(must.Read(t, path)), ""), `"step":4`, `"prompts":[7,9]`, `"cause":"thegradient'snormisNaN"`, `"rewards":[1]`)
	must.Do(t, s.Close(StatusFailed, "broken"))
}

// TestChangedFileOfAFinishedRunIsDetected whatever bit was flipped.
func TestChangedFileOfAFinishedRunIsDetected(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, _ := mustStage(t, dir, false)
	must.Do(t, s.Finish(func() error {
		return errors.Join(os.WriteFile(filepath.Join(s.Dir(), "README.md"), []byte("a card"), 0o644),
			os.WriteFile(filepath.Join(s.Dir(), "model.safetensors"), []byte("weights"), 0o644))
	}))
	must.Write(t, filepath.Join(dir, "README.md"), "my own words") // meant for people
	_, _, err := stage(t, dir, true)
	expect.True(t, errors.Is(err, ErrFinished), "an unchanged run: %v", err)
	must.Write(t, filepath.Join(dir, "model.safetensors"), "weightt")
	_, _, err = stage(t, dir, true)
	expect.True(t, err != nil && strings.Contains(err.Error(), "model.safetensors was changed after the run finished"), "a changed run: %v", err)
	must.Do(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	_, _, err = stage(t, dir, true)
	expect.True(t, err != nil && strings.Contains(err.Error(), "model.safetensors was removed after the run finished"), "a run without its weights: %v", err)
}

// TestRemovedFolderEndsTheRun at the next line, not at the end.
func TestRemovedFolderEndsTheRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, _ := mustStage(t, dir, false)
	h := s.Hooks("train", "step")
	must.Do(t, os.RemoveAll(dir))
	for _, err := range map[string]error{"a line": h.Logf("step 1"), "a row": h.Write(report.Row{"step": 1})} {
		expect.Error(t, err, "was removed or moved")
	}
}

// TestFirstRateUsesTimedSteps: each of two steps takes a minute. The first started at an unknown time, so the rate
// ignores it.
func TestFirstRateUsesTimedSteps(t *testing.T) {
	now, progress := noon, &strings.Builder{}
	clock := func() time.Time { return now }
	s := must.Get(OpenStage(StageConfig{Dir: filepath.Join(t.TempDir(), "run"), Info: testInfo(), Console: report.NewConsole(io.Discard, progress, clock), Now: clock}))(t)
	defer func() {
		expect.NoError(t, s.Close(StatusStopped, ""), "Close")
	}()
	h := s.Hooks("train", "steps")
	for step := 1; step <= 2; step++ {
		now = now.Add(time.Minute)
		h.Advance(step, 4, "")
	}
	expect.Same(t, "train  50%  2/4  60.0 s/step  ETA 2:00\n", progress.String(), "String")
}

// TestInexactInputs: why a run may differ is recorded in a finished run too, and in one that follows from such a run.
func TestInexactInputs(t *testing.T) {
	for name, finished := range map[string]bool{"finished": true, "new": false} {
		dir := filepath.Join(t.TempDir(), name)
		if finished {
			s, _ := mustStage(t, dir, false)
			steps(t, s, 1, 2)
			must.Do(t, s.Finish(func() error { return nil }))
		}
		info := testInfo()
		info.Inputs = Inputs{"dataset": {"rows": "2"}}
		s, err := OpenStage(StageConfig{
			Dir: dir, Info: info, Resume: true, Inexact: []string{"rows changed"}, SaveEvery: 2, Keep: 1, LogEvery: 1,
			Console: report.NewConsole(io.Discard, io.Discard, func() time.Time { return noon }), Now: func() time.Time { return noon },
		})
		expect.Require(t, finished == errors.Is(err, ErrFinished) && (finished || err == nil), "%v", err)
		if record, err := ReadRun(dir); err != nil || !slices.Equal(record.Inexact, []string{"rows changed"}) || record.Inputs["dataset"]["rows"] != "2" || finished != (record.Status == StatusFinished) {
			t.Errorf("%s: %+v, %v", name, record, err)
		}
		if s != nil {
			_ = s.Close(StatusFailed, "the test is over")
		}
	}
}

// tracking opens the stage in dir with trackers.
func tracking(t *testing.T, dir string, env map[string]string, names ...string) (*Stage, *strings.Builder) {
	t.Helper()
	info := testInfo()
	info.Environment, info.Config = env, "seed: 1\n"
	out := &strings.Builder{}
	s := must.Get(OpenStage(StageConfig{
		Dir: dir, Info: info, Resume: true, SaveEvery: 2, LogEvery: 1, Trackers: names, Settings: map[string]any{"seed": 1},
		Console: report.NewConsole(out, out, func() time.Time { return noon }), Now: func() time.Time { return noon }, Prompts: 1,
	}))(t)
	return s, out
}

// only is the content of the only file of a run with a name.
func only(t *testing.T, dir string, name ...string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(append([]string{dir}, name...)...))
	expect.Require(t, err == nil && len(paths) == 1, "files %v, %v", paths, err)
	return must.Read(t, paths[0])
}

var (
	boardFile = []string{"logs", "tensorboard", "events.out.tfevents.*"}
	wandbFile = []string{"wandb", "offline-run-*", "run-*.wandb"}
)

// uninterrupted is the folder of a run of some steps.
func uninterrupted(t *testing.T, env map[string]string, last int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	s, _ := tracking(t, dir, env, TensorBoard, WandB)
	steps(t, s, 1, last)
	must.Do(t, s.Finish(func() error { return nil }))
	return dir
}

// TestTrackersResumeAtTheCheckpoint: the files equal those of an uninterrupted run.
func TestTrackersResumeAtTheCheckpoint(t *testing.T) {
	env := map[string]string{"WANDB_RUN_ID": "abcd1234"}
	dir := filepath.Join(t.TempDir(), "run")
	keep := func(s *Stage, steps ...int) {
		for _, step := range steps {
			must.Do(t, s.keep([]rl.Record{{Step: step, Written: "<a>"}}))
		}
	}
	s, _ := tracking(t, dir, env, TensorBoard, WandB)
	keep(s, 1, 2)
	steps(t, s, 1, 2)
	steps(t, s, 3, 3)
	keep(s, 3)
	err := s.Settle(ErrStopped)
	expect.Require(t, errors.Is(err, ErrStopped), "%v", err)
	s, out := tracking(t, dir, env, TensorBoard, WandB)
	steps(t, s, 3, 4)
	must.Do(t, s.Finish(func() error { return nil }))
	whole := uninterrupted(t, env, 4)
	for _, file := range []struct {
		name []string
		row  string // in every row
	}{{boardFile, "train/global_step"}, {wandbFile, "_runtime"}} {
		got := only(t, dir, file.name...)
		expect.Same(t, only(t, whole, file.name...), got, "%v differs from that of an uninterrupted run", file.name)
		n := strings.Count(got, file.row)
		expect.True(t, n >= 4, "%v: %d rows", file.name, n)
	}
	expect.Equal(t, 2, strings.Count(must.Read(t, filepath.Join(dir, "logs", CompletionsFile)), `"written":"<a>"`), "completions")
	want := "wandb sync " + filepath.Join(dir, "wandb", "offline-run-"+noon.Format("20060102_150405")+"-abcd1234") + "\n"
	expect.True(t, strings.HasSuffix(out.String(), want), "console %q, want %q", out, want)
}

func TestLateTrackerHasAllRows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, _ := tracking(t, dir, nil, "none")
	steps(t, s, 1, 2)
	err := s.Settle(ErrStopped)
	expect.Require(t, errors.Is(err, ErrStopped), "%v", err)
	s, _ = tracking(t, dir, map[string]string{"WANDB_MODE": "disabled"}, TensorBoard, WandB)
	steps(t, s, 3, 3)
	must.Do(t, s.Finish(func() error { return nil }))
	expect.True(t, only(t, dir, boardFile...) == only(t, uninterrupted(t, map[string]string{"WANDB_MODE": "disabled"}, 3), boardFile...),
		"the event file differs from that of a run that was tracked from the start")
	expect.Fails(os.Stat(filepath.Join(dir, "wandb")))(t, "W&B is written though it is disabled")
}

// TestRunContinuesWithoutATracker that cannot be written, with one warning.
func TestRunContinuesWithoutATracker(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	must.Write(t, filepath.Join(dir, "..", "file"), "no folder")
	s, out := tracking(t, dir, map[string]string{"WANDB_DIR": filepath.Join(dir, "..", "file")}, WandB, TensorBoard)
	must.Do(t, s.trackers.open[TensorBoard].Close(noon, 0))
	steps(t, s, 1, 4)
	must.Do(t, s.Finish(func() error { return nil }))
	for _, name := range []string{TensorBoard, WandB} {
		expect.Same(t, 1, strings.Count(out.String(), "warning: continuing without "+name+": "), "warnings of %s in %q", name, out)
	}
	expect.Same(t, 4, strings.Count(must.Read(t, filepath.Join(dir, "logs", "metrics.jsonl")), "\n"), "rows of metrics")
}

func TestPhases(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var shown []string
	p := &Phases{now: func() time.Time { return now }, show: func(text string) { shown = append(shown, text) }, spent: map[string]time.Duration{}}
	ctx := p.Show(t.Context())
	Working(ctx, 1, 2, 3) // in no phase
	p.Begin(PhaseRollout)
	now = now.Add(6 * time.Second)
	Working(ctx, 24, 64, 600)
	p.Begin(PhaseUpdate)
	p.Move(PhaseRollout, PhaseReward, 2)
	now = now.Add(3 * time.Second)
	p.Within(3, 8, 0)
	p.Begin(PhaseEvaluation)
	now = now.Add(time.Second)
	Working(ctx, 40, 200, 0)
	p.Move(PhaseCheckpoint, PhaseReward, 5) // more than there is
	expect.Equal(t, []string{"rollout", "rollout 24/64 samples, 100 tokens/s", "update", "update 3/8 micro-batches", "evaluation", "evaluation 40/200"}, shown)
	seconds := p.seconds(map[string]float64{PhaseRollout: 6})
	expect.Equal(t, map[string]float64{PhaseRollout: 10, PhaseReward: 2, PhaseUpdate: 3, PhaseEvaluation: 1, PhaseCheckpoint: 0}, seconds)
	expect.Same(t, "rollout 62 %, update 19 %, reward 12 %, evaluation 6 %, checkpoint 0 %", Shares(seconds), "Shares")
	about := Record{Seconds: seconds}.About()
	expect.True(t, slices.ContainsFunc(about.Facts, func(s report.Setting) bool { return s.Name == "time" }), "facts %v", about.Facts)
	var none *Phases
	none.Begin("x")
	none.Within(1, 2, 3)
	Working(t.Context(), 1, 2, 3)
}

// spentCPU is the process's processor time.
func spentCPU(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	must.Do(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkLogging measures the cost of a step's row, line, two kept completions and TensorBoard record, also in
// processor time.
func BenchmarkLogging(b *testing.B) {
	s := must.Get(OpenStage(StageConfig{
		Dir: b.TempDir() + "/run", Info: testInfo(), LogEvery: 1, Prompts: 2, Trackers: []string{TensorBoard},
		Console: report.NewConsole(io.Discard, io.Discard, time.Now), Now: time.Now,
	}))(b)
	h := s.Hooks("train", "step")
	row := report.Row{"step": 1}
	for i := range 40 {
		row["figure/"+string(rune('a'+i%26))+string(rune('a'+i/26))] = 1 / float64(i+3)
	}
	answer := rl.Record{Shown: "17, 25, 3", Written: "1 7 + 2 5 = 4 2; 4 2 + 3 = 4 5"}
	step := &rl.Step{Records: func(int) ([]rl.Record, error) { return []rl.Record{answer, answer}, nil }}
	before := spentCPU(b)
	for i := 0; b.Loop(); i++ {
		row["step"] = i
		must.Do(b, h.Write(row))
		must.Do(b, h.StepLine("step 1/10 loss 0.25 reward 0.5", row))
		must.Do(b, h.Record(step))
		h.Advance(i, i+2, "")
	}
	b.ReportMetric(float64((spentCPU(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
	must.Do(b, s.Close(StatusFinished, ""))
}
