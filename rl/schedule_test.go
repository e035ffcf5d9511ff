package rl

import (
	"math"
	"strings"
	"testing"
)

func TestScheduleAt(t *testing.T) {
	tests := []struct {
		kind   string
		total  int
		warmup float64
		want   map[int]float64
	}{
		{"constant", 100, 0, map[int]float64{0: 1, 50: 1, 1000: 1}},
		{"constant", 100, 10, map[int]float64{0: 0, 5: 0.5, 10: 1, 1000: 1}},
		{"linear", 100, 0, map[int]float64{0: 1, 25: 0.75, 99: 0.01, 100: 0, 150: 0}},
		{"linear", 110, 10, map[int]float64{0: 0, 1: 0.1, 10: 1, 60: 0.5, 110: 0}},
		{"cosine", 100, 0, map[int]float64{0: 1, 25: 0.8535533905932737, 50: 0.5, 75: 0.14644660940672627, 100: 0, 150: 0}},
		{"cosine", 110, 10, map[int]float64{0: 0, 9: 0.9, 10: 1, 60: 0.5, 110: 0}},
		// 6 % of 120 is 7.2, rounded up to 8 steps.
		{"cosine", 120, 0.06, map[int]float64{0: 0, 4: 0.5, 8: 1, 64: 0.5, 120: 0}},
		{"linear", 0, 0.06, map[int]float64{0: 0, 1: 0}},
		{"cosine", 5, 10, map[int]float64{0: 0, 5: 0.5, 10: 0}},
	}
	for _, test := range tests {
		s, err := NewSchedule(test.kind, test.total, test.warmup)
		if err != nil {
			t.Fatal(err)
		}
		for step, want := range test.want {
			if got := s.At(step); math.Abs(got-want) > 1e-12 {
				t.Errorf("%s over %d steps, warm-up %g: At(%d) = %g, want %g", test.kind, test.total, test.warmup, step, got, want)
			}
		}
		for step := 0; step < test.total+20; step++ {
			if got := s.At(step); !(got >= 0 && got <= 1) {
				t.Errorf("%+v: At(%d) = %g is outside [0,1]", s, step, got)
			}
		}
	}
}

func TestNewScheduleRefuses(t *testing.T) {
	for _, test := range []struct {
		kind   string
		total  int
		warmup float64
		want   string
	}{
		{"cosin", 10, 0, `"cosin"`},
		{"", 10, 0, "choose linear"},
		{"linear", -1, 0, "-1 steps"},
		{"linear", 10, -0.1, "warm-up -0.1"},
		{"linear", 10, 2.5, "warm-up 2.5"},
		{"linear", 10, math.NaN(), "warm-up NaN"},
		{"linear", 10, math.Inf(1), "warm-up +Inf"},
	} {
		if _, err := NewSchedule(test.kind, test.total, test.warmup); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("NewSchedule(%q, %d, %g): error %v, want one with %q", test.kind, test.total, test.warmup, err, test.want)
		}
	}
}
