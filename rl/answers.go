package rl

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
)

// AnswerScores are the metrics of an evaluation on episodes.
type AnswerScores struct {
	N        int      `json:"n"`
	Correct  int      `json:"correct"`
	Accuracy float64  `json:"accuracy"`
	Interval Interval `json:"interval"` // Wilson's, of the accuracy
	// Unfinished counts answers that equal the correct one but leave a calculation to do, such as 74 - 70. The task's answer
	// form decides whether Correct includes them.
	Unfinished int `json:"unfinished,omitempty"`
	// AnyForm counts Correct and Unfinished answers together, if there are Unfinished ones.
	AnyForm int `json:"any_form,omitempty"`
	// Doubted counts the correct answers that the strictest verifier of the task refuses.
	Doubted int `json:"doubted,omitempty"`
	// Accepted counts completions with the higher reward, if the policy is measured by rewards of two values; else nil.
	Accepted *int `json:"accepted,omitempty"`
	// FormatRate is the fraction of answers in the requested format.
	FormatRate float64 `json:"format_rate"`
	// FreeForm means that the task asks for no format.
	FreeForm bool `json:"free_form,omitempty"`
	// FoundBy is the fraction of answers by how they were found, including "none".
	FoundBy map[string]float64 `json:"tiers"`
	// Kinds has the metrics of each kind of episode, if the task has kinds.
	Kinds map[string]KindScore `json:"kinds,omitempty"`
	// Reward is the mean reward, if the policy is evaluated by it.
	Reward      *float64 `json:"reward,omitempty"`
	RewardError float64  `json:"reward_standard_error,omitempty"`
}

// Verified reports whether answers were compared with correct ones.
func (s AnswerScores) Verified() bool { return s.FoundBy["none"] < 1 }

// RewardInterval is the 95 % interval of the mean reward.
func (s AnswerScores) RewardInterval() (low, high float64) {
	return *s.Reward - 1.96*s.RewardError, *s.Reward + 1.96*s.RewardError
}

// KindScore has the metrics of one kind of episode.
type KindScore struct {
	N        int     `json:"n"`
	Correct  int     `json:"correct"`
	Accuracy float64 `json:"accuracy"`
	// Reward is the mean reward, if the policy is evaluated by it.
	Reward *float64 `json:"reward,omitempty"`
}

// Weakest is the lowest accuracy of a kind; without kinds, the accuracy.
func (s AnswerScores) Weakest() float64 {
	least := s.Accuracy
	for _, kind := range s.Kinds {
		least = min(least, kind.Accuracy)
	}
	return least
}

// Forms are the accuracies with the answer forms final and any on one line; "" if they are equal.
func (s AnswerScores) Forms() string {
	if s.AnyForm == 0 {
		return ""
	}
	text := func(correct int) string {
		in := Wilson(correct, s.N)
		return fmt.Sprintf("%d/%d = %.1f %% (95 %% CI %.1f–%.1f)", correct, s.N, 100*ratio(correct, s.N), 100*in[0], 100*in[1])
	}
	return fmt.Sprintf("--answer-form final: %s, any: %s", text(s.AnyForm-s.Unfinished), text(s.AnyForm))
}

// ScoreAnswers computes the metrics of verified answers. nil, an episode without a verdict, is neither correct nor formatted,
// and its answer was found by "none". Without episodes all metrics are 0.
func ScoreAnswers(infos []*envs.Info) AnswerScores {
	s := AnswerScores{N: len(infos), FoundBy: map[string]float64{}}
	formatted, anyForm := 0, 0
	kinds := map[string]KindScore{}
	tiers := map[string]int{}
	for _, info := range infos {
		if info == nil {
			tiers["none"]++
			continue
		}
		tiers[info.FoundBy]++
		if info.Correct {
			s.Correct++
		}
		if info.Doubted {
			s.Doubted++
		}
		if info.Unfinished {
			s.Unfinished++
		}
		if info.Correct || info.Unfinished {
			anyForm++
		}
		if info.Kind != "" {
			kind := kinds[info.Kind]
			kind.N++
			if info.Correct {
				kind.Correct++
			}
			kind.Accuracy = ratio(kind.Correct, kind.N)
			kinds[info.Kind] = kind
		}
		if info.FormatOK {
			formatted++
		}
		s.FreeForm = s.FreeForm || info.FreeForm
	}
	if s.Unfinished > 0 {
		s.AnyForm = anyForm
	}
	if s.N > 0 {
		s.Interval = Wilson(s.Correct, s.N)
	}
	s.Accuracy, s.FormatRate = ratio(s.Correct, s.N), ratio(formatted, s.N)
	if len(kinds) > 0 {
		s.Kinds = kinds
	}
	for tier, n := range tiers {
		s.FoundBy[tier] = ratio(n, s.N)
	}
	return s
}

