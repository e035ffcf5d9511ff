package run

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

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
	return read(t, paths[0])
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
	expect.Equal(t, 2, strings.Count(read(t, dir, "logs", CompletionsFile), `"written":"<a>"`), "completions")
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
	if only(t, dir, boardFile...) != only(t, uninterrupted(t, map[string]string{"WANDB_MODE": "disabled"}, 3), boardFile...) {
		t.Error("the event file differs from that of a run that was tracked from the start")
	}
	_, err = os.Stat(filepath.Join(dir, "wandb"))
	expect.True(t, err != nil, "W&B is written though it is disabled")
}

// TestRunContinuesWithoutATracker that cannot be written, with one warning.
func TestRunContinuesWithoutATracker(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	put(t, filepath.Join(dir, "..", "file"), "no folder")
	s, out := tracking(t, dir, map[string]string{"WANDB_DIR": filepath.Join(dir, "..", "file")}, WandB, TensorBoard)
	must.Do(t, s.trackers.open[TensorBoard].Close(noon, 0))
	steps(t, s, 1, 4)
	must.Do(t, s.Finish(func() error { return nil }))
	for _, name := range []string{TensorBoard, WandB} {
		n := strings.Count(out.String(), "warning: continuing without "+name+": ")
		expect.True(t, n == 1, "%d warnings of %s in %q", n, name, out)
	}
	got := strings.Count(read(t, dir, "logs", "metrics.jsonl"), "\n")
	expect.True(t, got == 4, "%d rows of metrics", got)
}
