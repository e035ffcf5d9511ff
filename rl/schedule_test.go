package rl

import (
	"math"
	"strings"
	"testing"
)

func TestScheduleAt(t *testing.T) {
	tests := []struct {
		kind  string
		total int
		ratio float64
		steps int
		want  map[int]float64
	}{
		{"constant", 100, 0, 0, map[int]float64{0: 1, 50: 1, 1000: 1}},
		{"constant", 100, 0, 9, map[int]float64{0: 0.1, 4: 0.5, 8: 0.9, 9: 1, 1000: 1}},
		{"linear", 100, 0, 0, map[int]float64{0: 1, 25: 0.75, 99: 0.01, 100: 0, 150: 0}},
		{"linear", 109, 0, 9, map[int]float64{0: 0.1, 1: 0.2, 9: 1, 59: 0.5, 109: 0}},
		{"cosine", 100, 0, 0, map[int]float64{0: 1, 25: 0.8535533905932737, 50: 0.5, 75: 0.14644660940672627, 100: 0, 150: 0}},
		{"cosine", 109, 0, 9, map[int]float64{0: 0.1, 8: 0.9, 9: 1, 59: 0.5, 109: 0}},
		// 6 % of 110 is 6.6, rounded up to 7 steps.
		{"cosine", 110, 0.06, 0, map[int]float64{0: 0.125, 3: 0.5, 6: 0.875, 7: 1, 110: 0}},
		{"linear", 0, 0.06, 0, map[int]float64{0: 0, 1: 0}},
		{"cosine", 5, 0, 9, map[int]float64{0: 0.1, 4: 0.5, 8: 0.9, 9: 0}},
		// A warm-up ratio of 1 is all steps, not one.
		{"linear", 9, 1, 0, map[int]float64{0: 0.1, 4: 0.5, 8: 0.9, 9: 0}},
		// The number of steps overrides the ratio.
		{"constant", 100, 0.5, 4, map[int]float64{0: 0.2, 3: 0.8, 4: 1}},
	}
	for _, test := range tests {
		s, err := NewSchedule(test.kind, test.total, test.ratio, test.steps)
		if err != nil {
			t.Fatal(err)
		}
		for step, want := range test.want {
			if got := s.At(step); math.Abs(got-want) > 1e-12 {
				t.Errorf("%+v: At(%d) = %g, want %g", s, step, got, want)
			}
		}
		for step := 0; step < test.total+20; step++ {
			if got := s.At(step); !(got >= 0 && got <= 1) {
				t.Errorf("%+v: At(%d) = %g is outside [0,1]", s, step, got)
			}
		}
	}
}

// TestWarmupRises: no update has learning rate 0, and no two have the same, for any length.
func TestWarmupRises(t *testing.T) {
	for _, kind := range []string{"constant", "linear", "cosine"} {
		for total := 1; total <= 40; total++ {
			for _, ratio := range []float64{1e-9, 0.03, 0.1, 0.5, 1} {
				s, err := NewSchedule(kind, total, ratio, 0)
				if err != nil {
					t.Fatal(err)
				}
				if s.Warmup < 1 || ratio == 1 && s.Warmup != total {
					t.Errorf("%s: %g of %d steps is a warm-up of %d", kind, ratio, total, s.Warmup)
				}
				before := 0.0
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
		want  string
	}{
		{"cosin", 10, 0, 0, `"cosin"`},
		{"", 10, 0, 0, "choose linear"},
		{"linear", -1, 0, 0, "-1 steps"},
		{"linear", 10, -0.1, 0, "warm-up of -0.1"},
		{"linear", 10, 2.5, 0, "warm-up of 2.5"},
		{"linear", 10, math.NaN(), 0, "warm-up of NaN"},
		{"linear", 10, math.Inf(1), 0, "warm-up of +Inf"},
		{"linear", 10, 0, -3, "or -3"},
	} {
		if _, err := NewSchedule(test.kind, test.total, test.ratio, test.steps); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("NewSchedule(%q, %d, %g, %d): error %v, want one with %q", test.kind, test.total, test.ratio, test.steps, err, test.want)
		}
	}
}
