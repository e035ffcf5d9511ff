package run

import (
	"errors"
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
	expect.Same(t, 4, strings.Count(read(t, dir, "logs", "metrics.jsonl"), "\n"), "rows of metrics")
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
	want := []string{"rollout", "rollout 24/64 samples, 100 tokens/s", "update", "update 3/8 micro-batches", "evaluation", "evaluation 40/200"}
	expect.Equal(t, want, shown)
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
