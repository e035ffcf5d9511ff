package rl

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// TestAlarms has, for each alarm, a run that raises it and one that nearly does.
func TestAlarms(t *testing.T) {
	well := Health{ZeroStd: 0.3, Group: 8, Ended: 0.95, Correct: 0.6, Formatted: 0.9, Length: 40,
		Tiers: map[string]float64{"tag": 0.9, "last_number": 0.1}, Kinds: map[string]AnswerCount{"2 numbers": {16, 10}, "3 numbers": {16, 4}},
		Spread: map[string]float64{"answer": 0.5, "expr:length": 0.1}, Tells: []string{"answer"}}
	with := func(change func(*Health)) Health {
		h := well
		change(&h)
		return h
	}
	times := func(n int, h Health) []Health { return slices.Repeat([]Health{h}, n) }
	equal := with(func(h *Health) { h.ZeroStd = 1 })
	longer := func(length, correct float64) Health {
		return with(func(h *Health) { h.Length, h.Correct = length, correct })
	}
	never := func(n int) Health {
		return with(func(h *Health) { h.Kinds = map[string]AnswerCount{"2 numbers": {n, 1}, "5 numbers": {n, 0}} })
	}
	spread := func(answer, length float64) Health {
		return with(func(h *Health) { h.Spread = map[string]float64{"answer": answer, "expr:length": length} })
	}
	untold := func(h Health) Health { h.Tells = nil; return h }
	rewarded := func(n, echoes, same int) Health {
		return with(func(h *Health) {
			h.Rewarded = Rewarded{N: n, Echoes: echoes, Same: same, Echo: "74 - 70", Repeats: "see above"}
		})
	}
	taught := func(h Health) Health { h.HasTeacher = true; return h }
	for _, test := range []struct {
		name    string
		history []Health
		want    []string
	}{
		{"none yet", nil, nil},
		{"well", times(30, well), nil},
		{"equal rewards, not yet long enough", append(times(9, well), times(4, equal)...), nil},
		{"equal rewards", append(times(9, well), times(9, equal)...), []string{"equal_rewards"}},
		{"as many equal rewards as the limit", append(times(9, well), times(9, with(func(h *Health) { h.ZeroStd = DefaultAlarmLimits().ZeroStd }))...), []string{"equal_rewards"}},
		{"equal rewards with a pause", slices.Concat(times(4, equal), times(1, well), times(4, equal)), nil},
		{"equal rewards twice are told once", slices.Concat(times(9, equal), times(1, well), times(9, equal)), []string{"equal_rewards"}},
		{"truncation", times(5, with(func(h *Health) { h.Truncated = 0.5 })), []string{"truncation"}},
		{"less truncation", times(9, with(func(h *Health) { h.Truncated = 0.49 })), nil},
		{"missing end", times(5, with(func(h *Health) { h.Ended = 0.5 })), []string{"missing_end"}},
		{"enough ends", times(9, with(func(h *Health) { h.Ended = 0.51 })), nil},
		{"collapse", append(times(10, well), times(5, with(func(h *Health) { h.Correct = 0.1 }))...), []string{"collapse"}},
		{"collapse at the second window", append(times(5, well), times(5, with(func(h *Health) { h.Correct = 0.1 }))...), []string{"collapse"}},
		{"one bad step", append(times(10, well), with(func(h *Health) { h.Correct = 0 })), nil},
		{"collapse from the best window", slices.Concat(times(5, with(func(h *Health) { h.Correct = 0.1 })), times(5, well), times(20, with(func(h *Health) { h.Correct = 0.2 }))), []string{"collapse"}},
		{"a fall by the limit", append(times(10, longer(40, 0.99)), times(5, longer(40, 0.74))...), []string{"collapse"}},
		{"a small fall", append(times(10, well), times(9, with(func(h *Health) { h.Correct = 0.36 }))...), nil},
		{"drift", append(times(10, well), times(5, with(func(h *Health) { h.Formatted, h.Tiers = 0.5, map[string]float64{"tag": 0.5, "last_number": 0.5} }))...), []string{"tier_drift"}},
		{"drift at the same format rate, long after the first window", append(times(40, well), times(5, with(func(h *Health) { h.Tiers = map[string]float64{"tag": 0.5, "last_number": 0.5} }))...), []string{"tier_drift"}},
		{"drift by the limit", append(times(10, well), times(5, with(func(h *Health) { h.Tiers = map[string]float64{"tag": 0.7, "phrase": 0.3} }))...), []string{"tier_drift"}},
		{"the answer alone is no drift", append(times(10, with(func(h *Health) { h.Tiers = map[string]float64{"whole": 0.2, "last_number": 0.8} })), times(5, with(func(h *Health) { h.Tiers = map[string]float64{"whole": 1} }))...), nil},
		{"learning the form is no drift", append(times(10, with(func(h *Health) { h.Formatted, h.Tiers = 0.2, map[string]float64{"tag": 0.2, "last_number": 0.8} })), times(5, well)...), nil},
		{"longer and no better", append(times(10, well), times(5, longer(80, 0.6))...), []string{"length_drift"}},
		{"shorter and no better", append(times(10, well), times(5, longer(20, 0.6))...), []string{"length_drift"}},
		{"longer and better", append(times(10, well), times(5, longer(80, 0.66))...), nil},
		{"longer and better by just enough", append(times(10, longer(40, 0)), times(5, longer(80, 0.05))...), nil},
		{"a little longer", append(times(10, well), times(5, longer(79, 0.6))...), nil},
		{"longer than nothing", append(times(10, longer(0, 0.6)), times(5, longer(40, 0.6))...), nil},
		{"a kind that is never right", times(10, never(10)), []string{"never_right"}},
		{"problems that are never right", times(10, with(func(h *Health) { h.Kinds = map[string]AnswerCount{"": {10, 0}} })), []string{"never_right"}},
		{"a kind that is never right, where that is not what is paid", times(10, untold(never(10))), nil},
		{"a kind that was tried too little", times(10, never(9)), nil},
		{"a kind that was right once", append(times(1, with(func(h *Health) { h.Kinds = map[string]AnswerCount{"5 numbers": {9, 1}} })), times(20, never(10))...), nil},
		{"one reward counts", times(5, spread(0.2, 1.8)), []string{"dominant_reward"}},
		{"two rewards count", times(9, spread(0.11, 0.89)), nil},
		{"the right answer counts", times(9, spread(0.95, 0.05)), nil},
		{"the right answer counts where a step had both", slices.Repeat([]Health{untold(spread(0.95, 0.05)), spread(0.95, 0.05)}, 9), nil},
		{"another name for what is not the right answer", times(5, untold(spread(0.95, 0.05))), []string{"dominant_reward"}},
		{"one reward is all there is", times(9, spread(0, 0.9)), nil},
		{"equal rewards, which a teacher does not need", times(9, taught(equal)), nil},
		{"a kind that is never right, which a teacher corrects", times(10, taught(never(10))), nil},
		{"one reward counts, which nothing is learnt from", times(5, taught(spread(0.1, 0.9))), nil},
		{"longer and no better by a teacher", append(times(10, taught(well)), times(5, taught(longer(80, 0.6)))...), []string{"length_drift"}},
		{"kl", []Health{with(func(h *Health) { h.KL = 1.5 })}, []string{"kl"}},
		{"less kl", times(9, with(func(h *Health) { h.KL = 1 })), nil},
		{"failed rewards", []Health{with(func(h *Health) { h.Failed = 0.1 })}, []string{"failed_rewards"}},
		{"copies", []Health{rewarded(16, 8, 0)}, []string{"echo"}},
		{"copies over several steps", []Health{rewarded(4, 3, 0), rewarded(4, 1, 0), rewarded(4, 2, 0), rewarded(4, 2, 0)}, []string{"echo"}},
		{"fewer copies", times(9, rewarded(100, 49, 0)), nil},
		{"copies of long ago", append([]Health{rewarded(15, 15, 0)}, times(9, rewarded(16, 0, 0))...), nil},
		{"copies over too many steps", append(times(5, rewarded(3, 3, 0)), times(5, rewarded(1, 0, 0))...), nil},
		{"few rewarded", times(3, rewarded(5, 5, 5)), nil},
		{"one text", []Health{rewarded(16, 0, 8)}, []string{"echo"}},
		{"one text for fewer", times(9, rewarded(100, 0, 49)), nil},
		{"copies that a teacher likes", []Health{taught(rewarded(16, 16, 16))}, nil},
		{"fewer failed rewards", times(9, with(func(h *Health) { h.Failed = 0.09 })), nil},
	} {
		var w Watch
		var names []string
		text := ""
		for i, h := range test.history {
			if i%3 == 2 {
				w = throughJSON(t, w) // as in a resumed run
			}
			for _, alarm := range w.Step(h, DefaultAlarmLimits()) {
				names, text = append(names, alarm.Name), alarm.Text
			}
		}
		expect.Equal(t, test.want, names, test.name)
		expect.Contains(t, text, map[string]string{
			"as many equal rewards as the limit": ": all samples of 90 % of the prompts have equal rewards, for 5 steps", "a fall by the limit": "from 99 % to 74 %", "truncation": ": 50 % of the completions reach the token limit, for 5 steps",
			"missing end": ": only 50 % of the completions end with an end token, for 5 steps", "collapse": ": accuracy fell from 60 % to 30 %",
			"drift": "answers found by last_number rose from 10 % to 42 %", "longer and no better": ": completions have 80 tokens, 40 in the first 5 steps",
			"a kind that is never right": ": none of 100 attempts at problems of kind 5 numbers was correct, in 10 steps", "problems that are never right": "100 attempts at any problem",
			"one reward counts": "reward expr:length, for example to 0.11 times the present one: it causes 90 % of", "kl": "is 1.5 nats", "failed rewards": ": 10 % of the samples",
			"copies": `: 8 of 16 rewarded completions only copy from their prompt, such as "74 - 70"`, "one text": `: 8 of 16 rewarded completions are the same text for prompts with different answers, such as "see above"`,
		}[test.name])
		expect.True(t, len(w.First) <= 5 && len(w.Recent) <= 10, "%s: %d and %d steps are kept", test.name, len(w.First), len(w.Recent))
	}
}

