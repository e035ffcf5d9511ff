package rollout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// unreliable is the letters task with episodes that hang, panic or fail.
func unreliable(release chan struct{}) endless {
	return func(part envs.Part, index int) envs.Env {
		return &unreliableEpisode{Env: letters(part, index), index: index, release: release}
	}
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
		<-e.release // ignores its context
	case 1:
		panic("broken")
	}
	return e.Env.Step(ctx, a)
}

type unjudgedEpisode struct{ envs.Env }

func (unjudgedEpisode) Step(context.Context, envs.Action) (envs.Step, error) {
	return envs.Step{}, fmt.Errorf("%w: the judge is away", envs.ErrNotScored)
}

// TestUnscoredAnswersAreSkipped evaluates completions, some or all of which could not be scored.
func TestUnscoredAnswersAreSkipped(t *testing.T) {
	m := sampler(t, tiny(t), 4)
	task := func(every int) endless {
		return func(part envs.Part, index int) envs.Env {
			if index%every == 0 {
				return unjudgedEpisode{letters(part, index)}
			}
			return letters(part, index)
		}
	}
	c := Config{Samples: 1, MaxNew: 2, Seed: 1, Failed: func(episode, _ int, err error) { t.Errorf("episode %d: %v", episode, err) }}
	scores, err := Evaluate(t.Context(), m, task(3), 0, 9, c)
	expect.True(t, err == nil && scores.N == 6 && scores.FoundBy["none"] <= 0, "%+v, %v", scores, err)
	expect.Failure(Evaluate(t.Context(), m, task(1), 0, 9, c))(t, "none of 9 answers")
}

// TestFailedEpisodesAreSkipped has one episode in four that hangs, one that panics, and one that fails to
// start. The synctest clock makes the timeouts instant.
func TestFailedEpisodesAreSkipped(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		c := tokensConfig()
		c.StepTimeout = 60
		src := tokens(t, m, unreliable(release), c)
		began := time.Now()
		var steps []*rl.Step
		for i := range 2 {
			steps = append(steps, next(t, src, i))
		}
		expect.Same(t, time.Minute, time.Since(began), "passed")
		for i, want := range [][3]float64{{24, 8, 24}, {0, 0, 0}} { // of 4 × 8 samples
			f := steps[i].Figures
			expect.Same(t, want, [3]float64{f.Get("failed_episodes"), f.Get("timeouts"), f.Get("failed_rewards")}, "step %d: failed, out of time, without reward", i+1)
			n := len(steps[i].Samples)
			expect.True(t, n == 32-int(want[0]) && len(steps[i].Groups) == 4, "step %d: %d samples of %d groups", i+1, n, len(steps[i].Groups))
		}
		expect.Same(t, 0.75, steps[0].Health.Failed, "the alarms receive")
		notes := strings.Join(steps[0].Notes, "\n")
		expect.True(t, strings.Contains(notes, "warning: 24 episodes of step 1 failed and are dropped, 8 of them because of the timeout"), "notes %q", notes)
		expect.True(t, len(steps[1].Notes) == 0, "notes %q", steps[1].Notes)
	})
}

// closedOnce is an episode that may be closed once.
type closedOnce struct {
	envs.Env
	t      *testing.T
	closed atomic.Bool
	closes *atomic.Int64
}

func (e *closedOnce) Close() error {
	expect.True(e.t, !e.closed.Swap(true), "an episode is closed twice")
	e.closes.Add(1)
	return nil
}

// TestFailuresOfARolloutAreErrors if there is no callback for them.
func TestFailuresOfARolloutAreErrors(t *testing.T) {
	m := sampler(t, tiny(t), 4)
	c := sampled
	c.Timeout = time.Hour
	expect.Failure(Play(t.Context(), m, unreliable(nil), envs.Train, []int{2, 1}, c))(t, "episode 1, sample 0: panic: broken")
	expect.Failure(Play(t.Context(), m, unreliable(nil), envs.Train, []int{2, 3}, c))(t, "episode 3: no room")
	var closes atomic.Int64
	all := endless(func(part envs.Part, index int) envs.Env {
		return &closedOnce{Env: unreliable(nil)(part, index), t: t, closes: &closes}
	})
	expect.Failure(Play(t.Context(), m, all, envs.Train, []int{2, 3, 4}, c))(t, "episode 3: no room")
	expect.Same(t, 9, closes.Load(), "episodes closed")
	ctx, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	defer close(release)
	go cancel()
	_, err := Play(ctx, m, unreliable(release), envs.Train, []int{0}, c)
	expect.True(t, errors.Is(err, context.Canceled), "error %v", err)
}

