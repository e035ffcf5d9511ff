package rl

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Health is what the alarms look at, one a step. It encodes to JSON and comes back
// exactly, so that a resumed run raises what an uninterrupted one does.
type Health struct {
	ZeroStd   float64                `json:"zero_std"`  // share of prompts whose rewards do not differ
	Group     int                    `json:"group"`     // answers to a prompt
	Truncated float64                `json:"truncated"` // share of completions cut off by the limit of tokens
	Ended     float64                `json:"ended"`     // share that ended by the model's end token or a stop string
	Correct   float64                `json:"correct"`   // share of right answers
	Formatted float64                `json:"formatted"` // share of answers in the form that was asked for
	Length    float64                `json:"length"`    // mean tokens of a completion
	Tiers     map[string]float64     `json:"tiers"`     // share of answers found in each way
	Kinds     map[string]AnswerCount `json:"kinds"`     // of each kind of exercise; of all together where none are told apart
	Spread    map[string]float64     `json:"spread"`    // standard deviation of each reward of a list, as it is weighted
	Tells     []string               `json:"tells"`     // rewards of a list that paid every right answer more than any wrong one, where there were both
	KL        float64                `json:"kl"`        // from the reference, nats a token; 0 without one
	Failed    float64                `json:"failed"`    // share of samples without a reward
	Taught    bool                   `json:"taught"`    // a teacher corrects the answers: what they earn is measured, and nothing is learnt from it
}

// AnswerCount counts answers.
type AnswerCount struct {
	N     int `json:"n"`
	Right int `json:"right"`
}

// AlarmLimits say when an alarm is raised.
type AlarmLimits struct {
	Window    int     // steps that a lasting condition has to last, at least 1
	ZeroStd   float64 // at this share and above the rewards teach nothing
	Truncated float64 // at this share and above completions are cut off too often
	Ended     float64 // at this share and below the model does not end its answers
	Drop      float64 // a fall of the share of right answers that is a collapse
	Drift     float64 // a rise of a tier's share that is a drift
	Length    float64 // a growth of the mean length, as a factor, that is a drift; so is its inverse
	Tries     int     // answers of a kind of which one should have been right
	Dominance float64 // at this share of all differences and above a reward leaves the others no say
	KL        float64 // nats a token that are too far from the reference
	Failed    float64 // at this share and above too many judgements fail
}

// DefaultAlarmLimits suit runs of any size.
func DefaultAlarmLimits() AlarmLimits {
	return AlarmLimits{Window: 5, ZeroStd: 0.9, Truncated: 0.5, Ended: 0.5, Drop: 0.25, Drift: 0.3, Length: 2, Tries: 100, Dominance: 0.9, KL: 1, Failed: 0.1}
}

// Alarm is a sign that a run goes wrong.
type Alarm struct {
	Name string
	Text string // one line: what was seen and what to try
}

// Watch looks at the steps of a run as they come, and raises each alarm once. It keeps no more than it looks at, however
// long the run is. It encodes to JSON and comes back exactly.
//
//	equal_rewards    nearly all prompts gave rewards that do not differ, for Window steps
//	truncation       many completions were cut off, for Window steps
//	missing_end      few completions ended by themselves, for Window steps
//	dominant_reward  one reward of a list, not the right answer, makes nearly all differences, for Window steps
//	never_right      no answer to a kind of exercise was right, of Tries and more over 2·Window steps, where that is paid
//	collapse         fewer right answers, over Window steps, than over the best Window before
//	tier_drift       more answers are found in one way than in the first Window, and no more
//	                 have the form that was asked for
//	length_drift     answers are much longer, or shorter, than in the first Window, and no more are right
//	kl               too far from the reference, in a step
//	failed_rewards   many judgements failed, in a step
//	overfitting      over three evaluations what is trained on got better, and what is held out worse, by more than
//	                 chance makes: three standard errors, and 2 %
//
// Means over a window stand for its steps, so a single odd step raises neither collapse
// nor drift. Where a teacher corrects the answers, rewards that teach nothing are no fault.
type Watch struct {
	First  []Health               `json:"first,omitempty"`  // Window steps
	Recent []Health               `json:"recent,omitempty"` // 2·Window steps
	Best   float64                `json:"best"`             // highest mean share of right answers over a window that ended Window steps ago
	Kinds  map[string]AnswerCount `json:"kinds,omitempty"`  // since the run began
	Steps  int                    `json:"steps"`
	Train  Figure                 `json:"train"`            // what was learnt from since the last evaluation
	Judged [][2]float64           `json:"judged,omitempty"` // of the last evaluations: what was learnt from, and the score
	Tiers  []string               `json:"tiers,omitempty"`  // that were seen
	Raised []string               `json:"raised,omitempty"`
}

// Shares are the tiers of a step, those that other steps had included.
func (w *Watch) Shares(tiers map[string]float64) map[string]float64 {
	all := maps.Clone(tiers)
	for _, tier := range slices.Sorted(maps.Keys(tiers)) {
		if !slices.Contains(w.Tiers, tier) {
			w.Tiers = append(w.Tiers, tier)
		}
	}
	for _, tier := range w.Tiers {
		if all != nil {
			all[tier] += 0
		}
	}
	return all
}

