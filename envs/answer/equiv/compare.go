package equiv

import (
	"slices"
	"strings"

	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// Verdict is the outcome of a comparison.
type Verdict struct {
	Equal bool
	Rule  string // the deciding rule
	// Gold and Answer are the two sides as parsed, fully bracketed, or as “text”.
	Gold, Answer string
}

// Compare reports whether an answer means the same as the correct one. It is symmetric.
func Compare(gold, answer string) Verdict {
	if equal, ok := plainNumbers(gold, answer); ok {
		return Verdict{equal, "numbers", f.Clean(gold), f.Clean(answer)}
	}
	d := decide(strings.TrimSpace(gold), strings.TrimSpace(answer))
	return Verdict{d.equal, d.rule, show(d.gold, gold), show(d.answer, answer)}
}

// Equal is Compare without reasons.
func Equal(gold, answer string) bool {
	if equal, ok := plainNumbers(gold, answer); ok {
		return equal
	}
	return decide(strings.TrimSpace(gold), strings.TrimSpace(answer)).equal
}

// decision is a verdict with the parsed sides, nil for text.
type decision struct {
	equal        bool
	rule         string
	gold, answer *f.Node
}

func decide(gold, answer string) (d decision) {
	left, right := f.Clean(gold), f.Clean(answer)
	a, errA := f.Readings(left)
	b, errB := f.Readings(right)
	if errA == nil {
		d.gold = a[0]
	}
	if errB == nil {
		d.answer = b[0]
	}
	if gold == answer {
		d.equal, d.rule = true, "the same text"
		return d
	}
	if x, y := choice(left), choice(right); x != 0 && y != 0 && (x == y || bare(left) && bare(right)) {
		d.equal, d.rule = x == y, "multiple choice"
		return d
	}
	if equal, ok := times(gold, answer); ok {
		d.equal, d.rule = equal, "times of day"
		return d
	}
	if errA != nil || errB != nil {
		d.equal, d.rule = sameText(gold, answer), "text"
		return d
	}
	for i, x := range a {
		for j, y := range b {
			if i > 0 && j > 0 || i > 0 && !other(y, x) || j > 0 && !other(x, y) {
				continue
			}
			c := &comparison{}
			equal := c.same(x, y)
			if i+j == 0 || equal {
				d.equal, d.rule = equal, c.rule
			}
			if equal {
				d.gold, d.answer = x, y
				return d
			}
		}
	}
	return d
}

// other reports whether another reading may be used: a list if the other side is one, a number if the other side is one.
func other(primary, reading *f.Node) bool {
	return (primary.Kind == f.List || primary.Kind == f.Tuple) == (reading.Kind == f.List || reading.Kind == f.Tuple)
}

func show(n *f.Node, answer string) string {
	if n == nil {
		return "“" + cut(normalText(strings.TrimSpace(answer))) + "”"
	}
	return cut(n.String())
}

// cut truncates what is shown.
func cut(s string) string {
	const most = 300
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Limits on the work per comparison.
const (
	maxComparisons = 400  // of parts with each other
	maxArithmetic  = 5000 // operations at 128 bits, or equivalent
	maxProducts    = 3000 // of polynomial terms
)

// comparison is a pair of readings with its cost so far.
type comparison struct {
	rule                              string
	comparisons, arithmetic, products int
}

// decide records the rule.
func (c *comparison) decide(rule string, equal bool) bool {
	c.rule = rule
	return equal
}

// same compares answers of any kind.
func (c *comparison) same(a, b *f.Node) bool {
	if c.comparisons++; c.comparisons > maxComparisons {
		return c.decide("too much to compare", false)
	}
	if x, y := member(a), member(b); x != "" && y != "" && x != y {
		return c.decide("sets of different names", false)
	}
	a, b = c.simplify(a), c.simplify(b)
	if a.Kind == f.Number && b.Kind == f.Number {
		return c.numbers(a, b)
	}
	if a.String() == b.String() {
		if c.rule == "" {
			c.rule = "the same form"
		}
		return true
	}
	if a.Kind == f.Text || b.Kind == f.Text {
		return c.decide("text", sameTextNodes(a, b))
	}
	if equal, ok := c.named(a, b); ok {
		return equal
	}
	if equal, ok := c.regions(a, b); ok {
		return equal
	}
	if a.Kind == f.Relation || b.Kind == f.Relation {
		return c.relations(a, b)
	}
	if equal, ok := c.lists(a, b); ok {
		return equal
	}
	if equal, ok := c.structures(a, b); ok {
		return equal
	}
	return c.values(a, b)
}

// structures compares tuples, vectors, matrices, unions and ratios part by part.
func (c *comparison) structures(a, b *f.Node) (equal, ok bool) {
	x, bracketsX := vector(a)
	y, bracketsY := vector(b)
	switch {
	case x != nil && y != nil:
		fits := bracketsX == bracketsY || bracketsX == "" || bracketsY == "" || len(x) > 2 && !mixed(bracketsX) && !mixed(bracketsY)
		return c.decide("tuple, entry by entry", fits && c.inOrder(x, y)), true
	case a.Kind == f.Matrix && b.Kind == f.Matrix:
		if len(a.Args) != len(b.Args) {
			return c.decide("matrices of different sizes", false), true
		}
		for i := range a.Args {
			if !c.inOrder(a.Args[i].Args, b.Args[i].Args) {
				return c.decide("matrix, entry by entry", false), true
			}
		}
		return c.decide("matrix, entry by entry", true), true
	case a.Kind == f.Ratio && b.Kind == f.Ratio:
		return c.decide("ratio, part by part", c.inOrder(a.Args, b.Args)), true
	case a.Kind == f.Union && b.Kind == f.Union:
		return c.decide("union, part by part", a.Text == b.Text && (c.inOrder(a.Args, b.Args) || a.Text != "setminus" && c.anyOrder(a.Args, b.Args))), true
	case a.Kind == f.Base && b.Kind == f.Base:
		return c.decide("number in a base", a.Places == b.Places && a.Num.Cmp(b.Num) == 0), true
	case shaped(a) || shaped(b):
		return c.decide("of different shapes", false), true
	}
	return false, false
}

// shaped reports whether a node is not a single value.
func shaped(n *f.Node) bool {
	switch n.Kind {
	case f.Tuple, f.Matrix, f.Ratio, f.Union, f.Base, f.Set, f.List, f.Relation, f.Text:
		return true
	}
	return false
}

// vector returns the entries of a tuple, or of a matrix with one row or column. brackets is "" if it cannot be an interval.
func vector(n *f.Node) (entries []*f.Node, brackets string) {
	switch {
	case n.Kind == f.Tuple && n.Text == "<>":
		return n.Args, ""
	case n.Kind == f.Tuple:
		return n.Args, n.Text
	case n.Kind == f.Matrix && len(n.Args) == 1 && len(n.Args[0].Args) > 1:
		return n.Args[0].Args, ""
	case n.Kind == f.Matrix && len(n.Args) > 1 && len(n.Args[0].Args) == 1:
		for _, row := range n.Args {
			entries = append(entries, row.Args[0])
		}
		return entries, ""
	}
	return nil, ""
}

func mixed(brackets string) bool { return brackets == "(]" || brackets == "[)" }

// inOrder compares entries one by one.
func (c *comparison) inOrder(a, b []*f.Node) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !c.same(a[i], b[i]) {
			return false
		}
	}
	return true
}

