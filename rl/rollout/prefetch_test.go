package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// slow has episodes that take an hour to answer.
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

// TestPrefetching counts the hours that a run of six steps waits for slow episodes, and checks the samples' ages.
func TestPrefetching(t *testing.T) {
	for _, test := range []struct {
		staleness int // 0 = no prefetching
		task      envs.Task
		hours     int
	}{{1, letters, 3}, {5, letters, 1}, {1, dialogues(2), 7}} {
		p := tiny(t)
		m := sampler(t, p, 8)
		synctest.Test(t, func(t *testing.T) {
			c := tokensConfig()
			c.Steps, c.Async, c.MaxStaleness = 6, true, test.staleness
			src := tokens(t, m, slow{test.task}, c)
			began := time.Now()
			for i := range c.Steps {
				step := next(t, src, i)
				learn(t, p, i)
				age := uint64(min(i, test.staleness))
				got := step.Figures.Get("staleness")
				expect.True(t, got == float64(age) && step.Prefetched, "step %d: staleness %v, want %d", i+1, got, age)
				for _, x := range step.Samples {
					expect.Same(t, uint64(i)-age, x.Version, "step %d: a sample of version", i+1)
				}
			}
			expect.Same(t, test.hours, int(time.Since(began)/time.Hour), "staleness %d: hours", test.staleness)
			n := len(src.state.Flights)
			expect.True(t, n == 0 && src.state.Cursor == c.Steps*c.PromptsPerStep, "%d rollouts are begun that no step asks for; the next episode is %d", n, src.state.Cursor)
		})
	}
}

// TestPrefetchedEpisodesAreThoseOfTheStep: prefetching changes only the policy version.
func TestPrefetchedEpisodesAreThoseOfTheStep(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	plain := tokens(t, m, dialogues(2), c)
	c.Async, c.MaxStaleness = true, 3
	ahead := tokens(t, m, dialogues(2), c)
	for i := range 5 { // of a policy that never changes
		a, b := next(t, plain, i), next(t, ahead, i)
		for k, x := range a.Samples {
			y := b.Samples[k]
			expect.Require(t, cmp.Equal(x.Tokens, y.Tokens) && cmp.Equal(x.BehaviorLogProbs, y.BehaviorLogProbs) && cmp.Equal(x.Rewards, y.Rewards) && x.Prompt == y.Prompt,
				"step %d, sample %d: without prefetching %+v, with it %+v", i+1, k, x, y)
		}
	}
}

// TestStoppedPrefetchResumesExactly stops prefetched rollouts in the middle of a step, with the actions of two steps in
// flight, and resumes them with a new policy.
func TestStoppedPrefetchResumesExactly(t *testing.T) {
	c := tokensConfig()
	c.Steps, c.Async, c.MaxStaleness = 6, true, 2
	task := dialogues(2)
	p := tiny(t)
	whole := tokens(t, sampler(t, p, 8), task, c)
	var want []string
	for i := range c.Steps {
		want = append(want, encoded(t, next(t, whole, i)))
		learn(t, p, i)
	}

	for _, at := range []int{1, 9, 13, 22} { // the context ends at this episode
		ctx, cancel := context.WithCancel(t.Context())
		first := tiny(t)
		src := tokens(t, sampler(t, first, 8), cancelling{task, at, cancel}, c)
		stopped := 0
		var state []byte
		for ; ; stopped++ {
			step, err := src.Next(ctx, rl.At{Step: stopped, Version: uint64(stopped)})
			if err == nil {
				expect.Equal(t, want[stopped], encoded(t, step), fmt.Sprintf("step %d, before the stop at episode %d", stopped+1, at))
				learn(t, first, stopped)
				continue
			}
			expect.Require(t, errors.Is(err, context.Canceled), "%v", err)
			state = must.Get(json.Marshal(src.State()))(t)
			break
		}
		second := tiny(t)
		for i := range stopped {
			learn(t, second, i)
		}
		resumed := tokens(t, sampler(t, second, 5), task, c)
		must.Do(t, resumed.Restore(state))
		for i := stopped; i < c.Steps; i++ {
			expect.Equal(t, want[i], encoded(t, next(t, resumed, i)), fmt.Sprintf("step %d, stopped at episode %d", i+1, at))
			learn(t, second, i)
		}
		expect.Same(t, 0, len(resumed.state.Flights), "rollouts remain")
	}
}

// cancelling cancels a context when an episode is requested.
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

// TestPrefetchedOfAnotherTask refuses actions of episodes that the task no longer has.
func TestPrefetchedOfAnotherTask(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.Async, c.MaxStaleness = true, 1
	src := tokens(t, m, letters, c)
	next(t, src, 0)
	state := must.Get(json.Marshal(src.State()))(t)
	other := tokens(t, m, wordy(func(index int) bool { return index == 5 }), c)
	must.Do(t, other.Restore(state))
	expect.Failure(other.Next(t.Context(), rl.At{Step: 1, Version: 1}))(t, "the task has changed")
	older := bytes.ReplaceAll(state, []byte(`"episodes"`), []byte(`"cursor_of"`))
	expect.Error(t, tokens(t, m, letters, c).Restore(older), "step 1", "another version")
}

// TestLateFlightsAreOfTheCurrentPolicy: what servers had not generated when a run stopped, the policy of the resumed run generates.
func TestLateFlightsAreOfTheCurrentPolicy(t *testing.T) {
	c := tokensConfig()
	c.Async, c.MaxStaleness, c.Steps = true, 1, 6
	src := tokens(t, sampler(t, tiny(t), 8), letters, c)
	must.Do(t, src.Restore([]byte(`{"cursor":8,"flights":[{"step":2,"version":0,"episodes":[4,5,6,7],"first_actions":null}]}`)))
	step := must.Get(src.Next(t.Context(), rl.At{Step: 2, Version: 3}))(t)
	expect.True(t, len(step.Samples) > 0, "no samples")
	for _, x := range step.Samples {
		expect.Same(t, uint64(3), x.Version, "version of episode %d", x.Prompt)
	}
}
