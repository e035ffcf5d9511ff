package run

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/report/tfevents"
	"github.com/rltrain/rltrain/rl/report/wandb"
)

// tracking opens the stage in dir with trackers.
func tracking(t *testing.T, dir string, env map[string]string, names ...string) (*Stage, *strings.Builder) {
	t.Helper()
	info := testInfo()
	info.Environment = env
	out := &strings.Builder{}
	s, err := OpenStage(StageConfig{
		Dir: dir, Info: info, Resume: true, SaveEvery: 2, LogEvery: 1, Trackers: names, Settings: map[string]any{"seed": 1}, Config: "seed: 1\n",
		Console: report.NewConsole(out, out, func() time.Time { return noon }), Now: func() time.Time { return noon }, Prompts: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, out
}

// events are the values in a run's only event file.
func events(t *testing.T, dir string) []tfevents.Scalar {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "logs", "tensorboard", "events.out.tfevents.*"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("event files %v, %v", paths, err)
	}
	scalars, err := tfevents.Read(strings.NewReader(read(t, paths[0])))
	if err != nil {
		t.Fatal(err)
	}
	return scalars
}

// TestTrackersResumeAtTheCheckpoint: no file contains rows after the checkpoint twice.
func TestTrackersResumeAtTheCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	keep := func(s *Stage, steps ...int) {
		for _, step := range steps {
			if err := s.keep([]rl.Record{{Step: step, Written: "<a>"}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s, _ := tracking(t, dir, nil, TensorBoard, WandB)
	keep(s, 1, 2)
	steps(t, s, 1, 2)
	steps(t, s, 3, 3)
	keep(s, 3)
	if err := s.Settle(ErrStopped); !errors.Is(err, ErrStopped) {
		t.Fatal(err)
	}
	s, out := tracking(t, dir, nil, TensorBoard, WandB)
	steps(t, s, 3, 4)
	if err := s.Finish(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	want := []tfevents.Scalar{{Step: 1, Tag: "train/global_step", Value: 1}, {Step: 2, Tag: "train/global_step", Value: 2}, {Step: 3, Tag: "train/global_step", Value: 3}, {Step: 4, Tag: "train/global_step", Value: 4}}
	if diff := cmp.Diff(want, events(t, dir)); diff != "" {
		t.Errorf("TensorBoard (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(2, strings.Count(read(t, dir, "logs", CompletionsFile), `"written":"<a>"`)); diff != "" {
		t.Errorf("completions: %s", diff)
	}
	runs, err := filepath.Glob(filepath.Join(dir, "wandb", "offline-run-*", "run-*.wandb"))
	if err != nil || len(runs) != 1 {
		t.Fatalf("runs %v, %v", runs, err)
	}
	records, err := wandb.Read([]byte(read(t, runs[0])))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, r := range records {
		if bytes.Contains(r, []byte("_runtime")) {
			rows++
		}
	}
	if rows != 4 {
		t.Errorf("%d rows for W&B, want 4", rows)
	}
	if want := "wandb sync " + filepath.Dir(runs[0]) + "\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("console %q, want %q", out, want)
	}
}

func TestLateTrackerHasAllRows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, _ := tracking(t, dir, nil, "none")
	steps(t, s, 1, 2)
	if err := s.Settle(ErrStopped); !errors.Is(err, ErrStopped) {
		t.Fatal(err)
	}
	s, _ = tracking(t, dir, map[string]string{"WANDB_MODE": "disabled"}, TensorBoard, WandB)
	steps(t, s, 3, 3)
	if err := s.Finish(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := events(t, dir); len(got) != 3 || got[0].Step != 1 {
		t.Errorf("TensorBoard: %v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "wandb")); err == nil {
		t.Error("W&B is written though it is disabled")
	}
}

// TestRunContinuesWithoutATracker that cannot be written, with one warning.
func TestRunContinuesWithoutATracker(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	put(t, filepath.Join(dir, "..", "file"), "no folder")
	s, out := tracking(t, dir, map[string]string{"WANDB_DIR": filepath.Join(dir, "..", "file")}, WandB, TensorBoard)
	if err := s.trackers.open[TensorBoard].close(noon, 0); err != nil {
		t.Fatal(err)
	}
	steps(t, s, 1, 4)
	if err := s.Finish(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{TensorBoard, WandB} {
		if n := strings.Count(out.String(), "warning: continuing without "+name+": "); n != 1 {
			t.Errorf("%d warnings of %s in %q", n, name, out)
		}
	}
	if got := strings.Count(read(t, dir, "logs", "metrics.jsonl"), "\n"); got != 4 {
		t.Errorf("%d rows of metrics", got)
	}
}
