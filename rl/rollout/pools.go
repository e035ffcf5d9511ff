package rollout

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
)

// Pools say that prompts are sampled by difficulty. A prompt is settled if all its completions got the same reward when it was
// last sampled: the policy always or never solves it, and its advantages are 0. With weights w of Floor for settled prompts and 1
// for all others, a step has the prompts of the smallest
//
//	−log(u) / w,   u uniform in (0, 1]
//
// which samples without replacement in proportion to the weights (Efraimidis and Spirakis 2006). With a Floor above 0 a settled
// prompt is sampled again at some time, so that it can leave its pool.
type Pools struct {
	ByDifficulty bool    `option:"difficulty_pools" help:"sample prompts less often if all their completions had the same reward the last time, such as those that are always or never solved"`
	Floor        float64 `option:"difficulty_floor" default:"0.2" range:"(0,1]" needs:"difficulty_pools" help:"sampling weight of such prompts; all others have 1"`
}

// checkPools returns an error if a step cannot choose its prompts from those of the task.
func (c TokensConfig) checkPools(task envs.Task) error {
	if !c.ByDifficulty {
		return nil
	}
	switch n := task.Len(envs.Train); {
	case c.SamplesPerPrompt < 2:
		return errors.New("difficulty_pools compares the completions of a prompt: set samples_per_prompt to at least 2")
	case n == 0:
		return errors.New("difficulty_pools needs a fixed set of prompts, but this task generates them")
	case n < c.PromptsPerStep:
		return fmt.Errorf("difficulty_pools needs at least prompts_per_step training prompts, %d, but there are %d", c.PromptsPerStep, n)
	}
	return nil
}

// upcoming returns a function that gives n training episodes of a step, the first of them number from; it gives fewer if no others
// are left.
func (t *Tokens) upcoming(step int) func(from, n int) []int {
	if !t.config.ByDifficulty {
		return upFrom
	}
	first, order := t.state.Cursor, t.byDifficulty(step)
	return func(from, n int) []int {
		rest := order[min(from-first, len(order)):]
		return rest[:min(n, len(rest))]
	}
}

// byDifficulty has all training episodes, in the order in which a step takes them.
func (t *Tokens) byDifficulty(step int) []int {
	type ranked struct {
		episode int
		key     float64
	}
	list := make([]ranked, t.task.Len(envs.Train))
	rng := rl.Stream(t.config.Seed, rl.StreamDifficulty, uint64(step))
	for i := range list {
		list[i] = ranked{i, -math.Log(1 - rng.Float64())}
	}
	for _, i := range t.state.Settled {
		list[i].key /= t.config.Floor
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.key, b.key) })
	order := make([]int, len(list))
	for i, one := range list {
		order[i] = one.episode
	}
	return order
}

// settle notes which of the prompts that were played are settled now.
func (t *Tokens) settle(groups []rl.Group) {
	if !t.config.ByDifficulty {
		return
	}
	for _, g := range groups {
		rewards := slices.DeleteFunc(g.Rewards(), math.IsNaN)
		at, known := slices.BinarySearch(t.state.Settled, g[0].Prompt)
		switch settled := !rl.Differ(rewards); {
		case len(rewards) < 2: // which say nothing
		case settled && !known:
			t.state.Settled = slices.Insert(t.state.Settled, at, g[0].Prompt)
		case !settled && known:
			t.state.Settled = slices.Delete(t.state.Settled, at, at+1)
		}
	}
}
