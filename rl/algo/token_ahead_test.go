package algo

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"rltrain/envs"
	"rltrain/rl"
)

// unreliable are letters of which some episodes hang, panic or fail.
type unreliable struct{ release chan struct{} }

func (unreliable) Len(envs.Part) int { return 0 }

func (u unreliable) Episode(part envs.Part, index int) (envs.Env, error) {
	e, err := letters{}.Episode(part, index)
	return &unreliableEpisode{Env: e, index: index, release: u.release}, err
}

type unreliableEpisode struct {
	envs.Env
	index   int
	release chan struct{}
}

func (e *unreliableEpisode) Reset(ctx context.Context) (envs.Observation, error) {
	if e.index == 3 {
		return envs.Observation{}, errors.New("no room")
	}
	return e.Env.Reset(ctx)
}

func (e *unreliableEpisode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
	switch e.index {
	case 0:
		<-e.release // heeds no context
	case 1:
		panic("broken")
	}
	return e.Env.Step(ctx, a)
}

// TestEpisodesThatDoNotAnswerAreLeftOut has one episode of four that hangs, one that panics, and one that
// does not begin. Time is the bubble's: nothing is waited for.
func TestEpisodesThatDoNotAnswerAreLeftOut(t *testing.T) {
	p := tiny(t, 0)
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		c := rlConfig(GRPO)
		c.Steps, c.EvalSamples, c.Timeout = 2, 0, time.Minute
		var r recorded
		began := time.Now()
		if _, err := TokenRL(t.Context(), p, unreliable{release}, c, r.hooks()); err != nil {
			t.Fatal(err)
		}
		if passed := time.Since(began); passed != time.Minute {
			t.Errorf("%v passed", passed)
		}
		for step, want := range [][3]int{{24, 8, 24}, {0, 0, 0}} { // of 4 × 8 samples
			row := r.rows[step]
			if got := [3]int{row["failed_episodes"].(int), row["timeouts"].(int), row["failed_rewards"].(int)}; got != want {
				t.Errorf("step %d: failed, out of time, without reward: %v, want %v", step+1, got, want)
			}
		}
		lines := strings.Join(r.lines, "\n")
		for _, want := range []string{"warning: 24 episodes of step 1 failed, 8 of them by running out of time", "warning: failed_rewards"} {
			if !strings.Contains(lines, want) {
				t.Errorf("no %q in\n%s", want, lines)
			}
		}
	})
}

