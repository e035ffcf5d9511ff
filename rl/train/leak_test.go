package train

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

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
