package rl

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
)

// Estimate is a mean over exercises.
type Estimate struct {
	Value    float64  `json:"value"`
	Interval Interval `json:"interval"` // percentile bootstrap over the exercises
}

// PassScores says how well a policy answers exercises that it tries several times.
type PassScores struct {
	Exercises  int        `json:"exercises"`
	N          int        `json:"n"`       // tries at each
	Mean       Estimate   `json:"mean"`    // share of right tries
	Pass       []Estimate `json:"pass_at"` // by k-1: whether one of k tries is right, k = 1 … n
	Majority   Estimate   `json:"majority"`
	FormatRate float64    `json:"format_rate"`
	Kinds      []KindRow  `json:"kinds,omitempty"` // by name, where the task tells kinds of exercises
}

// KindRow is the mean and the last pass@k of one kind of exercises.
type KindRow struct {
	Kind      string   `json:"kind"`
	Exercises int      `json:"exercises"`
	Mean      Estimate `json:"mean"`
	PassN     Estimate `json:"pass_at_n"`
}

// Tries is what came of the tries at one exercise. A try without a judgement, nil, is not right.
type Tries []*envs.Info

// Correct is the number of right tries.
func (t Tries) Correct() int {
	n := 0
	for _, info := range t {
		if info != nil && info.Correct {
			n++
		}
	}
	return n
}

// Kind is that of the exercise, "" where none is known.
func (t Tries) Kind() string {
	for _, info := range t {
		if info != nil {
			return info.Kind
		}
	}
	return ""
}

// Pass is the probability that one of k different ones of the tries is right.
func (t Tries) Pass(k int) float64 { return PassAt(len(t), t.Correct(), k) }

// PassAt is 1 − C(n−c,k)/C(n,k), which of n tries with c right ones is the unbiased estimate of the probability that one
// of k is right (Chen et al. 2021, equation 1). It panics unless 1 ≤ k ≤ n and 0 ≤ c ≤ n.
func PassAt(n, c, k int) float64 {
	if k < 1 || k > n || c < 0 || c > n {
		panic(fmt.Sprintf("rl.PassAt: %d right ones of %d tries, k = %d", c, n, k))
	}
	if n-c < k {
		return 1
	}
	none := 1.0
	for i := n - c + 1; i <= n; i++ {
		none *= 1 - float64(k)/float64(i)
	}
	return 1 - none
}

// Majority is 1 where the answer given most often is right and 0 where it is not; where several are given most often it
// is the share of right ones among them. Wrong answers count as one where they mean the same; tries without an answer
// have no vote.
func (t Tries) Majority() float64 {
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
		at := slices.Index(wrong, said)
		if at < 0 {
			at = slices.IndexFunc(wrong, func(other string) bool { return answer.Math.Same(other, said) })
		}
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

// ScoreTries counts the tries at exercises. Where an exercise has fewer of them than others, for want of a judgement, it
// counts in the figures that need no more; without any it counts nowhere.
func ScoreTries(all []Tries) PassScores {
	all = withTries(all, 1)
	s := PassScores{Exercises: len(all)}
	if len(all) == 0 {
		return s
	}
	formatted, total := 0, 0
	kinds := map[string][]Tries{}
	for _, tries := range all {
		s.N, total = max(s.N, len(tries)), total+len(tries)
		for _, info := range tries {
			if info != nil && info.FormatOK {
				formatted++
			}
		}
		if kind := tries.Kind(); kind != "" {
			kinds[kind] = append(kinds[kind], tries)
		}
	}
	s.FormatRate = ratio(formatted, total)
	for k := 1; k <= s.N; k++ {
		s.Pass = append(s.Pass, meanOf(withTries(all, k), passOf(k)))
	}
	s.Mean, s.Majority = s.Pass[0], meanOf(all, Tries.Majority)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		of := kinds[kind]
		s.Kinds = append(s.Kinds, KindRow{kind, len(of), meanOf(of, passOf(1)), meanOf(withTries(of, s.N), passOf(s.N))})
	}
	return s
}

// withTries are the exercises that have so many tries.
func withTries(all []Tries, k int) []Tries {
	return slices.DeleteFunc(slices.Clone(all), func(t Tries) bool { return len(t) < k })
}

func passOf(k int) func(Tries) float64 { return func(t Tries) float64 { return t.Pass(k) } }

func meanOf(all []Tries, figure func(Tries) float64) Estimate {
	values := make([]float64, len(all))
	for i, tries := range all {
		values[i] = figure(tries)
	}
	return MeanEstimate(values)
}

// TriesComparison puts two policies that tried the same exercises side by side, with paired bootstrap intervals over the
// exercises.
type TriesComparison struct {
	Exercises int          `json:"exercises"`
	Mean      Difference   `json:"mean"`
	Pass      []Difference `json:"pass_at"` // by k-1
	Majority  Difference   `json:"majority"`
	Kinds     []KindChange `json:"kinds,omitempty"`
}

// KindChange is the mean of one kind of exercises.
type KindChange struct {
	Kind      string     `json:"kind"`
	Exercises int        `json:"exercises"`
	Mean      Difference `json:"mean"`
}

// CompareTries compares tries at the same exercises. An exercise that one of the policies has fewer tries at counts in the
// figures that need no more. It panics when the lengths differ.
func CompareTries(a, b []Tries) TriesComparison {
	a, b = withTriesOfBoth(a, b, 1)
	c := TriesComparison{Exercises: len(a)}
	if len(a) == 0 {
		return c
	}
	for k := 1; ; k++ {
		ofA, ofB := withTriesOfBoth(a, b, k)
		if len(ofA) == 0 {
			break
		}
		c.Pass = append(c.Pass, compareOf(ofA, ofB, passOf(k)))
	}
	c.Mean, c.Majority = c.Pass[0], compareOf(a, b, Tries.Majority)
	kinds := map[string][2][]Tries{}
	for i := range a {
		kind := max(a[i].Kind(), b[i].Kind()) // either may have failed altogether
		if kind != "" {
			kinds[kind] = [2][]Tries{append(kinds[kind][0], a[i]), append(kinds[kind][1], b[i])}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		of := kinds[kind]
		c.Kinds = append(c.Kinds, KindChange{kind, len(of[0]), compareOf(of[0], of[1], passOf(1))})
	}
	return c
}

// withTriesOfBoth are the exercises that both policies have so many tries at.
func withTriesOfBoth(a, b []Tries, k int) (ofA, ofB []Tries) {
	for i := range a {
		if len(a[i]) >= k && len(b[i]) >= k {
			ofA, ofB = append(ofA, a[i]), append(ofB, b[i])
		}
	}
	return ofA, ofB
}

func compareOf(a, b []Tries, figure func(Tries) float64) Difference {
	values := [2][]float64{}
	for side, all := range [][]Tries{a, b} {
		for _, tries := range all {
			values[side] = append(values[side], figure(tries))
		}
	}
	return CompareMeans(values[0], values[1])
}
