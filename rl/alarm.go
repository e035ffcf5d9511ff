package rl

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/rltrain/rltrain/envs/answer"
)

// Health is what the alarms check, once per step. It survives JSON exactly, so a resumed run raises the same alarms as an
// uninterrupted one.
type Health struct {
	ZeroStd    float64                `json:"zero_std"`  // fraction of prompts whose rewards are all equal
	Group      int                    `json:"group"`     // samples per prompt
	Truncated  float64                `json:"truncated"` // fraction of completions cut at the token limit
	Ended      float64                `json:"ended"`     // fraction that ended with an end token or a stop string
	Correct    float64                `json:"correct"`   // accuracy
	Formatted  float64                `json:"formatted"` // format rate
	Length     float64                `json:"length"`    // mean tokens of a completion
	Tiers      map[string]float64     `json:"tiers"`     // how answers were found: fraction of each way
	Kinds      map[string]AnswerCount `json:"kinds"`     // by kind of problem; "" if there are no kinds
	Spread     map[string]float64     `json:"spread"`    // standard deviation of each weighted reward
	Tells      []string               `json:"tells"`     // rewards that were higher for every correct answer than for any incorrect one
	KL         float64                `json:"kl"`        // KL to the reference, in nats per token; 0 without one
	Failed     float64                `json:"failed"`    // fraction of samples without a reward
	HasTeacher bool                   `json:"taught"`    // the policy learns from a teacher; rewards are only measured
	Rewarded   Rewarded               `json:"rewarded"`  // what was rewarded
}

// AnswerCount counts attempts.
type AnswerCount struct {
	N     int `json:"n"`
	Right int `json:"right"`
}

// AlarmLimits are the thresholds of the alarms.
type AlarmLimits struct {
	Window    int     // steps that a condition must hold, at least 1
	ZeroStd   float64 // equal_rewards from this fraction up
	Truncated float64 // truncation from this fraction up
	Ended     float64 // missing_end from this fraction down
	Drop      float64 // collapse from this fall of the accuracy up
	Drift     float64 // tier_drift from this rise up
	Length    float64 // length_drift from this factor up, or its inverse down
	Tries     int     // never_right from this number of attempts up
	Dominance float64 // dominant_reward from this fraction of all differences up
	KL        float64 // kl above this many nats per token
	Failed    float64 // failed_rewards from this fraction up
	Rewarded  int     // echo from this number of rewarded completions in Window steps up
	Echo      float64 // echo from this fraction of them up
	Strict    float64 // strict above this difference
}

// DefaultAlarmLimits returns limits for runs of any size.
func DefaultAlarmLimits() AlarmLimits {
	return AlarmLimits{Window: 5, ZeroStd: 0.9, Truncated: 0.5, Ended: 0.5, Drop: 0.25, Drift: 0.3, Length: 2, Tries: 100, Dominance: 0.9, KL: 1, Failed: 0.1, Rewarded: 16, Echo: 0.5, Strict: 0.1}
}

// Alarm is a sign that a run is going wrong.
type Alarm struct {
	Name string
	Text string // one line: what to do, and after a colon what happened
}