// anyOrder pairs entries in any order.
func (c *comparison) anyOrder(a, b []*f.Node) bool {
	if len(a) != len(b) {
		return false
	}
	taken := make([]bool, len(b))
next:
	for _, x := range a {
		for i, y := range b {
			if !taken[i] && (x.Kind == f.Set) == (y.Kind == f.Set) && c.same(x, y) {
				taken[i] = true
				continue next
			}
		}
		return false
	}
	return true
}

// lists compares bare lists and sets in any order; a comma-separated list and a tuple must be in the same order. A set with
// one entry equals that entry.
func (c *comparison) lists(a, b *f.Node) (equal, ok bool) {
	x, y := entries(a), entries(b)
	switch {
	case x == nil && y == nil:
		return false, false
	case x != nil && y != nil:
		if a.Kind == f.List && b.Kind == f.List && a.Text != "" && b.Text != "" && a.Text != b.Text && !slices.ContainsFunc(x, notName) {
			return c.decide("and against or", false), true
		}
		equal = c.anyOrder(x, y) || unrepeated(a, x) && unrepeated(b, y) && c.anyOrder(c.distinct(x), c.distinct(y))
		return c.decide("list in any order", equal), true
	}
	if x == nil {
		a, b, x = b, a, y
	}
	if v, brackets := vector(b); v != nil && a.Kind == f.List && a.Text == "" && (brackets == "()" || brackets == "") {
		equal = c.inOrder(x, v)
		return c.decide("list against a tuple", equal), true
	}
	if len(x) == 1 && entries(b) == nil && !shaped(b) {
		return c.same(x[0], b), true
	}
	return c.decide("a list against one value", false), true
}

func notName(n *f.Node) bool { return n.Kind != f.Name }

// unrepeated reports whether duplicate entries count once: in sets, and among points.
func unrepeated(n *f.Node, entries []*f.Node) bool {
	return n.Kind == f.Set || len(entries) > 0 && !slices.ContainsFunc(entries, func(entry *f.Node) bool { return entry.Kind != f.Tuple })
}

// distinct drops entries equal to an earlier one.
func (c *comparison) distinct(entries []*f.Node) (out []*f.Node) {
	for _, entry := range entries {
		if !slices.ContainsFunc(out, func(other *f.Node) bool { return c.same(entry, other) }) {
			out = append(out, entry)
		}
	}
	return out
}

// entries returns the entries of a bare list or set, or the two values of a ±; else nil.
func entries(n *f.Node) []*f.Node {
	switch n.Kind {
	case f.List, f.Set:
		var out []*f.Node
		for _, arg := range n.Args {
			if both := entries(arg); both != nil && arg.Kind != f.Set {
				out = append(out, both...)
				continue
			}
			out = append(out, arg)
		}
		return out
	case f.Tuple: // (±1, 0); with several signs the pairing is ambiguous
		if signs(n) != 1 {
			return nil
		}
	case f.Relation, f.Matrix, f.Union, f.Ratio, f.Text:
		return nil
	case f.Constant:
		if n.Text == "empty" {
			return []*f.Node{}
		}
	}
	if hasSign(n) {
		return []*f.Node{chooseSign(n, "+-"), chooseSign(n, "-+")}
	}
	return nil
}

func hasSign(n *f.Node) bool { return signs(n) > 0 }

// signs counts ± and ∓.
func signs(n *f.Node) (count int) {
	if n.Kind == f.Sign {
		count++
	}
	for _, arg := range n.Args {
		count += signs(arg)
	}
	return count
}

// chooseSign replaces one of ± and ∓ by +, the other by −.
func chooseSign(n *f.Node, positive string) *f.Node {
	if !hasSign(n) {
		return n
	}
	c := n.Clone()
	c.Args = make([]*f.Node, len(n.Args))
	for i, arg := range n.Args {
		c.Args[i] = chooseSign(arg, positive)
	}
	switch {
	case n.Kind != f.Sign:
		return c
	case n.Text == positive:
		return c.Args[0]
	}
	return f.Negative(c.Args[0])
}
