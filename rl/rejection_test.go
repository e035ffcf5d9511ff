package rl_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

func TestRejectionThreshold(t *testing.T) {
	sure := func(right bool, ps ...float32) (rows []rl.Sureness) {
		for _, p := range ps {
			rows = append(rows, rl.Sureness{p, right})
		}
		return rows
	}
	for _, test := range []struct {
		name    string
		in, out []rl.Sureness
		want    float64
	}{
		{"apart", sure(true, 0.75, 1), sure(false, 0.25, 0.5), 0.625},
		{"the other way about: nothing is rejected", sure(true, 0.25, 0.5), sure(false, 0.75, 1), 0},
		{"wrong rows may be rejected", append(sure(true, 1), sure(false, 0.25, 0.25)...), sure(false, 0.5), 0.75},
		{"one row out of scope outweighs one of four", sure(true, 0.25, 0.75, 0.75, 0.75), sure(false, 0.5), 0.625},
		{"equals stay together", sure(true, 0.5, 0.5, 0.5), sure(false, 0.5), 0},
		{"all may be rejected", sure(false, 0.5), sure(false, 0.75), 0.875},
	} {
		got, err := rl.RejectionThreshold(test.in, test.out)
		expect.True(t, err == nil && math.Abs(got-test.want) <= 1e-9, "%s: %v, %v, want %v", test.name, got, err, test.want)
	}
	_, err := rl.RejectionThreshold(nil, sure(false, 1))
	expect.True(t, err != nil, "a threshold without rows in scope")
}

// TestRejectionThresholdIsTheBest tries all thresholds.
func TestRejectionThresholdIsTheBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) (rows []rl.Sureness) {
		for range n {
			rows = append(rows, rl.Sureness{float32(rng.IntN(12)) / 11, rng.IntN(3) > 0})
		}
		return rows
	}
	for range 200 {
		in, out := draw(1+rng.IntN(20)), draw(1+rng.IntN(20))
		value := func(threshold float64) float64 {
			o := must.Get(rl.MeasureOutOfScope(threshold, in, out))(t)
			return o.Accuracy + o.Recall
		}
		chosen := must.Get(rl.RejectionThreshold(in, out))(t)
		for i := range 41 { // a threshold is a probability
			if other := float64(i) / 40; value(other) > value(chosen)+1e-9 {
				t.Fatalf("%v is worth %v, the chosen %v %v", other, value(other), chosen, value(chosen))
			}
		}
	}
}

func TestMeasureOutOfScope(t *testing.T) {
	in := []rl.Sureness{{0.9, true}, {0.8, false}, {0.4, true}, {0.5, true}}
	out := []rl.Sureness{{0.3, false}, {0.5, false}, {0.85, false}}
	got := must.Get(rl.MeasureOutOfScope(0.5, in, out))(t)
	// Pairs in which the in-scope row has the higher confidence: 3 for .9, 2 for .8, 1 for .4, 1.5 for .5; of 12.
	want := rl.OutOfScope{Threshold: 0.5, N: 3, InScope: 4, Recall: 1.0 / 3, FalseAlarms: 0.25, Accuracy: 0.5, AUROC: 7.5 / 12,
		Intervals: [2]rl.Interval{rl.Wilson(1, 3), rl.Wilson(1, 4)}}
	expect.Equal(t, want, got)
}

func TestSelective(t *testing.T) {
	rows := rl.SurenessOf([]int{0, 1, 1, -1}, [][]float32{{0.9, 0.1}, {0.2, 0.8}, {0.7, 0.3}, {0.4, 0.6}})
	expect.Equal(t, []rl.Sureness{{0.9, true}, {0.8, true}, {0.7, false}, {0.6, false}}, rows, "sureness")
	want := []rl.Covered{{1, float64(float32(0.6)), 4, 0.5}, {0.75, float64(float32(0.7)), 3, 2.0 / 3}, {0.5, float64(float32(0.8)), 2, 1}}
	expect.Equal(t, want, rl.Selective(rows))
	all := rl.Selective([]rl.Sureness{{0.5, true}, {0.5, false}})
	expect.True(t, len(all) == 1 && all[0].N == 2, "equally confident rows are separated: %v", all)
}
