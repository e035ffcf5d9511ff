package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// restored is a source of this package.
type restored interface {
	Next(ctx context.Context, at rl.At) (*rl.Step, error)
	State() any
	Restore(state json.RawMessage) error
}

// TestSourcesResumeExactly restores each source after each step, with other numbers of slots and a smaller buffer, and
// refuses a state that does not fit without a change.
func TestSourcesResumeExactly(t *testing.T) {
	p, c, dynamic, filled := tiny(t), classifier(t), tokensConfig(), replayConfig()
	dynamic.DynamicSampling = true
	for name, source := range map[string]struct {
		slots  []int
		create func(slots int) restored
		bad    []string
	}{
		"tokens": {[]int{32, 3}, func(slots int) restored { return tokens(t, sampler(t, p, slots), fixed, dynamic) }, []string{`{"cursor":"x"}`}},
		"replay": {[]int{8, 3}, func(slots int) restored {
			r := replay(t, sampler(t, p, slots), spelling, filled)
			filled.BufferSize = 5 // the checkpoint's value wins
			return r
		}, []string{`{"buffer":{"capacity":0}}`, `[]`}},
		"labels": {[]int{1, 1}, func(int) restored { return labels(t, c, labelRewards(t, "accuracy,f1=0.5"), labelsConfig()) }, []string{`[]`}},
	} {
		t.Run(name, func(t *testing.T) {
			size := filled.BufferSize
			whole := source.create(source.slots[0])
			filled.BufferSize = size
			parts := source.create(source.slots[1])
			for i := range 4 {
				a, b := next(t, whole, i), next(t, parts, i)
				if name == "replay" {
					learn(t, p, i)
				}
				expect.Equal(t, encoded(t, a), encoded(t, b), fmt.Sprintf("step %d", i+1))
				state := must.Get(json.Marshal(parts.State()))(t)
				parts = source.create(source.slots[1])
				must.Do(t, parts.Restore(state))
				after, err := json.Marshal(parts.State())
				expect.True(t, err == nil && string(after) == string(state),
					"step %d: the state %s is restored as %s, %v", i+1, state, after, err)
			}
			for _, state := range source.bad {
				expect.True(t, parts.Restore(json.RawMessage(state)) != nil, "state %s is accepted", state)
			}
		})
	}
}