// Estimate is a mean over problems.
type Estimate struct {
	Value    float64  `json:"value"`
	Interval Interval `json:"interval"` // 95 %, over the problems
}

// PassScores are the figures of several attempts at each problem.
type PassScores struct {
	Problems   int        `json:"problems"`
	N          int        `json:"n"`       // attempts per problem
	Mean       Estimate   `json:"mean"`    // fraction of correct attempts
	Pass       []Estimate `json:"pass_at"` // by k-1: whether one of k attempts is correct, k = 1 … n
	Majority   Estimate   `json:"majority"`
	FormatRate float64    `json:"format_rate"`
	FreeForm   bool       `json:"free_form,omitempty"` // the task asks for no format
	Kinds      []KindRow  `json:"kinds,omitempty"`     // by name, if the task has kinds of problems
}

// KindRow is the mean and the last pass@k of one kind of problems.
type KindRow struct {
	Kind     string   `json:"kind"`
	Problems int      `json:"problems"`
	Mean     Estimate `json:"mean"`
	PassN    Estimate `json:"pass_at_n"`
}

// Attempts are the attempts at one problem. An attempt that was not verified, nil, is not correct.
type Attempts []*envs.Info

// Correct is the number of correct attempts.
func (t Attempts) Correct() int {
	n := 0
	for _, info := range t {
		if info != nil && info.Correct {
			n++
		}
	}
	return n
}

// Kind is the kind of the problem, "" if none is known.
func (t Attempts) Kind() string {
	for _, info := range t {
		if info != nil {
			return info.Kind
		}
	}
	return ""
}

// Pass is the probability that one of k distinct attempts is correct.
func (t Attempts) Pass(k int) float64 { return PassAt(len(t), t.Correct(), k) }

// PassAt is 1 − C(n−c,k)/C(n,k), the unbiased estimate from n attempts, c of them correct, of the probability that one of k
// is correct (Chen et al. 2021, equation 1). It panics unless 1 ≤ k ≤ n and 0 ≤ c ≤ n.
func PassAt(n, c, k int) float64 {
	if k < 1 || k > n || c < 0 || c > n {
		panic(fmt.Sprintf("rl.PassAt: %d of %d attempts correct, k = %d", c, n, k))
	}
	none := 1.0 // 0 if n−c < k: a factor is
	for i := n - c + 1; i <= n; i++ {
		none *= 1 - float64(k)/float64(i)
	}
	return 1 - none
}

// Majority is 1 if the most frequent answer is correct and 0 if it is not; of several most frequent answers it is the
// fraction of correct ones. Wrong answers that mean the same count as one; attempts without an answer have no vote.
func (t Attempts) Majority() float64 {
	right := 0
	var wrong []string
	var votes []int
	for _, info := range t {
		switch {
		case info == nil || info.FoundBy == string(answer.NotFound):
			continue
		case info.Correct:
			right++
			continue
		}
		said := strings.TrimSpace(info.Answer)
		at := slices.IndexFunc(wrong, func(other string) bool { return other == said || answer.Math.Same(other, said) })
		if at < 0 {
			at, wrong, votes = len(wrong), append(wrong, said), append(votes, 0)
		}
		votes[at]++
	}
	most, ties := right, 0
	for _, n := range votes {
		most = max(most, n)
	}
	for _, n := range votes {
		if n == most {
			ties++
		}
	}
	if most == 0 || right < most {
		return 0
	}
	return 1 / float64(1+ties)
}