// TestNoEpisodeBegins: a step without samples does not blame the prompts. Samples that begin are played without the others of their
// group.
func TestNoEpisodeBegins(t *testing.T) {
	closed := endless(func(part envs.Part, index int) envs.Env {
		return &unreliableEpisode{Env: letters(part, index), index: 3}
	})
	step := next(t, tokens(t, sampler(t, tiny(t), 8), closed, tokensConfig()), 0)
	notes := strings.Join(step.Notes, "\n")
	expect.True(t, len(step.Samples) == 0 && strings.Contains(notes, "warning: 32 episodes of step 1 failed") && strings.Contains(notes, "no room"), "%d samples, notes %q", len(step.Samples), notes)
	var begun atomic.Int32
	half := endless(func(part envs.Part, index int) envs.Env {
		return &unreliableEpisode{Env: letters(part, index), index: 2 + int(begun.Add(1)%2)}
	})
	step = next(t, tokens(t, sampler(t, tiny(t), 8), half, tokensConfig()), 0)
	expect.True(t, len(step.Samples) == 16 && step.Figures.Get("failed_episodes") == 16, "%d samples, figures %v", len(step.Samples), step.Figures)
}

// TestFailedEpisodesKeepTokens as a turn without a reward; episodes that failed to start have no tokens.
func TestFailedEpisodesKeepTokens(t *testing.T) {
	c := sampled
	c.Timeout = time.Hour
	type failure struct{ episode, sample int }
	var heard []failure
	c.Failed = func(episode, sample int, err error) { heard = append(heard, failure{episode, sample}) }
	groups := played(t, sampler(t, tiny(t), 4), unreliable(nil), []int{3, 1, 2}, c).Groups
	want := []failure{{3, 0}, {3, 1}, {3, 2}, {1, 0}, {1, 1}, {1, 2}}
	expect.True(t, slices.Equal(want, heard), "failures %v, want %v", heard, want)
	for i, x := range slices.Concat(groups...) {
		wrote := x.Len() > 0 && len(x.Turns) == 1 && x.Validate() == nil
		expect.True(t, math.IsNaN(x.Reward()) == (i < 6) && wrote != (i < 3) && (i >= 3 || len(x.Tokens) == 0), "sample %d: %+v", i, x)
	}
}

// TestPromptsThatAreTooLong are counted; the others are played as if these did not exist.
func TestPromptsThatAreTooLong(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	odd := func(index int) bool { return index%2 == 1 }
	_, err := Play(t.Context(), m, wordy(odd), envs.Train, []int{2, 5}, sampled)
	expect.True(t, errors.Is(err, ErrTooLong) && strings.Contains(err.Error(), "episode 5: prompt too long: 3000 prompt tokens"), "error %v", err)
	for _, async := range []bool{false, true} {
		c := tokensConfig()
		c.Async, c.MaxStaleness = async, 1
		src := tokens(t, m, wordy(odd), c)
		for i := range 2 {
			step := next(t, src, i)
			n := step.Figures.Get("failed_episodes")
			expect.True(t, n == 16 && len(step.Samples) == 16 && step.Figures.Get("timeouts") == 0, "async %t: %v of 32 failed, %d samples", async, n, len(step.Samples))
			for _, x := range step.Samples {
				expect.True(t, !odd(x.Prompt), "async %t: a sample of episode %d", async, x.Prompt)
			}
			notes := strings.Join(step.Notes, "\n")
			expect.True(t, strings.Contains(notes, "failed and are dropped, 0 of them because of the timeout; the first: episode "+[]string{"1", "5"}[i]), "async %t: notes %q", async, notes)
		}
		all := func(int) bool { return true }
		for _, greedy := range []bool{false, !async} {
			c.Greedy = greedy
			_, err := tokens(t, m, wordy(all), c).Next(t.Context(), rl.At{})
			expect.True(t, errors.Is(err, ErrTooLong) && strings.Contains(err.Error(), "no prompt of step 1 fits the model") && strings.Contains(err.Error(), "few_shot"), "async %t, greedy %t: error %v", async, greedy, err)
		}
	}
}

