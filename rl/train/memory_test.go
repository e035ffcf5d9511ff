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
	"github.com/rltrain/rltrain/rl/epochs"
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

func within(p policy.Policy, holds int) policy.Policy {
	if holds == 0 {
		return p
	}
	return &scarce{p, holds}
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

// scarceRuns are runs that use everything a step computes.
var scarceRuns = map[string]func(t *testing.T, micro, holds int, retry bool, h run.Hooks) (policy.Policy, error){
	"sft with dropout": func(t *testing.T, micro, holds int, retry bool, h run.Hooks) (policy.Policy, error) {
		p := trainedToken(t, 4)
		source, err := epochs.New(policy.Samples(texts(90)), 40, 0, 5)
		expect.Require(t, err == nil, "%v", err)
		c := Config{Steps: 4, Seed: 3, Memory: Memory{MicroTokens: micro, OOMRetry: retry}, Optimisation: Optimisation{LearningRate: 1e-2, Schedule: "constant"}}
		_, err = Run(t.Context(), within(p, holds), source, &algo.SFT{}, c, h)
		return p, err
	},
	"grpo with a reference": ofScarceTokens(newGRPO, func(r *tokenRun) { r.KLCoef, r.KLType = 0.1, "k3" }),
	"ppo, four updates":     ofScarceTokens(newPPO, func(r *tokenRun) { r.Epochs, r.Minibatches = 2, 2 }),
	"dqn of labels": func(t *testing.T, micro, holds int, retry bool, h run.Hooks) (policy.Policy, error) {
		r := newLabelRun("accuracy")
		r.algorithm, r.Epochs, r.replay, r.Steps = &algo.DQN{Temperature: 0.1}, 1, 40, 3
		r.MicroTokens, r.holds, r.OOMRetry = micro, holds, retry
		p := tinyLabel(t)
		_, err := r.on(t.Context(), t, p, h)
		return p, err
	},
	"pairs × dpo": func(t *testing.T, micro, holds int, retry bool, h run.Hooks) (policy.Policy, error) {
		p := trainedToken(t, 4)
		units := preferred(t, p, 13)
		c := Config{Steps: 4, Seed: 3, Memory: Memory{MicroTokens: micro, OOMRetry: retry}, Precompute: slices.Concat(units...), Optimisation: Optimisation{LearningRate: 1e-2, Schedule: "constant"}}
		_, err := Run(t.Context(), within(p, holds), epochs.NewPreferences(units, 9, 0, 5).Source, newDPO("sigmoid"), c, h)
		return p, err
	},
}

func ofScarceTokens(algorithm func() algo.Algorithm, change func(r *tokenRun)) func(t *testing.T, micro, holds int, retry bool, h run.Hooks) (policy.Policy, error) {
	return func(t *testing.T, micro, holds int, retry bool, h run.Hooks) (policy.Policy, error) {
		r := newTokenRun(algorithm)
		r.Steps, r.LearningRate, r.MicroTokens, r.holds, r.OOMRetry = 3, 0.005, micro, holds, retry
		change(&r)
		p := tinyToken(t, 0)
		_, err := r.on(t.Context(), t, p, h)
		return p, err
	}
}

var ranOut = regexp.MustCompile(`^warning: step (\d+): out of memory in .* tokens_per_micro_batch to (\d+) `)

// TestStepIsRepeatedWhenOutOfMemory: a run that finds the memory limit in its first step ends byte-identical to a
// run configured with it, and logs the same except for warnings.
func TestStepIsRepeatedWhenOutOfMemory(t *testing.T) {
	for name, train := range scarceRuns {
		t.Run(name, func(t *testing.T) {
			var found, told recorded
			p := must.Get(train(t, 0, 100, true, found.hooks()))(t)
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
			expect.Require(t, micro >= 1 && micro <= 100, "passes hold %d tokens in the end, want at most 100", micro)
			q := must.Get(train(t, micro, 100, false, told.hooks()))(t)
			expect.True(t, slices.EqualFunc(weightsOf(t, p), weightsOf(t, q), slices.Equal), "the weights differ")
			got, want := fmt.Sprint(encoded(t, found.rows), found.lines), fmt.Sprint(encoded(t, told.rows), told.lines)
			expect.True(t, got == want, "got %s\nwant %s", got, want)
		})
	}
}

// TestRepeatedStepsLoseNothing: if memory runs out in the middle of a step, the weights equal those of a machine with
// more memory, up to the order of sums.
func TestRepeatedStepsLoseNothing(t *testing.T) {
	for name, train := range scarceRuns {
		var said recorded
		p := must.Get(train(t, 200, 0, false, run.Hooks{}))(t)
		q := must.Get(train(t, 200, 90, true, said.hooks()))(t)
		expect.True(t, slices.ContainsFunc(said.lines, ranOut.MatchString), "%s: memory did not run out", name)
		want, got := slices.Concat(weightsOf(t, p)...), slices.Concat(weightsOf(t, q)...)
		e := torchtest.RelativeError(got, want)
		expect.True(t, e < 1e-4, "%s: the weights differ by %v", name, e)
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
		{"not to be repeated", 100, false, []string{"step 1", "can't allocate memory", "samples", "set tokens_per_micro_batch to ", "half of that", "oom_retry"}},
		{"one sample is too much", 5, true, []string{"1 sample", "cannot be divided", "gradient_checkpointing", "half as long", "max_length"}},
	} {
		if _, err := scarceRuns["sft with dropout"](t, 0, test.holds, test.retry, run.Hooks{}); err == nil {
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
