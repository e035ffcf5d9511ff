package rl_test

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// TestScheduleAt has factors worked out from transformers' formulas: step/W in the warm-up, then 1, 1 − d or ½(1 + cos πd),
// with d = (step − W)/(total − W), and for cosine_with_min_lr that times 1 − m plus m.
func TestScheduleAt(t *testing.T) {
	tests := []struct {
		kind  string
		total int
		ratio float64
		steps int
		min   float64
		want  map[int]float64
	}{
		{"constant", 100, 0, 0, 0, map[int]float64{0: 1, 50: 1, 1000: 1}},
		{"constant", 100, 0.5, 10, 0, map[int]float64{0: 1, 4: 1}}, // constant has no warm-up
		{"constant_with_warmup", 100, 0, 10, 0, map[int]float64{0: 0, 1: 0.1, 5: 0.5, 9: 0.9, 10: 1, 1000: 1}},
		{"linear", 100, 0, 0, 0, map[int]float64{0: 1, 25: 0.75, 99: 0.01, 100: 0, 150: 0}},
		{"linear", 110, 0, 10, 0, map[int]float64{0: 0, 1: 0.1, 9: 0.9, 10: 1, 60: 0.5, 110: 0}},
		{"cosine", 100, 0, 0, 0, map[int]float64{0: 1, 25: 0.8535533905932737, 50: 0.5, 75: 0.14644660940672627, 100: 0, 150: 0}},
		{"cosine", 110, 0, 10, 0, map[int]float64{0: 0, 9: 0.9, 10: 1, 60: 0.5, 110: 0}},
		{"cosine_with_min_lr", 100, 0, 0, 0.2, map[int]float64{0: 1, 25: 0.8535533905932737*0.8 + 0.2, 50: 0.6, 100: 0.2, 150: 0.2}},
		{"cosine_with_min_lr", 110, 0, 10, 0.1, map[int]float64{0: 0, 5: 0.5, 10: 1, 60: 0.55, 110: 0.1}},
		// 6 % of 110 is 6.6, rounded up to 7 steps.
		{"cosine", 110, 0.06, 0, 0, map[int]float64{0: 0, 3: 3. / 7, 6: 6. / 7, 7: 1, 110: 0}},
		{"linear", 0, 0.06, 0, 0, map[int]float64{0: 0, 1: 0}},
		{"cosine", 5, 0, 10, 0, map[int]float64{0: 0, 4: 0.4, 9: 0.9, 10: 0}},
		// A warm-up ratio of 1 is all steps, not one; below 1 one step is left.
		{"linear", 10, 1, 0, 0, map[int]float64{0: 0, 5: 0.5, 9: 0.9, 10: 0}},
		{"linear", 1, 0.1, 0, 0, map[int]float64{0: 1}},
		{"linear", 2, 0.9, 0, 0, map[int]float64{0: 0, 1: 1}},
		// The number of steps overrides the ratio.
		{"constant_with_warmup", 100, 0.5, 4, 0, map[int]float64{0: 0, 3: 0.75, 4: 1}},
	}
	for _, test := range tests {
		s := must.Get(rl.NewSchedule(test.kind, test.total, test.ratio, test.steps, test.min))(t)
		for step, want := range test.want {
			got := s.At(step)
			expect.True(t, math.Abs(got-want) <= 1e-12, "%+v: At(%d) = %g, want %g", s, step, got, want)
		}
		for step := 0; step < test.total+20; step++ {
			got := s.At(step)
			expect.True(t, got >= 0 && got <= 1, "%+v: At(%d) = %g is outside [0,1]", s, step, got)
		}
	}
}

// TestWarmupRises: only the first update has learning rate 0, and no two have the same, for any length.
func TestWarmupRises(t *testing.T) {
	for _, kind := range []string{"constant_with_warmup", "linear", "cosine", "cosine_with_min_lr"} {
		for total := 2; total <= 40; total++ {
			for _, ratio := range []float64{1e-9, 0.03, 0.1, 0.5, 1} {
				s := must.Get(rl.NewSchedule(kind, total, ratio, 0, 0))(t)
				expect.True(t, s.Warmup >= 1 && (ratio != 1 || s.Warmup == total),
					"%s: %g of %d steps is a warm-up of %d", kind, ratio, total, s.Warmup)
				before := -1.0
				for step := range s.Warmup + 1 {
					if now := s.At(step); !(now > before) && step < total {
						t.Errorf("%+v: At(%d) = %g, the step before had %g", s, step, now, before)
					} else {
						before = now
					}
				}
			}
		}
	}
}

func TestNewScheduleRefuses(t *testing.T) {
	for _, test := range []struct {
		kind  string
		total int
		ratio float64
		steps int
		min   float64
		want  string
	}{
		{"cosin", 10, 0, 0, 0, `"cosin"`},
		{"", 10, 0, 0, 0, "choose linear"},
		{"linear", -1, 0, 0, 0, "-1 steps"},
		{"linear", 10, -0.1, 0, 0, "warm-up of -0.1"},
		{"linear", 10, 2.5, 0, 0, "warm-up of 2.5"},
		{"linear", 10, math.NaN(), 0, 0, "warm-up of NaN"},
		{"linear", 10, math.Inf(1), 0, 0, "warm-up of +Inf"},
		{"linear", 10, 0, -3, 0, "or -3"},
		{"cosine_with_min_lr", 10, 0, 0, 1.5, "down to 1.5"},
	} {
		expect.Failure(rl.NewSchedule(test.kind, test.total, test.ratio, test.steps, test.min))(t, test.want)
	}
}