// raise gives the alarm unless it was raised before.
func (w *Watch) raise(alarms *[]Alarm, name, format string, args ...any) {
	if !slices.Contains(w.Raised, name) {
		w.Raised = append(w.Raised, name)
		*alarms = append(*alarms, Alarm{Name: name, Text: fmt.Sprintf(format, args...)})
	}
}

// Step looks at one more step, and returns what is wrong for the first time.
func (w *Watch) Step(h Health, limits AlarmLimits) (alarms []Alarm) {
	k := limits.Window
	w.Steps++
	if len(w.First) < k {
		w.First = append(w.First, h)
	}
	if w.Recent = append(w.Recent, h); len(w.Recent) > 2*k {
		w.Recent = slices.Clone(w.Recent[1:])
	}
	if w.Kinds == nil {
		w.Kinds = map[string]AnswerCount{}
	}
	for kind, tries := range h.Kinds {
		so := w.Kinds[kind]
		w.Kinds[kind] = AnswerCount{so.N + tries.N, so.Right + tries.Right}
	}
	if len(w.Recent) >= k {
		w.lasting(&alarms, w.Recent[len(w.Recent)-k:], limits)
	}
	if len(w.Recent) >= 2*k {
		w.Best = max(w.Best, meanHealth(w.Recent[:k]).Correct)
		w.drifts(&alarms, limits)
		w.neverRight(&alarms, limits)
	}
	if h.KL > limits.KL {
		w.raise(&alarms, "kl", "the policy is %.3g nats a token from its reference: try a lower --rl-learning-rate or a higher --kl-coef", h.KL)
	}
	if h.Failed >= limits.Failed {
		w.raise(&alarms, "failed_rewards", "%.0f %% of the samples have no reward: see rewards/NAME/failures in the metrics, and try the reward on a few answers by itself", 100*h.Failed)
	}
	return alarms
}

// lasting raises what holds in each of the last steps.
func (w *Watch) lasting(alarms *[]Alarm, recent []Health, limits AlarmLimits) {
	last, k := recent[len(recent)-1], limits.Window
	always := func(holds func(h Health) bool) bool {
		return !slices.ContainsFunc(recent, func(h Health) bool { return !holds(h) })
	}
	if always(func(h Health) bool { return h.ZeroStd >= limits.ZeroStd && !h.Taught }) {
		w.raise(alarms, "equal_rewards", "the rewards of %.0f %% of the prompts do not differ, for %d steps: nothing can be learnt from them; %s", 100*last.ZeroStd, k, equalGroups(recent))
	}
	if always(func(h Health) bool { return h.Truncated >= limits.Truncated }) {
		w.raise(alarms, "truncation", "%.0f %% of the completions reach the limit of tokens, for %d steps: try a higher --max-new-tokens", 100*last.Truncated, k)
	}
	if always(func(h Health) bool { return h.Ended <= limits.Ended }) {
		w.raise(alarms, "missing_end", "only %.0f %% of the completions end by themselves, for %d steps: look whether the end token is trained (rltrain doctor shows it), and try a longer warm-up or a higher --max-new-tokens", 100*last.Ended, k)
	}
	name, share := "", 0.0
	if always(func(h Health) bool {
		top, s := dominant(h.Spread)
		if name == "" {
			name = top
		}
		share = s
		return top != "" && top == name && !slices.Contains(h.Tells, top) && s >= limits.Dominance && !h.Taught
	}) {
		w.raise(alarms, "dominant_reward", "reward %s makes %.0f %% of the differences between answers, for %d steps, and the others hardly count: try other weights, its own about %.2g times what it is", name, 100*share, k, (1-share)/share)
	}
}

// equalGroups says what a group size and a share of right answers predict of groups that are all right or all wrong, and
// what to try. With G answers to a prompt of which each is right with probability p the share is p^G + (1−p)^G. Where
// something else is paid for than the right answer it predicts nothing.
func equalGroups(recent []Health) string {
	const other = "try other exercises, a longer warm-up, another reward or a higher --temperature"
	h, group := meanHealth(recent), recent[len(recent)-1].Group
	if group < 2 || !paysRight(recent) {
		return other
	}
	chance := func(g int) float64 { return math.Pow(h.Correct, float64(g)) + math.Pow(1-h.Correct, float64(g)) }
	expected := chance(group)
	text := fmt.Sprintf("with %d answers to a prompt of which %.1f %% are right, %.0f %% are to be expected", group, 100*h.Correct, 100*expected)
	switch {
	case h.Correct == 0 || h.Correct == 1:
		return text + ": " + other
	case expected < h.ZeroStd/2:
		return text + ", so some exercises are always right and the others never: try --dynamic-sampling, or exercises that are neither"
	}
	return text + fmt.Sprintf(": try --samples-per-prompt %d, with which it would be %.0f %%, or ", 4*group, 100*chance(4*group)) + other[len("try "):]
}

