package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// ranks are processes that train together.
type ranks struct {
	processes []*os.Process
	waits     []func() (int, string)
	told      string // folder of the error files that torchrun reads
}

// startRanks starts a data-parallel run of size processes; more holds further options by rank.
func (l lab) startRanks(t *testing.T, r recipe, out string, size int, more func(rank int) []string) *ranks {
	t.Helper()
	return l.startSome(t, r, out, size, size, more)
}

// startSome starts the first n processes of such a run.
func (l lab) startSome(t *testing.T, r recipe, out string, n, size int, more func(rank int) []string) *ranks {
	t.Helper()
	all := &ranks{told: t.TempDir()}
	port := disttest.FreePort(t)
	for rank := range n {
		process, wait := l.startWith(t, r, out, []string{
			fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", size), "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port),
			"TORCHELASTIC_ERROR_FILE=" + filepath.Join(all.told, fmt.Sprint(rank)),
		}, more(rank)...)
		all.processes, all.waits = append(all.processes, process), append(all.waits, wait)
	}
	return all
}

func always(more ...string) func(rank int) []string { return func(int) []string { return more } }

// wait waits for all ranks and returns their exit codes and output.
func (r *ranks) wait() (codes []int, outputs []string) {
	for _, wait := range r.waits {
		code, output := wait()
		codes, outputs = append(codes, code), append(outputs, output)
	}
	return codes, outputs
}

// cause is the error that a rank reports to torchrun.
func (r *ranks) cause(t *testing.T, rank int) string {
	t.Helper()
	data := must.Get(os.ReadFile(filepath.Join(r.told, fmt.Sprint(rank))))(t)
	var said struct {
		Message struct {
			Message   string
			ExtraInfo struct{ Timestamp string }
		}
	}
	err := json.Unmarshal(data, &said)
	expect.Require(t, err == nil && said.Message.ExtraInfo.Timestamp != "", "%v: %s", err, data)
	return said.Message.Message
}

// finish waits for ranks that should succeed.
func (r *ranks) finish(t *testing.T) {
	t.Helper()
	codes, outputs := r.wait()
	for rank, code := range codes {
		expect.Require(t, code == 0, "rank %d: exit code %d:\n%s", rank, code, outputs[rank])
	}
	for rank, output := range outputs[1:] {
		expect.Same(t, "", output, "rank %d says:\n", rank+1)
	}
}

// written are a run's completions with their rewards.
func written(t *testing.T, dir string) (rows []string) {
	t.Helper()
	for _, row := range lines[struct {
		Step, Sample            int
		Tokens, Written, Reward json.RawMessage
	}](t, filepath.Join(dir, "logs", "completions.jsonl")) {
		rows = append(rows, fmt.Sprint(row.Step, row.Sample, string(row.Tokens), string(row.Written), string(row.Reward)))
	}
	return rows
}

// apart is the largest difference between the weights of two checkpoints.
func apart(t *testing.T, a, b string) float64 {
	t.Helper()
	widest := 0.0
	of := func(dir string) map[string][]float32 {
		all := map[string][]float32{}
		for _, base := range []string{"model", "adapter_model", "head"} {
			path := filepath.Join(dir, base+".safetensors")
			if _, err := os.Stat(path); err != nil {
				continue // an adapter and a head, or all weights
			}
			file := must.Get(safetensors.Open(path))(t)
			for _, name := range file.Names() {
				all[base+" "+name] = must.Get(file.Float32s(name))(t)
			}
			file.Close()
		}
		return all
	}
	x, y := of(a), of(b)
	expect.Require(t, len(x) != 0 && len(x) == len(y), "%d and %d tensors", len(x), len(y))
	for name, values := range x {
		for i, v := range values {
			widest = max(widest, math.Abs(float64(v)-float64(y[name][i])))
		}
	}
	return widest
}

// lastCheckpoint is a run's newest checkpoint.
func lastCheckpoint(t *testing.T, dir string) string {
	t.Helper()
	path, _, _, err := run.LatestCheckpoint(dir)
	expect.Require(t, err == nil && path != "", "no checkpoint: %v", err)
	return path
}

// sameRun compares a run of several ranks with a run of one: identical completions, and weights that differ by rounding
// only.
func sameRun(t *testing.T, r recipe, one, several string) {
	t.Helper()
	a, b := filepath.Join(one, r.stage), filepath.Join(several, r.stage)
	if strings.HasPrefix(r.stage, "sum_digits") {
		expect.Equal(t, written(t, a), written(t, b), "answers")
	}
	d := apart(t, lastCheckpoint(t, a), lastCheckpoint(t, b))
	expect.True(t, d <= 1e-5, "weights differ by %g", d)
}

// TestRanks compares two processes with one. "make dist" does the same with more algorithms and ranks, and kills some
// of them.
func TestRanks(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"sft", "grpo", "grpo ahead", "replay"} {
		t.Run(name, func(t *testing.T) {
			r, out := recipes[name], t.TempDir()
			one, two := filepath.Join(out, "one"), filepath.Join(out, "two")
			l.finish(t, r, one)
			l.startRanks(t, r, two, 2, always()).finish(t)
			sameRun(t, r, one, two)
		})
	}
}

// connections counts the established connections of a process.
func connections(pid int) (n int) {
	mine := map[string]bool{}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, file := range files {
		target, _ := os.Readlink(file)
		mine[strings.Trim(strings.TrimPrefix(target, "socket:"), "[]")] = true
	}
	table, _ := os.ReadFile("/proc/self/net/tcp")
	more, _ := os.ReadFile("/proc/self/net/tcp6")
	for _, line := range strings.Split(string(table)+string(more), "\n") {
		if f := strings.Fields(line); len(f) > 9 && f[3] == "01" && mine[f[9]] {
			n++
		}
	}
	return n
}

