package run

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/report"
)

// reopened reopens the stage in dir from a checkpoint, or with changes.
func reopened(dir, from string, changed ...string) (*Stage, string, error) {
	var out strings.Builder
	s, err := OpenStage(StageConfig{
		Dir: dir, Info: testInfo(), Resume: true, From: from, Changed: changed, SaveEvery: 2, LogEvery: 1,
		Console: report.NewConsole(&out, &out, func() time.Time { return noon }), Now: func() time.Time { return noon },
	})
	return s, out.String(), err
}

// TestStageResumesFromANamedCheckpoint even if the run is finished, and deletes later checkpoints.
func TestStageResumesFromANamedCheckpoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, _ := mustStage(t, dir, false)
	s.config.Keep = 0
	steps(t, s, 1, 6)
	must.Do(t, s.Finish(func() error { return nil }))
	at := func(name string) string { return filepath.Join(dir, "checkpoints", name) }
	put(t, filepath.Join(at("checkpoint-4"), "weights"), "5")
	for from, want := range map[string]string{
		"checkpoint-4": "checkpoint-4 is damaged: weights was changed",
		"checkpoint-3": "is not a checkpoint of the run in " + dir,
	} {
		_, _, err := reopened(dir, at(from))
		wantError(t, err, want)
		if record, err := ReadRun(dir); err != nil || record.Status != StatusFinished {
			t.Errorf("a refused checkpoint leaves the run %s, %v", record.Status, err)
		}
	}
	again, out, err := reopened(dir, at("checkpoint-2"))
	must.Do(t, err)
	expect.True(t, strings.Contains(out, "at step 2"), "console %q", out)
	expect.Equal(t, []string{"checkpoint-2"}, names(t, filepath.Join(dir, "checkpoints")), "checkpoints")
	steps(t, again, 3, 4)
	must.Do(t, again.Finish(func() error { return nil }))
	expect.Same(t, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n", read(t, dir, "logs", "metrics.jsonl"),
		"metrics:\n")
}

// TestFinishedStageResumesForMoreSteps and logs it.
func TestFinishedStageResumesForMoreSteps(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s, _ := mustStage(t, dir, false)
	steps(t, s, 1, 2)
	must.Do(t, s.Finish(func() error { return nil }))
	again, out, err := reopened(dir, "", "num_steps was 2, is now 4")
	must.Do(t, err)
	want := "warning: results may differ from an uninterrupted run: num_steps was 2, is now 4"
	expect.True(t, strings.Contains(out, want), "console %q, want %q", out, want)
	must.Do(t, again.Finish(func() error { return nil }))
	record, err := ReadRun(dir)
	if err != nil || record.Status != StatusFinished || !cmp.Equal(record.Inexact, []string{"num_steps was 2, is now 4"}) {
		t.Errorf("run.json: %+v, %v", record, err)
	}
}