// Watch checks the steps of a run and raises each alarm once. Its size does not grow with the run. It survives JSON exactly.
//
//	equal_rewards    the rewards of nearly all prompts are equal, for Window steps
//	truncation       many completions are cut, for Window steps
//	missing_end      few completions end with an end token, for Window steps
//	dominant_reward  one reward, not the correct answer, causes nearly all differences, for Window steps
//	never_right      no attempt at a kind of problem was correct, of Tries or more over 2·Window steps, though it is rewarded
//	collapse         accuracy over Window steps is below that of the best Window before
//	tier_drift       more answers are found in one way than in the first Window, and the format rate is not higher;
//	                 completions that are the answer alone do not count
//	length_drift     completions are much longer or shorter than in the first Window, and accuracy is not higher
//	kl               the KL to the reference is too large, in one step
//	failed_rewards   many rewards failed, in one step
//	echo             most rewarded completions, over Window steps or fewer, copy their prompt, or are one text for prompts with
//	                 different reference answers
//	strict           the reward accepts more held-out completions than the strictest verifier
//	few_rows         the best weights are chosen by fewer than 30 held-out rows
//	overfitting      over three evaluations the training figure rose and the held-out score fell, by more than noise:
//	                 three standard errors, and 2 %
//
// Windows are compared by their means, so one odd step raises neither collapse nor drift. With a teacher, equal rewards
// raise no alarm.
type Watch struct {
	First  []Health               `json:"first,omitempty"`  // Window steps
	Recent []Health               `json:"recent,omitempty"` // 2·Window steps
	Best   float64                `json:"best"`             // highest mean accuracy of a window that ended at least Window steps ago
	Kinds  map[string]AnswerCount `json:"kinds,omitempty"`  // since step 1
	Steps  int                    `json:"steps"`
	Train  Figure                 `json:"train"`            // training figure since the last evaluation
	Judged [][2]float64           `json:"judged,omitempty"` // training figure and score of the last evaluations
	Tiers  []string               `json:"tiers,omitempty"`  // seen so far
	Raised []string               `json:"raised,omitempty"`
}

// Shares are the tiers of a step, and those of earlier steps with 0.
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

// raise adds an alarm unless it was raised before.
func (w *Watch) raise(alarms *[]Alarm, name, format string, args ...any) {
	if !slices.Contains(w.Raised, name) {
		w.Raised = append(w.Raised, name)
		*alarms = append(*alarms, Alarm{Name: name, Text: fmt.Sprintf(format, args...)})
	}
}

// Step checks one more step and returns new alarms.
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
		w.raise(&alarms, "kl", "lower --rl-learning-rate or raise --kl-coef: the KL to the reference policy is %.3g nats per token", h.KL)
	}
	if h.Failed >= limits.Failed {
		w.raise(&alarms, "failed_rewards", "try the reward on a few completions, and see rewards/NAME/failures in the metrics: %.0f %% of the samples have no reward", 100*h.Failed)
	}
	if !h.HasTeacher {
		w.echo(&alarms, w.Recent[max(0, len(w.Recent)-k):], limits)
	}
	return alarms
}

// echo finds rewards for completions that answer nothing.
func (w *Watch) echo(alarms *[]Alarm, recent []Health, limits AlarmLimits) {
	var sum Rewarded
	for _, h := range recent {
		r := h.Rewarded
		sum.N, sum.Echoes, sum.Same = sum.N+r.N, sum.Echoes+r.Echoes, sum.Same+r.Same
		sum.Echo, sum.Repeats = cmp.Or(r.Echo, sum.Echo), cmp.Or(r.Repeats, sum.Repeats)
	}
	const fix = "fix the reward and start again, for example with --answer-form final, --answer-match exact, or a check of your own: "
	switch {
	case sum.N < limits.Rewarded:
	case float64(sum.Echoes) >= limits.Echo*float64(sum.N):
		w.raise(alarms, "echo", fix+"%d of %d rewarded completions only copy from their prompt, such as %.80q", sum.Echoes, sum.N, sum.Echo)
	case float64(sum.Same) >= limits.Echo*float64(sum.N):
		w.raise(alarms, "echo", fix+"%d of %d rewarded completions are the same text for prompts with different answers, such as %.80q", sum.Same, sum.N, sum.Repeats)
	}
}

// Strict compares how many held-out completions the reward accepts with how many the strictest verifier accepts.
func (w *Watch) Strict(s AnswerScores, limits AlarmLimits) (alarms []Alarm) {
	rewarded, strict := s.Correct, s.Correct-s.Doubted
	if s.Accepted != nil {
		rewarded = *s.Accepted
	}
	const few = 5 // completions on which two rules may differ by chance
	if gap := rewarded - strict; gap >= few && float64(gap) > limits.Strict*float64(s.N) {
		w.raise(&alarms, "strict", "read the best-rewarded completions in report.html before you trust the reward: it accepts %d of %d held-out completions, the strictest verifier only %d", rewarded, s.N, strict)
	}
	return alarms
}