// TestEqualGroupsArePredicted: by chance, p⁸ + (1−p)⁸ of the groups of 8 are all right or all wrong. Rewards other than
// correctness get no prediction.
func TestEqualGroupsArePredicted(t *testing.T) {
	other := map[string]float64{"expr:1": 0}
	for _, test := range []struct {
		correct, zero float64
		group         int
		spread        map[string]float64
		tells         []string
		want          string
	}{
		{0.005, 0.93, 8, nil, nil, "raise --samples-per-prompt to 32, which makes it 85 %, or choose other problems"},
		{0.5, 0.95, 8, map[string]float64{"answer": 0.5}, []string{"answer"}, "; with 8 samples per prompt and an accuracy of 50.0 %, 1 % is expected, so some problems are always solved and the others never"},
		{0.083, 0.93, 8, nil, nil, "raise --samples-per-prompt to 32, which makes it 6 %"},
		{0, 1, 8, nil, nil, "train with SFT first, or choose easier problems"},
		{0.5, 1, 1, nil, nil, "choose other problems, a longer SFT stage"},
		{0.3, 1, 8, other, nil, "choose other problems, a longer SFT stage"},
		{1, 1, 8, nil, nil, "choose other problems, a longer SFT stage, another reward or a higher --temperature: all samples of 100 % of the prompts have equal rewards, for 5 steps, so nothing is learned from them; with 8 samples per prompt and an accuracy of 100.0 %, 100 % is expected"},
		{0.5, 1, 2, nil, nil, "raise --samples-per-prompt to 8, which makes it 1 %"}, // as often as by chance
	} {
		var w Watch
		var alarms []Alarm
		for range 5 {
			alarms = w.Step(Health{Correct: test.correct, ZeroStd: test.zero, Group: test.group, Spread: test.spread, Tells: test.tells, Ended: 1}, DefaultAlarmLimits())
		}
		expect.True(t, len(alarms) == 1 && strings.Contains(alarms[0].Text, test.want), "%+v: %q", test, alarms)
	}
}

