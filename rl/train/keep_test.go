package train

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/run"
)

// TestKeep keeps the best weights, the last, or both, and says when the start was the best.
func TestKeep(t *testing.T) {
	for _, test := range []struct {
		name       string
		scores     map[int]float64
		keepBest   bool
		both       bool
		sameAs     int // step whose weights the policy has in the end
		unimproved string
	}{
		{"best", map[int]float64{0: 0.1, 1: 0.5, 2: 0.4}, true, false, 1, ""},
		{"best is the start", map[int]float64{0: 0.5, 1: 0.25, 2: 0.375}, true, false, 0, "accuracy 0.5 at the start, accuracy 0.375 after the last step"},
		{"last", map[int]float64{0: 0.5, 1: 0.4, 2: 0.3}, false, false, 2, ""},
		{"both", map[int]float64{0: 0.1, 1: 0.5, 2: 0.4}, true, true, 1, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newTable(t, 1)
			var at []run.Snapshot
			plan := &evaluate.Plan{Every: 1, First: true, KeepBest: test.keepBest, Run: func(_ context.Context, steps int) (evaluate.Scores, error) {
				at = append(at, weightsOf(t, p))
				return evaluate.Scores{Name: "accuracy", Score: test.scores[steps]}, nil
			}}
			c := Config{Steps: 2, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Evaluate: plan}
			var last run.Snapshot
			if test.both {
				c.KeepLast = func() error { last = weightsOf(t, p); return nil }
			}
			result := must.Get(Run(t.Context(), p, fixed(tokenStep), newGRPO(), c, run.Hooks{}))(t)
			same := func(a, b run.Snapshot) bool { return slices.EqualFunc(a, b, slices.Equal) }
			expect.True(t, same(weightsOf(t, p), at[test.sameAs]) && (!test.both || same(last, at[2])), "other weights are kept")
			expect.Same(t, test.unimproved, result.Unimproved, "Unimproved")
		})
	}
}

// TestTimeLimit stops a run between two steps, saved, when the next would end after the deadline; the resumed run has the
// weights of an uninterrupted one.
func TestTimeLimit(t *testing.T) {
	dir := t.TempDir()
	train := func(h run.Hooks) (run.Snapshot, Result, error) {
		p := newTable(t, 1)
		result, err := Run(t.Context(), p, fixed(tokenStep), newGRPO(), Config{Steps: 6, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}}, h)
		return weightsOf(t, p), result, err
	}
	want, _, err := train(run.Hooks{})
	must.Do(t, err)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var saved []int
	h := run.Hooks{
		Now: func() time.Time { return now }, Deadline: now.Add(35 * time.Second),
		Progress: func(int, int, string) { now = now.Add(10 * time.Second) }, // a step takes that long
		Save:     func(step int, write func(string) error) error { saved = append(saved, step); return write(dir) },
	}
	if _, _, err = train(h); !errors.Is(err, run.ErrTimeUp) || !errors.Is(err, run.ErrStopped) || !slices.Equal(saved, []int{3}) {
		t.Fatalf("error %v, saved %v", err, saved)
	}
	expect.True(t, strings.Contains(err.Error(), "time limit"), "error %v", err)
	got, result, err := train(run.Hooks{Resume: dir})
	expect.True(t, err == nil && result.Steps == 6 && slices.EqualFunc(want, got, slices.Equal),
		"resumed: %+v, %v; equal weights: %v", result, err, slices.EqualFunc(want, got, slices.Equal))
	// A process takes at least one step.
	now, saved = now.Add(time.Hour), nil
	_, _, err = train(h)
	expect.True(t, errors.Is(err, run.ErrTimeUp) && slices.Equal(saved, []int{1}), "error %v, saved %v", err, saved)
}