// TestRanksEnd: if a rank hangs, is stopped, or has other options, all ranks exit and name it.
func TestRanksEnd(t *testing.T) {
	l := newLab(t)
	r, long := recipes["sft"], recipes["sft"]
	long.args = strings.NewReplacer("--max-steps 24", "--max-steps 3000", "--warmup-check-every 8", "--warmup-check-every 0", "--warmup-until 1", "").Replace(long.args)
	// under starts two ranks and waits for their first checkpoint.
	under := func(t *testing.T, out, timeout string) *ranks {
		all, began := l.startRanks(t, long, out, 2, always("--dist-timeout", timeout)), time.Now()
		poll := time.NewTicker(10 * time.Millisecond)
		defer poll.Stop()
		for range poll.C { // written by another process
			if newest, _, _, _ := run.LatestCheckpoint(filepath.Join(out, r.stage)); newest != "" || time.Since(began) > time.Minute {
				break
			}
		}
		return all
	}
	t.Run("is stopped", func(t *testing.T) {
		out := filepath.Join(t.TempDir(), "out")
		all := under(t, out, "600")
		must.Do(t, all.processes[1].Signal(syscall.SIGUSR1))
		codes, outputs := all.wait()
		expect.True(t, codes[0] == 1 && codes[1] == 128+int(syscall.SIGUSR1), "exit codes %v:\n%s\n%s", codes, outputs[0], outputs[1])
		cause := all.cause(t, 0)
		expect.True(t, strings.Contains(cause, "stopped"), "rank 0 says %q", cause)
		rows := must.Get(os.ReadFile(filepath.Join(out, r.stage, "logs", "metrics.jsonl")))(t)
		steps := bytes.Count(rows, []byte(`"loss":`))
		_, step, _, err := run.LatestCheckpoint(filepath.Join(out, r.stage))
		expect.True(t, err == nil && step != 0 && step == steps, "step %d of %d was saved, %v", step, steps, err)
	})
	t.Run("hangs", func(t *testing.T) {
		all := under(t, filepath.Join(t.TempDir(), "out"), "8")
		must.Do(t, all.processes[1].Signal(syscall.SIGSTOP))
		stopped := time.Now()
		code, output := all.waits[0]()
		took := time.Since(stopped)
		expect.True(t, code == 1 && strings.Contains(output, "rank 1 has not responded") && took <= 30*time.Second, "rank 0 ends after %v with code %d:\n%s", took, code, output)
		must.Do(t, all.processes[1].Signal(syscall.SIGCONT))
		if code, output := all.waits[1](); code != 1 || !strings.Contains(output, "rank 1") {
			t.Errorf("rank 1 ends with code %d:\n%s", code, output)
		}
		for rank := range 2 {
			cause := all.cause(t, rank)
			expect.True(t, strings.Contains(cause, "rank 1"), "rank %d reports %q to torchrun", rank, cause)
		}
	})
	for killed := range 2 {
		t.Run(fmt.Sprintf("rank %d dies before all have met", killed), func(t *testing.T) {
			all := l.startSome(t, r, filepath.Join(t.TempDir(), "out"), 2, 3, always("--dist-timeout", "300")) // rank 2 does not come
			poll := time.NewTicker(10 * time.Millisecond)
			defer poll.Stop()
			for began := time.Now(); connections(all.processes[1].Pid) < 2 && time.Since(began) < time.Minute; <-poll.C { // to the store and to rank 0
			}
			must.Do(t, all.processes[killed].Kill())
			died := time.Now()
			codes, outputs := all.wait()
			took := time.Since(died)
			expect.True(t, codes[1-killed] == 1 && strings.Contains(outputs[1-killed], fmt.Sprintf("rank %d", killed)) && took <= 30*time.Second, "after %v, exit code %d:\n%s", took, codes[1-killed], outputs[1-killed])
		})
	}
	t.Run("wrong options", func(t *testing.T) {
		for wrong := range 2 {
			all := l.startRanks(t, r, filepath.Join(t.TempDir(), "out"), 2, func(rank int) []string {
				return []string{[]string{"--seed", "--sead"}[1-(rank+wrong)%2], "5", "--dist-timeout", "300"}
			})
			codes, outputs := all.wait()
			other := 1 - wrong
			expect.True(t, codes[wrong] == 2 && codes[other] == 1 && strings.Contains(outputs[other], fmt.Sprintf("rank %d cannot take part: unknown option --sead", wrong)), "exit codes %v:\n%s\n%s", codes, outputs[0], outputs[1])
		}
	})
	t.Run("options", func(t *testing.T) {
		all := l.startRanks(t, r, filepath.Join(t.TempDir(), "out"), 2, func(rank int) []string { return []string{"--seed", fmt.Sprint(5 + rank)} })
		codes, outputs := all.wait()
		for rank, output := range outputs {
			expect.True(t, codes[rank] == 1 && strings.Contains(output, "rank 1 has seed 6, rank 0 has 5"), "rank %d: exit code %d:\n%s", rank, codes[rank], output)
			cause := all.cause(t, rank)
			expect.True(t, strings.Contains(output, cause), "rank %d reports %q to torchrun and prints\n%s", rank, cause, output)
		}
	})
}
