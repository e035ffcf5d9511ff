package rl

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAlarms(t *testing.T) {
	well := Health{ZeroStd: 0.3, Ended: 0.95, Correct: 0.6, Formatted: 0.9, Tiers: map[string]float64{"tag": 0.9, "last_number": 0.1}}
	with := func(change func(*Health)) Health {
		h := well
		change(&h)
		return h
	}
	times := func(n int, h Health) []Health { return slices.Repeat([]Health{h}, n) }
	equal := with(func(h *Health) { h.ZeroStd = 1 })
	for _, test := range []struct {
		name    string
		history []Health
		want    []string
	}{
		{"none yet", nil, nil},
		{"well", times(30, well), nil},
		{"equal rewards, not yet long enough", append(times(9, well), times(4, equal)...), nil},
		{"equal rewards", append(times(9, well), times(5, equal)...), []string{"equal_rewards"}},
		{"equal rewards with a pause", slices.Concat(times(9, equal), times(1, well), times(4, equal)), nil},
		{"truncation", times(5, with(func(h *Health) { h.Truncated = 0.5 })), []string{"truncation"}},
		{"missing end", times(5, with(func(h *Health) { h.Ended = 0.1 })), []string{"missing_end"}},
		{"collapse", append(times(10, well), times(5, with(func(h *Health) { h.Correct = 0.1 }))...), []string{"collapse"}},
		{"one bad step", append(times(10, well), with(func(h *Health) { h.Correct = 0 })), nil},
		{"collapse from the best window", slices.Concat(times(5, with(func(h *Health) { h.Correct = 0.1 })), times(5, well), times(5, with(func(h *Health) { h.Correct = 0.2 }))), []string{"collapse"}},
		{"drift", append(times(10, well), times(5, with(func(h *Health) { h.Formatted, h.Tiers = 0.5, map[string]float64{"tag": 0.5, "last_number": 0.5} }))...), []string{"tier_drift"}},
		{"learning the form is no drift", append(times(10, with(func(h *Health) { h.Formatted, h.Tiers = 0.2, map[string]float64{"tag": 0.2, "last_number": 0.8} })), times(5, well)...), nil},
		{"kl", []Health{with(func(h *Health) { h.KL = 1.5 })}, []string{"kl"}},
		{"kl in the past", []Health{with(func(h *Health) { h.KL = 1.5 }), well}, nil},
		{"failed rewards", []Health{with(func(h *Health) { h.Failed = 0.2 })}, []string{"failed_rewards"}},
	} {
		var names []string
		for _, alarm := range Alarms(test.history, DefaultAlarmLimits()) {
			names = append(names, alarm.Name)
		}
		if diff := cmp.Diff(test.want, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
	history := append(times(9, well), times(5, equal)...)
	if diff := cmp.Diff(Alarms(history, DefaultAlarmLimits()), Alarms(throughJSON(t, history), DefaultAlarmLimits())); diff != "" {
		t.Errorf("a restored history (-before +after):\n%s", diff)
	}
}
