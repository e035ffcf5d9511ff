package rl_test

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

// TestLearntRecords: a record has the rewards of its actions if not only the last has one.
func TestLearntRecords(t *testing.T) {
	for _, test := range []struct {
		rewards []float64
		shown   bool
	}{{[]float64{0, 0, 5}, false}, {[]float64{0, 1, 5}, true}, {[]float64{5}, false}, {nil, false}} {
		var r rl.Record
		r.Learnt(&rl.Sample{Rewards: test.rewards, Advantage: []float32{1, 3}})
		expect.True(t, (r.PerAction != nil) == test.shown && r.Advantage == 2 && len(r.PerToken) == 2, "%v: %+v", test.rewards, r)
	}
}