// paysRight tells whether right answers earned more than wrong ones, as far as the steps show it.
func paysRight(recent []Health) bool {
	return slices.ContainsFunc(recent, func(h Health) bool { return len(h.Spread) == 0 || len(h.Tells) > 0 })
}

// dominant is the reward with the largest share of the differences; "" where no two rewards make some.
func dominant(spread map[string]float64) (name string, share float64) {
	sum, top, making := 0.0, 0.0, 0
	for _, reward := range slices.Sorted(maps.Keys(spread)) {
		s := spread[reward]
		sum += s
		if s > 0 {
			making++
		}
		if s > top {
			name, top = reward, s
		}
	}
	if making < 2 {
		return "", 0
	}
	return name, top / sum
}

// drifts compares the last window with the first, and with the best.
func (w *Watch) drifts(alarms *[]Alarm, limits AlarmLimits) {
	k := limits.Window
	first, now := meanHealth(w.First), meanHealth(w.Recent[len(w.Recent)-k:])
	form, length := "a reward for the form", "a reward that counts length, as expr:'-0.001*length', or --overlong-buffer"
	if w.Recent[len(w.Recent)-1].Taught { // by rewards it learns nothing
		form, length = "a lower --rl-learning-rate", "a lower --rl-learning-rate"
	}
	if w.Best-now.Correct >= limits.Drop {
		w.raise(alarms, "collapse", "right answers fell from %.0f %% to %.0f %%: go back with --resume-from-checkpoint, and try a lower --rl-learning-rate", 100*w.Best, 100*now.Correct)
	}
	for _, tier := range slices.Sorted(maps.Keys(now.Tiers)) {
		if now.Tiers[tier]-first.Tiers[tier] >= limits.Drift && now.Formatted <= first.Formatted {
			w.raise(alarms, "tier_drift", "answers of tier %s rose from %.0f %% to %.0f %%, and no more have the form asked for: read some in logs/completions.jsonl, and try %s", tier, 100*first.Tiers[tier], 100*now.Tiers[tier], form)
		}
	}
	const better = 0.05
	if grown := now.Length / first.Length; first.Length > 0 && now.Correct < first.Correct+better && (grown >= limits.Length || grown <= 1/limits.Length) {
		w.raise(alarms, "length_drift", "answers have %.0f tokens, and had %.0f in the first %d steps, and no more are right: read some in logs/completions.jsonl, and try %s", now.Length, first.Length, k, length)
	}
}

// neverRight finds kinds of exercises that nothing can be learnt from.
func (w *Watch) neverRight(alarms *[]Alarm, limits AlarmLimits) {
	if w.Recent[len(w.Recent)-1].Taught || !paysRight(w.Recent) {
		return
	}
	for _, kind := range slices.Sorted(maps.Keys(w.Kinds)) {
		if tries := w.Kinds[kind]; tries.N >= limits.Tries && tries.Right == 0 {
			what := "exercises of kind " + kind
			if kind == "" {
				what = "any exercise"
			}
			w.raise(alarms, "never_right", "none of %d answers to %s is right, in %d steps, so there is nothing to learn from: try a longer warm-up (--warmup-until) or easier exercises first", tries.N, what, w.Steps)
		}
	}
}

// Learnt notes how well the policy did what a step learns from; more is better.
func (w *Watch) Learnt(value float64) {
	w.Train.Value, w.Train.Count = w.Train.Value+value, w.Train.Count+1
}

// Evaluated looks at one more evaluation; a higher score is better. Its standard error is 0 where it is not known.
func (w *Watch) Evaluated(score, standardError float64) (alarms []Alarm) {
	if w.Train.Count == 0 {
		return nil
	}
	w.Judged = append(w.Judged, [2]float64{w.Train.Value / w.Train.Count, score})
	w.Train = Figure{}
	if n := len(w.Judged); n > 3 {
		w.Judged = slices.Clone(w.Judged[n-3:])
	}
	if len(w.Judged) < 3 {
		return nil
	}
	a, b, c := w.Judged[0], w.Judged[1], w.Judged[2]
	// Of few held-out samples the score goes up and down by chance, three times in a row too.
	chance := max(3*standardError, 0.02*math.Abs(a[1]))
	if a[0] < b[0] && b[0] < c[0] && a[1] > b[1] && b[1] > c[1] && a[1]-c[1] >= chance {
		w.raise(&alarms, "overfitting", "over three evaluations what is learnt from got better, and what is held out worse (score %.4g, %.4g, %.4g; of a loss its negative): the best so far is kept; try fewer passes, a lower learning rate, or more data", a[1], b[1], c[1])
	}
	return alarms
}

// meanHealth averages what windows are compared by.
func meanHealth(window []Health) Health {
	mean := Health{Tiers: map[string]float64{}}
	share := 1 / float64(len(window))
	for _, h := range window {
		mean.Correct += share * h.Correct
		mean.Formatted += share * h.Formatted
		mean.Length += share * h.Length
		mean.ZeroStd += share * h.ZeroStd
		for tier, s := range h.Tiers {
			mean.Tiers[tier] += share * s
		}
	}
	return mean
}
