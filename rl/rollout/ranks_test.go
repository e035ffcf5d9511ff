package rollout

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/policy"
)

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
				expect.True(t, rank <= 0 || encoded(t, got[rank]) == encoded(t, got[0]),
					"step %d: rank %d has other samples than rank 0", i+1, rank)
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