// lasting raises alarms whose condition holds in each of the last steps.
func (w *Watch) lasting(alarms *[]Alarm, recent []Health, limits AlarmLimits) {
	last, k := recent[len(recent)-1], limits.Window
	always := func(holds func(h Health) bool) bool {
		return !slices.ContainsFunc(recent, func(h Health) bool { return !holds(h) })
	}
	if always(func(h Health) bool { return h.ZeroStd >= limits.ZeroStd && !h.HasTeacher }) {
		advice, expected := equalGroups(recent)
		w.raise(alarms, "equal_rewards", "%s: all samples of %.0f %% of the prompts have equal rewards, for %d steps, so nothing is learned from them%s", advice, 100*last.ZeroStd, k, expected)
	}
	if always(func(h Health) bool { return h.Truncated >= limits.Truncated }) {
		w.raise(alarms, "truncation", "raise --max-new-tokens, or reward shorter completions: %.0f %% of the completions reach the token limit, for %d steps", 100*last.Truncated, k)
	}
	if always(func(h Health) bool { return h.Ended <= limits.Ended }) {
		w.raise(alarms, "missing_end", "raise --max-new-tokens, train longer with SFT, and check that the end token is trained (rltrain doctor shows it): only %.0f %% of the completions end with an end token, for %d steps", 100*last.Ended, k)
	}
	name, share := "", 0.0
	if always(func(h Health) bool {
		top, s := dominant(h.Spread)
		if name == "" {
			name = top
		}
		share = s
		return top != "" && top == name && !slices.Contains(h.Tells, top) && s >= limits.Dominance && !h.HasTeacher
	}) {
		w.raise(alarms, "dominant_reward", "lower the weight of reward %s, for example to %.2g times the present one: it causes %.0f %% of the differences between samples, for %d steps, so the other rewards hardly count", name, (1-share)/share, 100*share, k)
	}
}

// equalGroups says what to do about equal rewards, and how many of them to expect. With G samples per prompt, each correct
// with probability p, the fraction of groups that are all correct or all incorrect is p^G + (1−p)^G. If something else than
// correctness is rewarded, this predicts nothing.
func equalGroups(recent []Health) (advice, why string) {
	const other = "choose other problems, a longer SFT stage, another reward or a higher --temperature"
	h, group := meanHealth(recent), recent[len(recent)-1].Group
	if group < 2 || !paysRight(recent) {
		return other, ""
	}
	chance := func(g int) float64 { return math.Pow(h.Correct, float64(g)) + math.Pow(1-h.Correct, float64(g)) }
	expected := chance(group)
	why = fmt.Sprintf("; with %d samples per prompt and an accuracy of %.1f %%, %.0f %% is expected", group, 100*h.Correct, 100*expected)
	switch {
	case h.Correct == 0:
		return "train with SFT first, or choose easier problems or more samples per prompt", "; no sample was correct"
	case h.Correct == 1:
		return other, why
	case expected < h.ZeroStd/2:
		return "use --dynamic-sampling, or problems of medium difficulty", why + ", so some problems are always solved and the others never"
	}
	return fmt.Sprintf("raise --samples-per-prompt to %d, which makes it %.0f %%, or ", 4*group, 100*chance(4*group)) + other, why
}

// paysRight says whether correct answers had higher rewards than incorrect ones, as far as the steps show.
func paysRight(recent []Health) bool {
	return slices.ContainsFunc(recent, func(h Health) bool { return len(h.Spread) == 0 || len(h.Tells) > 0 })
}

