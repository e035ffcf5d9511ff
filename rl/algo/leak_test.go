package algo

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"rltrain/rl/policy"
	"rltrain/torch"
)

// TestMemoryStaysFlat takes 2,000 steps on batches of mixed lengths: no handle may stay behind, and from
// step 200 on, when every size has been seen, the process may grow by less than 1 %.
func TestMemoryStaysFlat(t *testing.T) {
	const steps, settled, size, kinds = 2000, 200, 8, 200
	p := tinyLabel(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var e policy.Examples
	for range size * kinds {
		ids := make([]int32, 1+rng.IntN(32))
		for i := range ids {
			ids[i] = int32(rng.IntN(50))
		}
		e.IDs, e.Labels = append(e.IDs, ids), append(e.Labels, rng.IntN(len(labelNames)))
	}
	source, err := NewEpochs(e.Samples(), size, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(p, source, &SFT{}, Config{Steps: steps, Optimisation: Optimisation{LearningRate: 1e-3, Schedule: "constant", MaxGradNorm: 1}}, (&recorded{}).hooks())
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	tr.hooks.Row = nil
	thread := torch.NewThread() // as in a run: every thread that computes takes memory of its own
	defer thread.Close()
	forgotten := torch.Forgotten()
	var live int64
	var rss float64
	if err := thread.Do(t.Context(), func(ctx context.Context) error {
		for step := 1; step <= steps; step++ {
			if _, err := tr.Step(ctx); err != nil {
				return err
			}
			if step == settled {
				live, rss = torch.Live(), residentMiB(t)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if now := torch.Live(); now != live {
		t.Errorf("%d handles live at step %d, %d at step %d", now, steps, live, settled)
	}
	if now := torch.Forgotten(); now != forgotten {
		t.Errorf("%d Vars were forgotten", now-forgotten)
	}
	if now := residentMiB(t); now > 1.01*rss {
		t.Errorf("%.1f MiB resident at step %d, %.1f at step %d", now, steps, rss, settled)
	}
}

// residentMiB is the process's resident memory without what Go's collector has yet to hand back.
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
			kilobytes, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			if err != nil {
				t.Fatal(err)
			}
			return kilobytes / 1024
		}
	}
	t.Skip("no VmRSS in /proc/self/status")
	return 0
}
