package answer

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/answer/equiv"
)

// Match is a rule for comparing answers.
type Match string

const (
	// Exact compares text, ignoring surrounding space and case.
	Exact Match = "exact"
	// Numeric compares exact values, and LaTeX if there is no value. It reads integers with thousands separators, decimals,
	// repeating decimals (0.\overline{3}), \frac, a/b, mixed numbers, scientific notation and percent (50\% is one half). It
	// ignores $, degrees, \text{}, spacing and sizing commands, and a leading "x =". Lists, tuples and intervals are compared
	// entry by entry, sets \{…\} in any order. Words after a number are an error: "3 bolts" is not 3.
	Numeric Match = "numeric"
	// Units is Numeric with an optional unit after a number, in words, as a symbol or as \text{}. If both sides have a unit,
	// the units must agree; one missing unit is accepted. A percent sign may be a unit or a factor: 20\% is 20 and 1/5.
	Units Match = "units"
	// Math compares meanings. It parses the LaTeX or plain text of both, and compares expressions, equations, lists, sets,
	// intervals, matrices and units as such; see package equiv. In doubt, two answers differ.
	Math Match = "math"
)

// ParseMatch parses the name of a rule.
func ParseMatch(name string) (Match, error) {
	switch m := Match(name); m {
	case Exact, Numeric, Units, Math:
		return m, nil
	}
	return "", fmt.Errorf("unknown answer match %q; choose numeric, exact, units or math", name)
}

// maxAnswer is the maximum length in bytes of an answer compared as mathematics; a longer one equals only itself.
const maxAnswer = 2000

// Same reports whether two answers are the same. It is symmetric.
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

// Verdict is the outcome of a comparison: both sides as parsed, and the deciding rule.
type Verdict = equiv.Verdict

// Compare is Same with reasons.
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

// sameSet pairs entries greedily. Equality is close enough to transitive for the first partner to be as good as any.
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

// quantity is a number with its unit.
type quantity struct {
	value   *big.Rat
	percent bool
	unit    string // canonical, "" for none
}

// share is the value with a percent sign as a factor.
func (q quantity) share() *big.Rat {
	if !q.percent {
		return q.value
	}
	return new(big.Rat).Quo(q.value, big.NewRat(100, 1))
}