// dominant is the reward that causes most differences; "" if fewer than two cause any.
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
	form, length := "add a reward for the format", "add a reward for length, such as expr:'-0.001*length', or --overlong-buffer"
	if w.Recent[len(w.Recent)-1].HasTeacher { // rewards do not count
		form, length = "lower --rl-learning-rate", "lower --rl-learning-rate"
	}
	if w.Best-now.Correct >= limits.Drop {
		w.raise(alarms, "collapse", "go back with --resume-from-checkpoint and lower --rl-learning-rate: accuracy fell from %.0f %% to %.0f %%", 100*w.Best, 100*now.Correct)
	}
	for _, tier := range slices.Sorted(maps.Keys(now.Tiers)) {
		if tier == string(answer.ByWhole) { // an answer and nothing else is no worse form
			continue
		}
		if now.Tiers[tier]-first.Tiers[tier] >= limits.Drift && now.Formatted <= first.Formatted {
			w.raise(alarms, "tier_drift", "read some of logs/completions.jsonl, and %s: answers found by %s rose from %.0f %% to %.0f %%, but the format rate did not rise", form, tier, 100*first.Tiers[tier], 100*now.Tiers[tier])
		}
	}
	const better = 0.05
	if grown := now.Length / first.Length; first.Length > 0 && now.Correct < first.Correct+better && (grown >= limits.Length || grown <= 1/limits.Length) {
		w.raise(alarms, "length_drift", "read some of logs/completions.jsonl, and %s: completions have %.0f tokens, %.0f in the first %d steps, and accuracy did not rise", length, now.Length, first.Length, k)
	}
}

// neverRight finds kinds of problems that were never solved.
func (w *Watch) neverRight(alarms *[]Alarm, limits AlarmLimits) {
	if w.Recent[len(w.Recent)-1].HasTeacher || !paysRight(w.Recent) {
		return
	}
	for _, kind := range slices.Sorted(maps.Keys(w.Kinds)) {
		if tries := w.Kinds[kind]; tries.N >= limits.Tries && tries.Right == 0 {
			what := "problems of kind " + kind
			if kind == "" {
				what = "any problem"
			}
			w.raise(alarms, "never_right", "train longer with SFT (--warmup-until) or choose easier problems: none of %d attempts at %s was correct, in %d steps, so nothing is learned from them", tries.N, what, w.Steps)
		}
	}
}

// Learnt notes the training figure of a step; higher is better.
func (w *Watch) Learnt(value float64) {
	w.Train.Value, w.Train.Count = w.Train.Value+value, w.Train.Count+1
}

// Evaluated checks one more evaluation; a higher score is better. A standard error of 0 is unknown.
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
	// With few held-out samples the score may fall three times in a row by chance.
	chance := max(3*standardError, 0.02*math.Abs(a[1]))
	if a[0] < b[0] && b[0] < c[0] && a[1] > b[1] && b[1] > c[1] && a[1]-c[1] >= chance {
		w.raise(&alarms, "overfitting", "choose fewer epochs, a lower learning rate or more data: over three evaluations the training figure improved but the held-out score fell (%.4g, %.4g, %.4g; a loss counts negative); the best weights are kept", a[1], b[1], c[1])
	}
	return alarms
}

// fewRows are too few to choose weights by: the 95 % interval of an accuracy of 50 % is 34 points wide.
const fewRows = 30

// FewRows is a warning about figures of n rows that show mostly chance, on a line; "" if n is enough.
func FewRows(n int, what string) string {
	if n >= fewRows {
		return ""
	}
	return fmt.Sprintf("warning: evaluate at least %d %s: figures of %d show mostly chance\n", fewRows, what, n)
}

// Held checks the number of held-out rows that choose the best weights; 0 is unknown.
func (w *Watch) Held(rows int) (alarms []Alarm) {
	if rows > 0 && rows < fewRows {
		w.raise(&alarms, "few_rows", "hold out more rows (--eval-samples, --eval-dataset or a validation split): only %d choose the best weights, and fewer than %d show mostly chance", rows, fewRows)
	}
	return alarms
}

// meanHealth is the mean of a window.
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
