package rollout

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/policy"
)

// streams records the random streams of completions. The engine's random numbers are a function of (seed, stream,
// sample, token), so two completions that share the first three would get the same numbers.
type streams struct {
	lock sync.Mutex
	seen map[[3]uint64]string
}

// recording is a generator whose streams are recorded.
type recording struct {
	Generator
	*streams
	t *testing.T
}

func (r recording) Generate(ctx context.Context, prompts [][]int32, o policy.GenerateOptions, done func(int, []policy.Completion) error) error {
	r.lock.Lock()
	for i, prompt := range prompts {
		stream := uint64(i)
		if o.Streams != nil {
			stream = o.Streams[i]
		}
		for sample := range o.Samples {
			if o.Sampling.Temperature == 0 {
				continue // greedy
			}
			key, what := [3]uint64{o.Seed, stream, uint64(sample)}, fmt.Sprintf("sample %d after %v", sample, prompt)
			if other, twice := r.seen[key]; twice {
				r.t.Errorf("two completions share the stream %v: %s and %s", key, other, what)
			}
			r.seen[key] = what
		}
	}
	r.lock.Unlock()
	return r.Generator.Generate(ctx, prompts, o, done)
}

// TestNoStreamIsUsedTwice plays six steps of each source, with tasks of one turn, of several turns, and of actions that
// continue a turn.
func TestNoStreamIsUsedTwice(t *testing.T) {
	single, pair := disttest.Groups(t, 1), disttest.Groups(t, 2)
	for name, task := range map[string]envs.Task{"one turn": wordy(func(int) bool { return false }), "several turns": spelling, "continued actions": dialogues(4)} {
		for kind, change := range map[string]func(c *TokensConfig){
			"rollouts": func(c *TokensConfig) {}, "dynamic": func(c *TokensConfig) { c.DynamicSampling = true },
			"greedy baseline": func(c *TokensConfig) { c.Greedy = true }, "asynchronous": func(c *TokensConfig) { c.Async, c.MaxStaleness = true, 2 },
		} {
			for _, ranks := range []int{1, 2} {
				t.Run(fmt.Sprintf("%s, %s, %d ranks", name, kind, ranks), func(t *testing.T) {
					c, all, groups := tokensConfig(), &streams{seen: map[[3]uint64]string{}}, map[int][]*dist.Group{1: single, 2: pair}[ranks]
					if ranks > 1 && kind == "asynchronous" { // it exchanges until it ends
						if name != "several turns" {
							return
						}
						groups = disttest.Groups(t, ranks)
					}
					c.Steps, c.SamplesPerPrompt = 6, 3
					change(&c)
					samplers := make([]*policy.Sampler, ranks)
					for rank := range ranks {
						samplers[rank] = sampler(t, tiny(t), 8)
					}
					disttest.Each(ranks, func(rank int) {
						own := c
						own.Group = groups[rank]
						src, err := NewTokens(recording{samplers[rank], all, t}, task, own)
						for step := 0; err == nil && step < c.Steps; step++ {
							_, err = src.Next(t.Context(), rl.At{Step: step, Version: uint64(step)})
						}
						expect.True(t, err == nil, "%v", err)
					})
					want := c.Steps * c.PromptsPerStep * c.SamplesPerPrompt
					expect.True(t, len(all.seen) >= want, "%d streams were recorded, want %d or more", len(all.seen), want)
				})
			}
		}
		t.Run(name+", replay", func(t *testing.T) {
			all := &streams{seen: map[[3]uint64]string{}}
			src, err := NewReplay(recording{sampler(t, tiny(t), 8), all, t}, task, replayConfig())
			for step := 0; err == nil && step < 6; step++ {
				_, err = src.Next(t.Context(), rl.At{Step: step, Version: uint64(step)})
			}
			expect.True(t, err == nil && len(all.seen) >= 48, "%d streams, %v", len(all.seen), err)
		})
	}
}

// TestNoChoiceOfALabelSharesItsStream samples several labels per text, with the same texts in every step.
func TestNoChoiceOfALabelSharesItsStream(t *testing.T) {
	c := labelsConfig()
	c.Samples, c.Values = 4, false
	src, seen := labels(t, classifier(t), labelRewards(t, "accuracy"), c), map[string]bool{}
	for step := range 6 {
		at := rl.At{Step: step}
		made := must.Get(src.Next(t.Context(), at))(t)
		for _, x := range made.Samples {
			key := fmt.Sprint(src.streamOf(x, at))
			expect.True(t, !seen[key], "sample %d of text %d in step %d shares its stream", x.Index, x.Prompt, step)
			seen[key] = true
		}
	}
	expect.True(t, len(seen) >= 6*20, "only %d choices", len(seen))
}

// TestRanksSampleAhead: several ranks produce the steps of one rank, with prefetching, episodes of several turns, and
// one prompt that is too long. A stopped run resumes with another number of ranks.
func TestRanksSampleAhead(t *testing.T) {
	c := tokensConfig()
	c.Steps, c.Async, c.MaxStaleness = 6, true, 2
	task := wordy(func(index int) bool { return index == 5 })
	// play has the given number of ranks play the steps [from, to), and returns the steps and the final state.
	play := func(ranks int, state []byte, from, to int) (steps []string, after []byte) {
		groups := disttest.Groups(t, ranks)
		policies, sources := make([]*policy.CausalLM, ranks), make([]*Tokens, ranks)
		for rank := range ranks {
			policies[rank] = tiny(t)
			own := c
			own.Group = groups[rank]
			sources[rank] = tokens(t, sampler(t, policies[rank], 8), task, own)
			for i := range from {
				learn(t, policies[rank], i)
			}
			if state != nil {
				must.Do(t, sources[rank].Restore(state))
			}
		}
		for i := from; i < to; i++ {
			got, errs := make([]*rl.Step, ranks), make([]error, ranks)
			disttest.Each(ranks, func(rank int) {
				got[rank], errs[rank] = sources[rank].Next(t.Context(), rl.At{Step: i, Version: uint64(i)})
			})
			for rank, err := range errs {
				expect.Require(t, err == nil, "rank %d: %v", rank, err)
				expect.True(t, rank <= 0 || encoded(t, got[rank]) == encoded(t, got[0]), "step %d: rank %d has other samples than rank 0", i+1, rank)
				learn(t, policies[rank], i)
			}
			steps = append(steps, encoded(t, got[0]))
		}
		after = must.Get(json.Marshal(sources[0].State()))(t)
		return steps, after
	}
	want, _ := play(1, nil, 0, c.Steps)
	for _, test := range [][2]int{{3, 2}, {2, 1}, {1, 3}} {
		before, state := play(test[0], nil, 0, 3)
		after, _ := play(test[1], state, 3, c.Steps)
		expect.Equal(t, want, append(before, after...), fmt.Sprintf("%d ranks and then %d", test[0], test[1]))
	}
}

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

// TestPrefetchedOfAnotherTask refuses actions of episodes that the task no longer has, and states of another kind.
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
	expect.Error(t, tokens(t, m, letters, c).Restore(bytes.ReplaceAll(state, []byte(`"episodes"`), []byte(`"cursor_of"`))), "step 1", "another version")
	replayed, labelled := replay(t, m, spelling, replayConfig()), labels(t, classifier(t), labelRewards(t, "accuracy"), labelsConfig())
	for name, restore := range map[string]func(json.RawMessage) error{"tokens": src.Restore, "replay": replayed.Restore, "labels": labelled.Restore} {
		expect.True(t, restore(json.RawMessage(`["x"]`)) != nil, "%s: a state of another kind is accepted", name)
	}
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
