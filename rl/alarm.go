package rl

import (
	"fmt"
	"maps"
	"slices"
)

// Health is what the alarms look at, one a step. It encodes to JSON and comes back
// exactly, so that a resumed run raises what an uninterrupted one does.
type Health struct {
	ZeroStd   float64            `json:"zero_std"`  // share of prompts whose rewards do not differ
	Truncated float64            `json:"truncated"` // share of completions cut off by the limit of tokens
	Ended     float64            `json:"ended"`     // share that ended by the model's end token or a stop string
	Correct   float64            `json:"correct"`   // share of right answers
	Formatted float64            `json:"formatted"` // share of answers in the form that was asked for
	Tiers     map[string]float64 `json:"tiers"`     // share of answers found in each way
	KL        float64            `json:"kl"`        // from the reference, nats a token; 0 without one
	Failed    float64            `json:"failed"`    // share of samples without a reward
}

// AlarmLimits say when an alarm is raised.
type AlarmLimits struct {
	Window    int     // steps that a lasting condition has to last, at least 1
	ZeroStd   float64 // at this share and above the rewards teach nothing
	Truncated float64 // at this share and above completions are cut off too often
	Ended     float64 // at this share and below the model does not end its answers
	Drop      float64 // a fall of the share of right answers that is a collapse
	Drift     float64 // a rise of a tier's share that is a drift
	KL        float64 // nats a token that are too far from the reference
	Failed    float64 // at this share and above too many judgements fail
}

// DefaultAlarmLimits suit runs of any size.
func DefaultAlarmLimits() AlarmLimits {
	return AlarmLimits{Window: 5, ZeroStd: 0.9, Truncated: 0.5, Ended: 0.5, Drop: 0.25, Drift: 0.3, KL: 1, Failed: 0.1}
}

// Alarm is a sign that a run goes wrong.
type Alarm struct {
	Name string
	Text string // one line: what was seen and what to do
}

// Alarms looks at the steps so far, oldest first, and returns what is wrong now.
//
//	equal_rewards   nearly all prompts gave rewards that do not differ, for Window steps
//	truncation      many completions were cut off, for Window steps
//	missing_end     few completions ended by themselves, for Window steps
//	collapse        fewer right answers, over Window steps, than over the best Window before
//	tier_drift      more answers are found in one way than in the first Window, and no more
//	                have the form that was asked for
//	kl              too far from the reference, in the last step
//	failed_rewards  many judgements failed, in the last step
//
// Means over a window stand for its steps, so a single odd step raises neither collapse
// nor drift.
func Alarms(history []Health, limits AlarmLimits) []Alarm {
	if len(history) == 0 {
		return nil
	}
	var alarms []Alarm
	raise := func(name, format string, args ...any) {
		alarms = append(alarms, Alarm{Name: name, Text: fmt.Sprintf(format, args...)})
	}
	k := limits.Window
	last := history[len(history)-1]
	if len(history) >= k {
		recent := history[len(history)-k:]
		lasting := func(holds func(h Health) bool) bool {
			return !slices.ContainsFunc(recent, func(h Health) bool { return !holds(h) })
		}
		if lasting(func(h Health) bool { return h.ZeroStd >= limits.ZeroStd }) {
			raise("equal_rewards", "the rewards of %.0f %% of the prompts do not differ, for %d steps: nothing can be learnt from them; change the difficulty, the reward or the temperature", 100*last.ZeroStd, k)
		}
		if lasting(func(h Health) bool { return h.Truncated >= limits.Truncated }) {
			raise("truncation", "%.0f %% of the completions reach the limit of tokens, for %d steps: raise the limit", 100*last.Truncated, k)
		}
		if lasting(func(h Health) bool { return h.Ended <= limits.Ended }) {
			raise("missing_end", "only %.0f %% of the completions end by themselves, for %d steps: check the end tokens and the limit of tokens", 100*last.Ended, k)
		}
	}
	if len(history) >= 2*k {
		first, now := meanHealth(history[:k]), meanHealth(history[len(history)-k:])
		if best := bestCorrect(history[:len(history)-k], k); best-now.Correct >= limits.Drop {
			raise("collapse", "right answers fell from %.0f %% to %.0f %%: go back to an earlier checkpoint and lower the learning rate", 100*best, 100*now.Correct)
		}
		for _, tier := range slices.Sorted(maps.Keys(now.Tiers)) {
			if now.Tiers[tier]-first.Tiers[tier] >= limits.Drift && now.Formatted <= first.Formatted {
				raise("tier_drift", "answers of tier %s rose from %.0f %% to %.0f %%, and no more have the form asked for: read some completions", tier, 100*first.Tiers[tier], 100*now.Tiers[tier])
			}
		}
	}
	if last.KL > limits.KL {
		raise("kl", "the policy is %.3g nats a token from its reference: lower the learning rate or raise the KL coefficient", last.KL)
	}
	if last.Failed >= limits.Failed {
		raise("failed_rewards", "%.0f %% of the samples have no reward: see the failures of each reward", 100*last.Failed)
	}
	return alarms
}

// bestCorrect is the highest mean share of right answers over k steps in a row.
func bestCorrect(history []Health, k int) float64 {
	best := 0.0
	for i := range len(history) - k + 1 {
		sum := 0.0
		for _, h := range history[i : i+k] {
			sum += h.Correct
		}
		best = max(best, sum/float64(k))
	}
	return best
}

// meanHealth averages what Alarms compares over windows.
func meanHealth(window []Health) Health {
	mean := Health{Tiers: map[string]float64{}}
	share := 1 / float64(len(window))
	for _, h := range window {
		mean.Correct += share * h.Correct
		mean.Formatted += share * h.Formatted
		for tier, s := range h.Tiers {
			mean.Tiers[tier] += share * s
		}
	}
	return mean
}
