package train

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// TestPatience ends a run after the given number of evaluations without a new best, also across a resume.
func TestPatience(t *testing.T) {
	scores := map[int]float64{0: 0.1, 1: 0.5, 2: 0.4, 3: 0.52, 4: 0.5, 5: 0.51, 6: 0.9, 7: 0.9, 8: 0.9}
	for _, test := range []struct {
		stopping   Stopping
		last, best int
		line       string
	}{
		{Stopping{}, 8, 6, ""},
		{Stopping{Patience: 3}, 8, 6, ""},
		{Stopping{Patience: 2}, 5, 3, "Early stopping: 2 evaluations in a row without a new best since step 3"},
		{Stopping{Patience: 3, Threshold: 0.1}, 4, 3, "Early stopping: 3 evaluations in a row without a new best since step 3"},
		{Stopping{Patience: 1}, 2, 1, "Early stopping: 1 evaluation in a row without a new best since step 1"},
	} {
		for _, stopAt := range []int{0, 2, 4} {
			p := newTable(t, 1)
			script := scripted{scores: scores}
			var said recorded
			var result Result
			h := said.hooks()
			h.SaveEvery = 1
			dir := t.TempDir()
			h.Save = func(step int, write func(string) error) error {
				h.Resume = filepath.Join(dir, "checkpoint")
				if err := os.MkdirAll(h.Resume, 0o755); err != nil {
					return err
				}
				return write(h.Resume)
			}
			stops, wantStops := 0, 0
			if 0 < stopAt && stopAt <= test.last {
				wantStops = 1
			}
			for err := run.ErrStopped; errors.Is(err, run.ErrStopped); {
				ctx, cancel := context.WithCancel(t.Context())
				h.Progress = func(done, _ int, _ string) {
					if done == stopAt && h.Resume != "" {
						cancel()
						stops++
						stopAt = 0
					}
				}
				c := Config{Steps: 8, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Evaluate: script.evaluation(t, p, 1), Stopping: test.stopping}
				result, err = Run(ctx, p, fixed(tokenStep), newGRPO(), c, h)
				cancel()
				expect.Require(t, err == nil || errors.Is(err, run.ErrStopped), "%v", err)
			}
			expect.Same(t, wantStops, stops, "%+v: stopped %d times, want %d", test.stopping, stops, wantStops)
			expect.True(t, result.Steps == test.last && result.BestStep == test.best,
				"%+v: ended after step %d, best %d; want %d and %d", test.stopping, result.Steps, result.BestStep, test.last, test.best)
			if got := said.lines[len(said.lines)-1]; strings.HasPrefix(got, "Early stopping") != (test.line != "") || test.line != "" && got != test.line {
				t.Errorf("%+v: last line %q, want %q", test.stopping, got, test.line)
			}
		}
	}
	expect.Failure(Run(t.Context(), newTable(t, 1), fixed(tokenStep), newGRPO(), Config{Steps: 1, Samples: 4, Optimisation: Optimisation{Schedule: "constant"}, Stopping: Stopping{Patience: 1}}, run.Hooks{}))(t, "early_stopping_patience")
}

// TestBestByANamedFigure selects the best by a metric of the row, whether higher or lower is better.
func TestBestByANamedFigure(t *testing.T) {
	for metric, want := range map[string]int{"": 4, "accuracy": 2, "loss": 3} {
		p := newTable(t, 1)
		e := &evaluate.Plan{Every: 1, KeepBest: true, Metric: metric, Run: func(_ context.Context, steps int) (evaluate.Scores, error) {
			row := map[int]report.Row{
				1: {"eval_accuracy": 0.1, "eval_loss": 3.0}, 2: {"eval_accuracy": 0.9, "eval_loss": 2.0},
				3: {"eval_accuracy": 0.5, "eval_loss": 1.0}, 4: {"eval_accuracy": 0.5, "eval_loss": 4.0},
			}[steps]
			return evaluate.Scores{Score: float64(steps), Row: row, Value: steps}, nil
		}}
		result, err := Run(t.Context(), p, fixed(tokenStep), newGRPO(), Config{Steps: 4, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Evaluate: e}, run.Hooks{})
		expect.True(t, err == nil && result.BestStep == want, "by %q: step %d, %v; want %d", metric, result.BestStep, err, want)
	}
	e := &evaluate.Plan{Every: 1, Metric: "acuracy", Run: func(context.Context, int) (evaluate.Scores, error) {
		return evaluate.Scores{Row: report.Row{"eval_accuracy": 0.1, "eval_reward": 1.0, "epoch": 1.0}}, nil
	}}
	expect.Failure(Run(t.Context(), newTable(t, 1), fixed(tokenStep), newGRPO(), Config{Steps: 1, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Evaluate: e}, run.Hooks{}))(t, `"acuracy" is not a figure of the evaluations; choose accuracy, reward`)
}

// TestALongerRun extends a run from its last checkpoint; with a constant learning rate it equals a long run.
func TestALongerRun(t *testing.T) {
	dir := t.TempDir()
	train := func(steps int, h run.Hooks) (run.Snapshot, error) {
		p := newTable(t, 1)
		_, err := Run(t.Context(), p, fixed(tokenStep), newGRPO(), Config{Steps: steps, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}}, h)
		return weightsOf(t, p), err
	}
	want := must.Get(train(6, run.Hooks{}))(t)
	must.Get(train(4, run.Hooks{Save: func(_ int, write func(string) error) error { return write(dir) }}))(t)
	got, err := train(6, run.Hooks{Resume: dir})
	expect.True(t, err == nil && slices.EqualFunc(want, got, slices.Equal),
		"%v; the weights are those of a run of 6 steps: %v", err, slices.EqualFunc(want, got, slices.Equal))
	expect.Failure(train(3, run.Hooks{Resume: dir}))(t, "checkpoint is at step 4, past 3 steps")
}
