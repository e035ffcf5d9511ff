package epochs_test

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/epochs"
)

// TestSum: ranks whose samples differ in anything that training reads have different sums.
func TestSum(t *testing.T) {
	sum := func(change func(x *rl.Sample)) uint64 {
		samples := []*rl.Sample{{Tokens: []int32{1, 2}, Actions: []int32{2}}, {Tokens: []int32{3}, Actions: []int32{4}, Truth: 1}}
		change(samples[1])
		return must.Get(epochs.New(samples, 1, 0, 1))(t).Sum()
	}
	same := sum(func(*rl.Sample) {})
	for name, change := range map[string]func(x *rl.Sample){
		"a token":  func(x *rl.Sample) { x.Tokens[0] = 5 },
		"a length": func(x *rl.Sample) { x.Tokens = []int32{3, 3} },
		"a label":  func(x *rl.Sample) { x.Actions[0] = 5 },
		"a truth":  func(x *rl.Sample) { x.Truth = 0 },
	} {
		expect.True(t, sum(change) != same, "%s changes nothing", name)
	}
	expect.Same(t, same, sum(func(*rl.Sample) {}), "equal samples have different sums")
}
