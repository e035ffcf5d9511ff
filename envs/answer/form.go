package answer

import (
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/answer/formula"
)

// Form says in which form a correct answer counts.
type Form string

const (
	// FinalForm accepts only finished answers: no operation is left that the correct answer does not have. 74 - 70 does
	// not answer a question whose answer is 4.
	FinalForm Form = "final"
	// AnyForm accepts every equivalent answer.
	AnyForm Form = "any"
)

// Finished reports whether answer, which is equal to gold, is fully worked out. This holds for numerals, decimals,
// fractions in lowest terms, mixed numbers, percentages, scientific notation, quantities, and equations ending in one
// of these. Other operations, functions and constants, such as roots and π, are accepted if gold has them too. Text
// that is not a formula is finished.
func Finished(gold, answer string) bool {
	if len(gold) > maxAnswer || len(answer) > maxAnswer {
		return true // compared as text
	}
	readings := read(answer)
	if len(readings) == 0 {
		return true
	}
	allowed := map[string]bool{}
	for _, n := range read(gold) {
		operations(n, allowed)
	}
	return slices.ContainsFunc(readings, func(n *formula.Node) bool {
		if !allowed["relation"] {
			n = lastMember(n)
		}
		left := map[string]bool{}
		operations(n, left)
		for operation := range left {
			if !allowed[operation] {
				return false
			}
		}
		return true
	})
}

// Certain reports whether a text whose last number is right gives it as its answer: it names no other number, or the match
// Math finds the same.
func Certain(gold, text string) bool {
	found, _ := Find(text)
	verdict, by := Decide(gold, text)
	if by == ByWhole {
		found = text
	}
	return verdict.Equal && Finished(gold, found) || onlyNumber(text) != "" && !strings.ContainsAny(text, "·×÷±≠≈≤≥")
}

func read(text string) []*formula.Node {
	readings, err := formula.Readings(formula.Clean(text))
	if err != nil {
		return nil
	}
	return readings
}

// lastMember is the result of a chain of equations: its last member that is not just a name. 74 - 70 = x and
// 74 - 70 = … are not worked out.
func lastMember(n *formula.Node) *formula.Node {
	if n.Kind != formula.Relation || slices.ContainsFunc(n.Ops, func(op string) bool { return op != "=" }) {
		return n
	}
	for _, member := range slices.Backward(n.Args) {
		if member.Kind != formula.Name {
			return member
		}
	}
	return n.Args[len(n.Args)-1]
}

// operations adds the unevaluated operations of n to found.
func operations(n *formula.Node, found map[string]bool) {
	if finalNumber(n) {
		return
	}
	switch n.Kind {
	case formula.Sum, formula.Quotient, formula.Power, formula.Ratio:
		found[fmt.Sprint("kind ", n.Kind)] = true
	case formula.Product:
		if !(len(n.Args) == 2 && isWhole(n.Args[0]) && n.Args[0].Num.Cmp(big.NewRat(-1, 1)) == 0) { // a sign
			found["product"] = true
		}
	case formula.Call, formula.Apply, formula.Big, formula.Constant:
		found["function "+n.Text] = true
	case formula.Relation:
		found["relation"] = true
	}
	for _, arg := range n.Args {
		operations(arg, found)
	}
}

// finalNumber reports whether n is a fraction in lowest terms. The parser reads decimals, mixed numbers and scientific
// notation as numbers.
func finalNumber(n *formula.Node) bool {
	if n.Kind != formula.Quotient || !isWhole(n.Args[0]) || !isWhole(n.Args[1]) || n.Args[1].Num.Sign() == 0 {
		return false
	}
	lowest := new(big.Rat).Quo(n.Args[0].Num, n.Args[1].Num)
	return !lowest.IsInt() && lowest.Denom().CmpAbs(n.Args[1].Num.Num()) == 0
}

func isWhole(n *formula.Node) bool {
	return n.Kind == formula.Number && n.Places == 0 && n.Num.IsInt()
}
