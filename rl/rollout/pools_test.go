package rollout

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// finite is endless with n training episodes.
type finite struct {
	endless
	n int
}

func (f finite) Len(envs.Part) int { return f.n }

// TestSettledPromptsAreSampledLess compares how often each prompt is a step's first or second with its probability.
func TestSettledPromptsAreSampledLess(t *testing.T) {
	c := tokensConfig()
	c.PromptsPerStep, c.Pools = 2, Pools{ByDifficulty: true, Floor: 0.25}
	src := tokens(t, sampler(t, tiny(t), 8), finite{letters, 6}, c)
	src.state.Settled = []int{1, 4}
	const steps = 20000
	var first, second [6]float64
	for step := range steps {
		chosen := src.upcoming(step)(src.state.Cursor, 2)
		first[chosen[0]] += 1. / steps
		second[chosen[1]] += 1. / steps
	}
	weights := [6]float64{1, 0.25, 1, 1, 0.25, 1}
	const all = 4.5
	for i, w := range weights {
		then := 0.0
		for j, other := range weights {
			if j != i {
				then += other / all * w / (all - other)
			}
		}
		expect.True(t, math.Abs(first[i]-w/all) < 0.015 && math.Abs(second[i]-then) < 0.015,
			"prompt %d is first in %.3f of the steps, want %.3f, and second in %.3f, want %.3f", i, first[i], w/all, second[i], then)
	}
	expect.Equal(t, []int{0, 1, 2, 3, 4, 5}, slices.Sorted(slices.Values(src.upcoming(3)(0, 9))), "the prompts of a step that asks for more than there are")
}

func TestPromptsSettleAndUnsettle(t *testing.T) {
	group := func(prompt int, rewards ...float64) (g rl.Group) {
		for _, r := range rewards {
			g = append(g, &rl.Trajectory{Prompt: prompt, Turns: []rl.Turn{{Reward: r}}})
		}
		return g
	}
	src := &Tokens{config: TokensConfig{Options: Options{Pools: Pools{ByDifficulty: true, Floor: 0.2}}}}
	for _, step := range []struct {
		played []rl.Group
		want   []int
	}{
		{[]rl.Group{group(7, 1, 1), group(2, 0, 0), group(3, 0, 1)}, []int{2, 7}},
		{[]rl.Group{group(3, 0.5, 0.5, math.NaN()), group(2, 0, 0)}, []int{2, 3, 7}},
		{[]rl.Group{group(2, 0, 1), group(9, math.NaN(), math.NaN()), group(7, math.NaN(), math.NaN())}, []int{3, 7}},
		{[]rl.Group{group(7, 1, 0), group(3, 0, 1)}, nil},
	} {
		src.settle(step.played)
		expect.Equal(t, step.want, src.state.Settled, cmpopts.EquateEmpty())
	}
}

// TestPoolsOfASource: a step has different prompts, also with dynamic sampling and ahead, and a source that goes on from another's
// state has the same steps.
func TestPoolsOfASource(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	for name, change := range map[string]func(c *TokensConfig){
		"plain": func(*TokensConfig) {}, "dynamic": func(c *TokensConfig) { c.DynamicSampling = true },
		"ahead": func(c *TokensConfig) { c.Async, c.MaxStaleness = true, 2 },
	} {
		c := tokensConfig()
		c.Pools = Pools{ByDifficulty: true, Floor: 0.05}
		change(&c)
		src, task := tokens(t, m, finite{fixed, 12}, c), finite{fixed, 12}
		for step := range 6 {
			if step == 3 { // as after a resume
				state := must.Get(json.Marshal(src.State()))(t)
				other := tokens(t, m, task, c)
				must.Do(t, other.Restore(state))
				expect.Equal(t, encoded(t, next(t, src, step)), encoded(t, next(t, other, step)), name)
				continue
			}
			taken := next(t, src, step)
			prompts := map[int]bool{}
			for _, g := range taken.Groups {
				prompts[g[0].Prompt] = true
			}
			expect.True(t, len(prompts) == len(taken.Groups), "%s: step %d has a prompt twice", name, step)
		}
		settled := src.state.Settled
		expect.True(t, len(settled) > 0, "%s: no prompt is settled", name)
		taken := next(t, src, 6)
		expect.Same(t, float64(len(src.state.Settled))/12, taken.Figures.Get("settled_prompts"), "%s: settled prompts", name)
	}
}

func TestPoolsThatCannotBe(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.Pools = Pools{ByDifficulty: true, Floor: 0.2}
	expect.Failure(NewTokens(m, letters, c))(t, "difficulty_pools")
	expect.Failure(NewTokens(m, finite{letters, 3}, c))(t, "prompts_per_step")
	c.SamplesPerPrompt = 1
	expect.Failure(NewTokens(m, finite{letters, 9}, c))(t, "samples_per_prompt")
}