// breaking is a generator whose calls fail after the first few, or give a token that no model has.
type breaking struct {
	Generator
	calls   int
	garbled bool
}

func (b *breaking) Generate(ctx context.Context, prompts [][]int32, o policy.GenerateOptions, done func(int, []policy.Completion) error) error {
	switch b.calls--; {
	case b.calls >= 0:
		return b.Generator.Generate(ctx, prompts, o, done)
	case !b.garbled:
		return errors.New("the generator is gone")
	}
	return b.Generator.Generate(ctx, prompts, o, func(prompt int, completions []policy.Completion) error {
		completions[0].IDs = slices.Clone(completions[0].IDs)
		completions[0].IDs[0] = 1 << 20
		return done(prompt, completions)
	})
}

// TestGeneratorsThatFail: whichever call of a step fails, the step has its error.
func TestGeneratorsThatFail(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	plain := tokensConfig()
	greedy, async := plain, plain
	greedy.Greedy, async.Async, async.MaxStaleness = true, true, 1
	varied := places{Task: dialogues(2), free: &atomic.Int64{}, varied: true, shown: &atomic.Int64{}}
	varied.free.Store(1000)
	few := places{Task: letters, free: &atomic.Int64{}}
	few.free.Store(8)
	for _, test := range []struct {
		name  string
		calls int // of a step
		task  envs.Task
		c     TokensConfig
	}{
		{"one turn", 1, letters, plain}, {"turns", 3, spelling, plain}, {"a greedy baseline", 6, spelling, greedy}, {"asynchronous", 3, dialogues(2), async},
		{"prompts of their own", 2, varied, plain}, {"few places", 4, few, plain}, {"a replay buffer", 3, spelling, TokensConfig{}},
	} {
		for calls := range test.calls + 1 {
			for want, broken := range map[string]*breaking{"the generator is gone": {m, calls, false}, "1048576": {m, calls, true}} {
				var err error
				if test.c.Steps > 0 {
					_, err = must.Get(NewTokens(broken, test.task, test.c))(t).Next(t.Context(), rl.At{})
				} else {
					_, err = must.Get(NewReplay(broken, test.task, replayConfig()))(t).Next(t.Context(), rl.At{})
				}
				if calls == test.calls {
					expect.NoError(t, err, "%s: %d calls", test.name, calls)
				} else {
					expect.Error(t, err, want)
				}
			}
		}
	}
}

// TestJudgesThatFail: an error of a teacher, of the file of the buffer or of the log is the step's.
func TestJudgesThatFail(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c, r, l := tokensConfig(), replayConfig(), labelsConfig()
	asked := 0
	c.Teacher = func(_ context.Context, all []*rl.Trajectory) error {
		asked += len(all)
		return errors.New("the teacher is away")
	}
	expect.Failure(tokens(t, m, letters, c).Next(t.Context(), rl.At{}))(t, "the teacher is away")
	expect.Same(t, 32, asked, "trajectories for the teacher")
	r.Save = t.TempDir() + "/none/buffer"
	expect.Failure(replay(t, m, spelling, r).Next(t.Context(), rl.At{}))(t, r.Save)
	for _, line := range []string{"Episode", "Collected"} {
		l.Log = func(format string, _ ...any) error {
			if strings.Contains(format, line) {
				return errors.New("no room for the log")
			}
			return nil
		}
		expect.Failure(labels(t, classifier(t), labelRewards(t, "accuracy"), l).Next(t.Context(), rl.At{}))(t, "no room for the log")
	}
	expect.Failure(Play(t.Context(), m, short{}, envs.Train, []int{2}, sampled))(t, "episode 2: no such episode")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, next := range map[string]func(context.Context, rl.At) (*rl.Step, error){
		"rollouts": tokens(t, m, letters, tokensConfig()).Next, "labels": labels(t, classifier(t), labelRewards(t, "accuracy"), labelsConfig()).Next,
	} {
		_, err := next(ctx, rl.At{})
		expect.True(t, errors.Is(err, context.Canceled), "%s: %v", name, err)
	}
}