// ScoreAttempts computes the figures of problems. A problem with fewer attempts than others, since some were not verified,
// counts in the figures that need no more; a problem without any counts nowhere.
func ScoreAttempts(all []Attempts) PassScores {
	all = withAttempts(all, 1)
	s := PassScores{Problems: len(all)}
	if len(all) == 0 {
		return s
	}
	formatted, total := 0, 0
	kinds := map[string][]Attempts{}
	for _, attempts := range all {
		s.N, total = max(s.N, len(attempts)), total+len(attempts)
		for _, info := range attempts {
			if info != nil && info.FormatOK {
				formatted++
			}
			s.FreeForm = s.FreeForm || info != nil && info.FreeForm
		}
		if kind := attempts.Kind(); kind != "" {
			kinds[kind] = append(kinds[kind], attempts)
		}
	}
	s.FormatRate = ratio(formatted, total)
	for k := 1; k <= s.N; k++ {
		s.Pass = append(s.Pass, meanOf(withAttempts(all, k), passOf(k)))
	}
	s.Mean, s.Majority = s.Pass[0], meanOf(all, Attempts.Majority)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		group := kinds[kind]
		s.Kinds = append(s.Kinds, KindRow{kind, len(group), meanOf(group, passOf(1)), meanOf(withAttempts(group, s.N), passOf(s.N))})
	}
	return s
}

// withAttempts are the problems with at least k attempts.
func withAttempts(all []Attempts, k int) []Attempts {
	return slices.DeleteFunc(slices.Clone(all), func(t Attempts) bool { return len(t) < k })
}

func passOf(k int) func(Attempts) float64 { return func(t Attempts) float64 { return t.Pass(k) } }

func meanOf(all []Attempts, figure func(Attempts) float64) Estimate {
	values := make([]float64, len(all))
	for i, attempts := range all {
		values[i] = figure(attempts)
	}
	return RateEstimate(values)
}

// AttemptsComparison compares two policies on the same problems, with paired bootstrap intervals over the problems.
type AttemptsComparison struct {
	Problems int          `json:"problems"`
	Mean     Difference   `json:"mean"`
	Pass     []Difference `json:"pass_at"` // by k-1
	Majority Difference   `json:"majority"`
	Kinds    []KindChange `json:"kinds,omitempty"`
}

// KindChange is the mean of one kind of problems.
type KindChange struct {
	Kind     string     `json:"kind"`
	Problems int        `json:"problems"`
	Mean     Difference `json:"mean"`
}

// CompareAttempts compares attempts at the same problems. A problem with fewer attempts of one policy counts in the figures
// that need no more. It panics if the lengths differ.
func CompareAttempts(a, b []Attempts) AttemptsComparison {
	a, b = withAttemptsOfBoth(a, b, 1)
	c := AttemptsComparison{Problems: len(a)}
	if len(a) == 0 {
		return c
	}
	for k := 1; ; k++ {
		ofA, ofB := withAttemptsOfBoth(a, b, k)
		if len(ofA) == 0 {
			break
		}
		c.Pass = append(c.Pass, compareOf(ofA, ofB, passOf(k)))
	}
	c.Mean, c.Majority = c.Pass[0], compareOf(a, b, Attempts.Majority)
	kinds := map[string][2][]Attempts{}
	for i := range a {
		kind := max(a[i].Kind(), b[i].Kind()) // either may have no verified attempt
		if kind != "" {
			kinds[kind] = [2][]Attempts{append(kinds[kind][0], a[i]), append(kinds[kind][1], b[i])}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		of := kinds[kind]
		c.Kinds = append(c.Kinds, KindChange{kind, len(of[0]), compareOf(of[0], of[1], passOf(1))})
	}
	return c
}

// withAttemptsOfBoth are the problems with at least k attempts of both policies.
func withAttemptsOfBoth(a, b []Attempts, k int) (ofA, ofB []Attempts) {
	for i := range a {
		if len(a[i]) >= k && len(b[i]) >= k {
			ofA, ofB = append(ofA, a[i]), append(ofB, b[i])
		}
	}
	return ofA, ofB
}

func compareOf(a, b []Attempts, figure func(Attempts) float64) Difference {
	values := [2][]float64{}
	for side, all := range [][]Attempts{a, b} {
		for _, attempts := range all {
			values[side] = append(values[side], figure(attempts))
		}
	}
	return CompareMeans(values[0], values[1])
}