// TestAdviceSuitsATeacher: an algorithm that ignores rewards gets no advice to change them.
func TestAdviceSuitsATeacher(t *testing.T) {
	for _, taught := range []bool{false, true} {
		var w Watch
		said := map[string]string{}
		for step := range 15 {
			h := Health{Ended: 1, Correct: 0.5, Formatted: 0.9, Length: 10, Tiers: map[string]float64{"tag": 1}, HasTeacher: taught}
			if step >= 10 {
				h.Length, h.Tiers = 40, map[string]float64{"last_number": 1}
			}
			for _, alarm := range w.Step(h, DefaultAlarmLimits()) {
				said[alarm.Name] = alarm.Text
			}
		}
		for _, name := range []string{"length_drift", "tier_drift"} {
			text := said[name]
			expect.True(t, strings.Contains(text, "reward") != taught && strings.Contains(text, "lower --rl-learning-rate:") == taught, "%s, teacher %v: %q", name, taught, text)
		}
	}
}

// TestOverfitting has three evaluations while the training loss keeps falling.
func TestOverfitting(t *testing.T) {
	for _, test := range []struct {
		name          string
		train, held   []float64
		standardError float64
		want          int
	}{
		{"both get better", []float64{1, 2, 3, 4}, []float64{1, 2, 3, 4}, 0, 0},
		{"held out falls", []float64{1, 2, 3, 4}, []float64{4, 3, 2, 1}, 0, 1},
		{"it falls at last", []float64{0, 1, 2, 3}, []float64{5, 6, 5, 4}, 0, 1},
		{"only once", []float64{1, 2, 3}, []float64{4, 5, 3}, 0, 0},
		{"it gets worse in more steps", []float64{9, 5, 5, 4, 4, 4}, []float64{4, math.NaN(), 3, math.NaN(), math.NaN(), 2}, 0, 0},
		{"both fall", []float64{3, 2, 1}, []float64{3, 2, 1}, 0, 0},
		{"nothing was learnt from", []float64{math.NaN(), math.NaN(), math.NaN()}, []float64{3, 2, 1}, 0, 0},
		{"as chance may have it", []float64{1, 2, 3}, []float64{0.12, 0.08, 0.06}, 0.04, 0},
		{"more than chance makes", []float64{1, 2, 3}, []float64{0.5, 0.4, 0.38}, 0.04, 1},
		{"a small score that falls", []float64{1, 2, 3}, []float64{0.1, 0.09, 0.08}, 0, 1},
		{"a loss that hardly rises", []float64{1, 2, 3}, []float64{-2.456, -2.457, -2.458}, 0, 0},
		{"training stays, then gets better", []float64{1, 1, 2}, []float64{3, 2, 1}, 0, 0},
		{"training gets better, then stays", []float64{1, 2, 2}, []float64{3, 2, 1}, 0, 0},
		{"held out stays, then falls", []float64{1, 2, 3}, []float64{3, 3, 1}, 0, 0},
		{"held out falls, then stays", []float64{1, 2, 3}, []float64{3, 1, 1}, 0, 0},
		{"as much as chance makes", []float64{1, 2, 3}, []float64{2, 1.5, 1.25}, 0.25, 1},
		{"a loss that rises", []float64{1, 2, 3}, []float64{-2.4, -2.5, -2.6}, 0, 1},
	} {
		var w Watch
		n := 0
		for i, score := range test.held {
			if !math.IsNaN(test.train[i]) {
				w.Learnt(test.train[i] - 1)
				w.Learnt(test.train[i] + 1)
			}
			w = throughJSON(t, w)
			if math.IsNaN(score) { // no evaluation
				continue
			}
			for _, alarm := range w.Evaluated(score, test.standardError) {
				n++
				h := test.held[i-2:]
				expect.Contains(t, alarm.Text, fmt.Sprintf("(%g, %g, %g;", h[0], h[1], h[2]))
			}
		}
		expect.Same(t, test.want, n, "%s: %d alarms, want %d", test.name, n, test.want)
	}
}

