package train

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
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

// TestMemoryStaysFlat takes 600 steps on batches of mixed lengths. No handle may leak, and after step 150, when every
// batch has been seen, the process may grow by less than 1 %.
func TestMemoryStaysFlat(t *testing.T) {
	const steps, settled, size, kinds = 600, 150, 8, 75
	p := tinyLabel(t)
	rng := rand.New(rand.NewPCG(1, 2))
	batches := make([][]*rl.Sample, kinds)
	for i := range batches {
		for range size {
			ids := make([]int32, 1+rng.IntN(32))
			for i := range ids {
				ids[i] = int32(rng.IntN(50))
			}
			batches[i] = append(batches[i], &rl.Sample{Tokens: ids, Actions: []int32{rng.Int32N(int32(len(labelNames)))}})
		}
	}
	source := fixed(func(step int) *rl.Step { return &rl.Step{Samples: batches[step%kinds]} })
	tr := must.Get(New(p, source, &algo.SFT{}, Config{Steps: steps, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant", MaxGradNorm: 1}}, run.Hooks{}))(t)
	defer tr.Close()
	thread := torch.NewThread() // as in a run: every computing thread has an arena
	defer thread.Close()
	forgotten := torch.Forgotten()
	var live int64
	var rss float64
	must.Do(t, thread.Do(t.Context(), func(ctx context.Context) error {
		for step := 1; step <= steps; step++ {
			if _, err := tr.Step(ctx); err != nil {
				return err
			}
			if step == settled {
				live, rss = torch.Live(), residentMiB(t)
			}
		}
		return nil
	}))
	now := torch.Live()
	expect.True(t, now == live, "%d handles live at step %d, %d at step %d", now, steps, live, settled)
	if now := torch.Forgotten(); now != forgotten {
		t.Errorf("%d Vars were forgotten", now-forgotten)
	}
	if now := residentMiB(t); now > 1.01*rss {
		t.Errorf("%.1f MiB resident at step %d, %.1f at step %d", now, steps, rss, settled)
	}
}

// residentMiB is the process's resident memory minus what Go's collector has not yet released.
func residentMiB(t *testing.T) float64 {
	t.Helper()
	debug.FreeOSMemory()
	runtime.GC()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kilobytes := must.Get(strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64))(t)
			return kilobytes / 1024
		}
	}
	t.Skip("no VmRSS in /proc/self/status")
	return 0
}

// TestOlderVersionsAreNotTheSamplersError: the mismatch between sampler and trainer is measured only on samples of the
// current weights; older versions are expected to differ.
func TestOlderVersionsAreNotTheSamplersError(t *testing.T) {
	of := func(version uint64, old, drawn float32) *rl.Sample {
		return &rl.Sample{Actions: []int32{1}, Version: version, Old: []float32{old}, BehaviorLogProbs: []float32{drawn}}
	}
	m := rl.Meter{}
	compareSampler(m, []*rl.Sample{of(7, -1, -1.25), of(7, -1, -0.25), of(6, -1, -9), {Actions: []int32{1}, Version: 7}}, 7)
	const name = "sampling/sampling_logp_difference/"
	mean, most := m.Get(name+"mean"), m.Get(name+"max")
	expect.True(t, mean == 0.5 && most == 0.75, "differences of 0.25 and 0.75 have mean %v and maximum %v", mean, most)
}

// TestFiguresOfObjectives: DPPO reports the fraction of tokens that it leaves out, VESPO the mean weight of a completion.
func TestFiguresOfObjectives(t *testing.T) {
	low, high := float32(math.Log(0.3)), float32(math.Log(0.9))
	sample := func(advantage float32, old ...float32) *rl.Sample {
		return &rl.Sample{Actions: make([]int32, len(old)), Old: old, Advantage: slices.Repeat([]float32{advantage}, len(old))}
	}
	now := []float32{high, low, high}
	part := []*rl.Sample{sample(1, low, low), sample(-1, low)} // the first token moved far in the advantage's direction
	for name, want := range map[string]float64{"dppo/masked_ratio": 1. / 3, "vespo/phi_mean": (0.5 + 0.25) / 2} {
		var a algo.Algorithm = &algo.DPPO{Divergence: "tv", Delta: 0.2, Cap: 20}
		if name == "vespo/phi_mean" { // with k = 0 a weight is exp(λ − λ·ratio)
			a = &algo.VESPO{PositiveDecay: math.Ln2 / 2, NegativeDecay: math.Ln2}
		}
		figures := map[string]float64{}
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			of := func(values ...float32) torch.Tensor { return s.Floats(values, 3) }
			a.Loss(s, &algo.Batch{LogProbs: of(now...), Old: of(low, low, low), Advantage: of(1, 1, -1), Weight: of(1, 1, 1), Samples: 2, Actions: 3, Part: part, Figures: figures})
		})
		expect.True(t, math.Abs(figures[name]-want) <= 1e-6, "%s %v, want %v", name, figures[name], want)
	}
	expect.True(t, (&algo.ReinforcePlusPlus{Baseline: "group"}).Check(1) != nil && (&algo.ReinforcePlusPlus{Baseline: "none"}).Check(1) == nil,
		"a prompt's mean needs two samples, and only that")
}

// TestPenaltiesKeepTheirScale: penalties of eight right answers are not scaled up to the difference
// between right and wrong.
func TestPenaltiesKeepTheirScale(t *testing.T) {
	var group []*rl.Sample
	for i := range 8 {
		group = append(group, &rl.Sample{Actions: []int32{0}, Rewards: []float64{1}, Penalty: []float64{0.001 * float64(i)}})
	}
	step := &rl.Step{Groups: [][]*rl.Sample{group}, Samples: group, Figures: rl.Meter{}}
	must.Do(t, newGRPO().Prepare(step))
	for i, x := range group {
		want := 0.001 * (3.5 - float64(i))
		expect.True(t, math.Abs(float64(x.Advantage[0])-want) <= 1e-6, "sample %d: advantage %v, want %v", i, x.Advantage[0], want)
	}
}

// TestSamplerAndTrainerAgree at temperatures other than 1, in one turn and in several.
func TestSamplerAndTrainerAgree(t *testing.T) {
	for _, temperature := range []float64{1, 0.6, 1.7} {
		r := newTokenRun(newGRPO)
		r.task, r.Options.Temperature, r.Steps = spelling{}, temperature, 3
		var said recorded
		must.Get(r.on(t.Context(), t, trainedToken(t, 4), said.hooks()))(t)
		replayed := newReplayRun(&algo.Replay{Min: 0, Max: 10})
		replayed.ReplayOptions.Temperature, replayed.Steps = temperature, 3
		must.Get(replayed.on(t.Context(), t, trainedToken(t, 4), said.hooks()))(t)
		for i, d := range said.figure("sampling/sampling_logp_difference/max") {
			expect.True(t, d <= 1e-4, "temperature %v, row %d: sampler and trainer differ by %v", temperature, i, d)
		}
	}
}
