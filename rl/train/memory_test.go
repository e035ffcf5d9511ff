package train

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// scarce is a policy on a machine with memory for passes of a limited number of tokens.
type scarce struct {
	policy.Policy
	holds int
}

func (c *scarce) Forward(s *torch.Scope, b *rl.Batch, pass policy.Pass) policy.Output {
	tokens := 0
	for _, sequence := range b.Sequences {
		tokens += len(sequence)
	}
	out := c.Policy.Forward(s, b, pass)
	if tokens > c.holds {
		exhaust(s)
	}
	return out
}

// exhaust requests 2^48 bytes from libtorch, twice the address space.
func exhaust(s *torch.Scope) {
	const n = 1 << 23
	values := make([]float32, n)
	s.Mul(s.Floats(values, n, 1), s.Floats(values, 1, n))
}

// scarceRuns are runs that use everything a step computes, and how many tokens of a pass fit into memory.
var scarceRuns = map[string]int{
	"epochs × sft of tokens": 11, "tokens × grpo, trained adapter": 100, "tokens × ppo": 100, "label replay × dqn": 50, "pairs × dpo, precomputed": 84,
}

// trainWithin is the policy after a run with a memory.
func trainWithin(t *testing.T, name string, m memory, h run.Hooks) (policy.Policy, error) {
	t.Helper()
	p, _, err := everyRun()[name](context.WithValue(t.Context(), limits{}, m), t, h)
	return p, err
}

var ranOut = regexp.MustCompile(`^warning: step (\d+): out of memory in .* tokens_per_micro_batch to (\d+) `)

// TestStepIsRepeatedWhenOutOfMemory: a run that finds the memory limit in its first step ends byte-identical to a
// run configured with it, and logs the same except for warnings. If memory runs out in the middle of a step, the weights equal those of
// a machine with more memory, up to the order of sums.
func TestStepIsRepeatedWhenOutOfMemory(t *testing.T) {
	for name, holds := range scarceRuns {
		t.Run(name, func(t *testing.T) {
			var found, told, late recorded
			p := must.Get(trainWithin(t, name, memory{holds: holds, retry: true}, found.hooks()))(t)
			micro := 0
			found.lines = slices.DeleteFunc(found.lines, func(line string) bool {
				said := ranOut.FindStringSubmatch(line)
				if said == nil {
					return false
				}
				expect.Same(t, "1", said[1], "memory ran out late: %s", line)
				expect.True(t, strings.Contains(line, "DefaultCPUAllocator: can't allocate memory"), "the line lacks libtorch's error: %s", line)
				micro, _ = strconv.Atoi(said[2])
				return true
			})
			expect.Require(t, micro >= 1 && micro <= holds, "passes hold %d tokens in the end, want at most %d", micro, holds)
			q := must.Get(trainWithin(t, name, memory{micro: micro, holds: holds}, told.hooks()))(t)
			expect.True(t, slices.EqualFunc(weightsOf(t, p), weightsOf(t, q), slices.Equal), "the weights differ")
			got, want := fmt.Sprint(encoded(t, found.rows), found.lines), fmt.Sprint(encoded(t, told.rows), told.lines)
			expect.True(t, got == want, "got %s\nwant %s", got, want)

			p = must.Get(trainWithin(t, name, memory{micro: holds * 9 / 8}, run.Hooks{}))(t)
			q = must.Get(trainWithin(t, name, memory{micro: holds * 9 / 8, holds: holds, retry: true}, late.hooks()))(t)
			expect.True(t, slices.ContainsFunc(late.lines, ranOut.MatchString), "memory did not run out")
			e := torchtest.RelativeError(slices.Concat(weightsOf(t, q)...), slices.Concat(weightsOf(t, p)...))
			expect.True(t, e < 1e-4, "the weights differ by %v", e)
		})
	}
}

// TestBytes: a weight has a gradient and two moments.
func TestBytes(t *testing.T) {
	p, n := tinyToken(t, 4), int64(0)
	for _, v := range p.Params() {
		n += must.Get(v.Elements())(t)
	}
	expect.Result(Optimisation{}.Bytes(p))(t, 3*4*n, "bytes")
}

// TestOutOfMemoryAdvice: the error names the option and a value.
func TestOutOfMemoryAdvice(t *testing.T) {
	for _, test := range []struct {
		name  string
		holds int
		retry bool
		want  []string
	}{
		{"not to be repeated", 11, false, []string{"step 1", "can't allocate memory", "samples", "set tokens_per_micro_batch to ", "half of that", "oom_retry"}},
		{"one sample is too much", 5, true, []string{"1 sample", "cannot be divided", "gradient_checkpointing", "half as long", "max_length"}},
	} {
		if _, err := trainWithin(t, "epochs × sft of tokens", memory{holds: test.holds, retry: test.retry}, run.Hooks{}); err == nil {
			t.Errorf("%s: got no error", test.name)
		} else {
			expect.Contains(t, err.Error(), test.want...)
		}
	}
	p := &passes{ranks: &ranks{training: &training{config: Config{Memory: Memory{OOMRetry: true}}}}}
	err := p.halve(errors.New("full"), [][]*rl.Sample{nil, {{Tokens: make([]int32, 40)}}})
	expect.Error(t, err, "full in a forward pass of 1 sample, 40 tokens … to 20 tokens")
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
	expect.Same(t, forgotten, torch.Forgotten(), "forgotten Vars")
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