// TestStrict compares the reward's accuracy with the strictest verifier's, more than once.
func TestStrict(t *testing.T) {
	for _, test := range []struct{ n, rewarded, strict, want int }{
		{100, 60, 60, 0}, {100, 60, 50, 0}, {100, 60, 49, 1}, {20, 9, 5, 0}, {20, 10, 5, 1}, {100, 5, 60, 0}, {0, 0, 0, 0},
	} {
		var w Watch
		var all []Alarm
		for range 2 {
			all = append(all, w.Strict(AnswerScores{N: test.n, Correct: test.strict, Accepted: &test.rewarded}, DefaultAlarmLimits())...)
			w = throughJSON(t, w)
		}
		expect.Same(t, test.want, len(all), "%+v: %+v", test, all)
	}
	var w Watch
	var few []Alarm
	for _, rows := range []int{0, 30, 29, 28} {
		few = append(few, w.Held(rows)...)
	}
	expect.True(t, len(few) == 1 && strings.Contains(few[0].Text, "only 29"), "few rows: %+v", few)
	expect.Same(t, "", FewRows(30, "rows"), "a warning about enough rows")
	expect.Contains(t, FewRows(29, "rows"), "at least 30 rows: figures of 29")
	if all := w.Strict(AnswerScores{N: 100, Correct: 60, Doubted: 20}, DefaultAlarmLimits()); len(all) != 1 || !strings.Contains(all[0].Text, "accepts 60 of 100 held-out completions, the strictest verifier only 40") {
		t.Errorf("doubted answers: %+v", all)
	}
}

func TestSharesKnowEarlierTiers(t *testing.T) {
	var w Watch
	w.Shares(map[string]float64{"tag": 1})
	expect.Equal(t, map[string]float64{"tag": 0, "none": 1}, w.Shares(map[string]float64{"none": 1}))
}
