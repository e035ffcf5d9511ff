package answer

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/answer/equiv"
)

// Match is a rule for when two answers are the same.
type Match string

const (
	// Exact compares text, without the space around it and without regard to case.
	Exact Match = "exact"
	// Numeric compares values, exactly, and what has no value as LaTeX. It reads
	// integers with thousands separators, decimals, repeating decimals
	// (0.\overline{3}), \frac, a/b, mixed numbers, scientific notation and percent
	// (50\% is one half); $, degrees, \text{}, spacing and sizing commands, and a
	// leading "x =" do not count. Lists, tuples and intervals are compared entry by
	// entry, sets \{…\} in any order. Words behind a number are an error of the answer:
	// "3 bolts" is not 3.
	Numeric Match = "numeric"
	// Units is Numeric, except that a unit may follow a number, in words, as a symbol
	// or as \text{}. Where both sides have one, the units must agree; one missing unit
	// is forgiven. A percent sign may be a unit or a factor: 20\% is both 20 and 1/5.
	Units Match = "units"
	// Math compares meanings: the LaTeX or plain text of both is parsed, and expressions,
	// equations, lists, sets, intervals, matrices and units are compared as what they
	// are; see package equiv. Where it is in doubt two answers differ.
	Math Match = "math"
)

// ParseMatch reads the name of a rule.
func ParseMatch(name string) (Match, error) {
	switch m := Match(name); m {
	case Exact, Numeric, Units, Math:
		return m, nil
	}
	return "", fmt.Errorf("answer match %q is unknown: choose numeric, exact, units or math", name)
}

// maxAnswer bounds the bytes of an answer worth comparing as mathematics; a longer one
// only equals itself.
const maxAnswer = 2000

// Same says whether two answers are the same. It is symmetric.
func (m Match) Same(a, b string) bool {
	if m == Math {
		return equiv.Equal(a, b)
	}
	if strings.EqualFold(strings.TrimSpace(a), strings.TrimSpace(b)) {
		return true
	}
	if m == Exact || len(a) > maxAnswer || len(b) > maxAnswer {
		return false
	}
	return m.sameMath(cleanLaTeX(a), cleanLaTeX(b))
}

// Verdict is the outcome of a comparison, both sides as they were read, and what decided.
type Verdict = equiv.Verdict

// Compare is Same with its reasons.
func (m Match) Compare(gold, answer string) Verdict {
	if m == Math {
		return equiv.Compare(gold, answer)
	}
	v := Verdict{Equal: m.Same(gold, answer), Rule: string(m), Gold: strings.TrimSpace(gold), Answer: strings.TrimSpace(answer)}
	if m != Exact && len(gold) <= maxAnswer && len(answer) <= maxAnswer {
		v.Gold, v.Answer = cleanLaTeX(gold), cleanLaTeX(answer)
	}
	return v
}

// sameMath compares cleaned LaTeX.
func (m Match) sameMath(a, b string) bool {
	if m.sameValue(a, b) {
		return true
	}
	openA, listA := splitList(a)
	openB, listB := splitList(b)
	if openA != openB || len(listA) != len(listB) {
		return false
	}
	if len(listA) == 1 {
		if listA[0] == a && listB[0] == b {
			return canonical(a) != "" && canonical(a) == canonical(b)
		}
		return m.sameMath(listA[0], listB[0])
	}
	if openA == "{}" {
		return m.sameSet(listA, listB)
	}
	return slices.EqualFunc(listA, listB, m.sameMath)
}

// sameSet pairs the entries off. Equality is close enough to transitive for the first
// partner to be as good as any.
func (m Match) sameSet(a, b []string) bool {
	left := slices.Clone(b)
	for _, entry := range a {
		i := slices.IndexFunc(left, func(other string) bool { return m.sameMath(entry, other) })
		if i < 0 {
			return false
		}
		left = slices.Delete(left, i, i+1)
	}
	return true
}

func (m Match) sameValue(a, b string) bool {
	x, ok := parseQuantity(a)
	if !ok {
		return false
	}
	y, ok := parseQuantity(b)
	if !ok {
		return false
	}
	if m == Numeric {
		return x.unit == "" && y.unit == "" && x.share().Cmp(y.share()) == 0
	}
	if x.unit != "" && y.unit != "" && x.unit != y.unit {
		return false
	}
	if x.value.Cmp(y.value) == 0 {
		return true
	}
	return x.percent != y.percent && x.share().Cmp(y.share()) == 0
}

// quantity is a number with what stood behind it.
type quantity struct {
	value   *big.Rat
	percent bool
	unit    string // in canonical form, "" without one
}

// share is the value with a percent sign taken as a factor.
func (q quantity) share() *big.Rat {
	if !q.percent {
		return q.value
	}
	return new(big.Rat).Quo(q.value, big.NewRat(100, 1))
}