// TestFailuresOfARolloutAreErrors where nobody hears of them.
func TestFailuresOfARolloutAreErrors(t *testing.T) {
	m := sampler(t, tiny(t, 0), 4)
	c := sampled
	c.Timeout = time.Hour
	if _, err := m.Rollout(t.Context(), unreliable{}, envs.Train, []int{2, 1}, c); err == nil || !strings.Contains(err.Error(), "episode 1, sample 0: panic: broken") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	defer close(release)
	go cancel()
	if _, err := m.Rollout(ctx, unreliable{release}, envs.Train, []int{0}, c); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// slow are episodes that take an hour to answer.
type slow struct{ envs.Task }

func (s slow) Episode(part envs.Part, index int) (envs.Env, error) {
	e, err := s.Task.Episode(part, index)
	return slowEpisode{e}, err
}

type slowEpisode struct{ envs.Env }

func (e slowEpisode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
	time.Sleep(time.Hour)
	return e.Env.Step(ctx, a)
}

// TestAsync counts the hours that slow episodes keep a run waiting, and looks at the samples' ages and weights.
func TestAsync(t *testing.T) {
	for _, test := range []struct {
		staleness int
		task      envs.Task
		hours     int
	}{{1, letters{}, 3}, {5, letters{}, 1}, {1, dialogues{turns: 2}, 7}} {
		p := tiny(t, 0)
		synctest.Test(t, func(t *testing.T) {
			c := rlConfig(GRPO)
			c.Steps, c.EvalSamples, c.Async, c.MaxStaleness = 6, 0, true, test.staleness
			var r recorded
			began := time.Now()
			if _, err := TokenRL(t.Context(), p, slow{test.task}, c, r.hooks()); err != nil {
				t.Fatal(err)
			}
			if hours := int(time.Since(began) / time.Hour); hours != test.hours {
				t.Errorf("staleness %d, %T: %d hours, want %d", test.staleness, test.task, hours, test.hours)
			}
			for i, row := range r.rows {
				if got, want := row["staleness"].(uint64), uint64(min(i, test.staleness)); got != want {
					t.Errorf("step %d: staleness %d, want %d", i+1, got, want)
				}
				lo, hi := row["sampling/importance_sampling_ratio/min"].(float64), row["sampling/importance_sampling_ratio/max"].(float64)
				if i == 0 && (lo < 1-1e-4 || hi > 1+1e-4) || i > 1 && lo == hi {
					t.Errorf("step %d: weights from %v to %v", i+1, lo, hi)
				}
			}
		})
	}
}

// TestCorrect has a token whose probability has doubled, one of which nothing is left, and one far beyond the
// bound.
func TestCorrect(t *testing.T) {
	for _, test := range []struct {
		ratio  Ratio
		want   []float32
		range_ [3]float64
	}{
		{TokenRatio, []float32{2, 0, 3}, [3]float64{0, (2 + 0 + 100) / 3., 100}},
		{SequenceRatio, []float32{0, 0, 0}, [3]float64{0, 0, 0}},
	} {
		x := &TokenSample{Trajectory: trajectory([]int32{9, 8, 7, 6}, 1), Advantage: []float32{1, 1, 1}}
		x.Old = []float32{-1 + float32(math.Ln2), -1001, -1 + float32(math.Log(100))}
		tr := &tokenRL{algorithm: Algorithm{Ratio: test.ratio}, config: TokenRLConfig{Temperature: 1}}
		got := tr.correct([]*TokenSample{x})
		for i := range got {
			if math.Abs(got[i]-test.range_[i]) > 1e-3 {
				t.Errorf("ratios %v, want %v", got, test.range_)
			}
		}
		for i := range x.Advantage {
			if math.Abs(float64(x.Advantage[i]-test.want[i])) > 1e-5 {
				t.Errorf("advantages %v, want %v", x.Advantage, test.want)
			}
		}
	}
}

// TestStoppedAheadGoesOnExactly stops an asynchronous run in the middle of a step and takes it up again, with
// the actions of two steps under way.
func TestStoppedAheadGoesOnExactly(t *testing.T) {
	c := rlConfig(RLOO)
	c.Steps, c.Async, c.MaxStaleness, c.EvalSamples = 6, true, 2, 0
	task := dialogues{turns: 2}
	run := func(ctx context.Context, h Hooks, task envs.Task) ([][]float32, error) {
		p := tiny(t, 0)
		_, err := TokenRL(ctx, p, task, c, h)
		weights, readErr := takeSnapshot(p)
		return weights, errors.Join(err, readErr)
	}
	var whole, parts recorded
	want, err := run(t.Context(), whole.hooks(), task)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	h := parts.hooks()
	h.Save = func(step int, write func(dir string) error) error {
		h.Resume = filepath.Join(dir, "checkpoint")
		if err := os.MkdirAll(h.Resume, 0o755); err != nil {
			return err
		}
		return write(h.Resume)
	}
	if _, err := run(ctx, h, cancelling{task, 13, cancel}); !errors.Is(err, ErrStopped) {
		t.Fatalf("error %v", err)
	}
	got, err := run(t.Context(), h, task)
	if err != nil {
		t.Fatal(err)
	}
	if !cmp.Equal(want, got) {
		t.Error("the weights differ")
	}
	if diff := cmp.Diff(encoded(t, whole.rows), encoded(t, parts.rows)); diff != "" {
		t.Errorf("rows (-uninterrupted +resumed):\n%s", diff)
	}
}

// cancelling ends a context where an episode is asked for.
type cancelling struct {
	envs.Task
	at     int
	cancel func()
}

func (c cancelling) Episode(part envs.Part, index int) (envs.Env, error) {
	if index == c.at {
		c.cancel()
	}
	return c.Task.Episode(part, index)
}

func TestAsyncRefuses(t *testing.T) {
	for want, change := range map[string]func(c *TokenRLConfig){
		"dynamic sampling":     func(c *TokenRLConfig) { c.DynamicSampling = true },
		"baseline greedy":      func(c *TokenRLConfig) { c.Baseline = rl.BaselineGreedy },
		"no top-k":             func(c *TokenRLConfig) { c.TopK = 5 },
		"means nothing":        func(c *TokenRLConfig) { c.Async, c.MaxStaleness = false, 2 },
		"neither can be below": func(c *TokenRLConfig) { c.Timeout = -1 },
	} {
		c := rlConfig(Reinforce)
		c.Async = true
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
