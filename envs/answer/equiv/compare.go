package equiv

import (
	"slices"
	"strings"

	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// Verdict is the outcome of a comparison.
type Verdict struct {
	Equal bool
	Rule  string // what decided
	// Gold and Answer are the two sides as they were read: with all brackets, or as
	// “text”.
	Gold, Answer string
}

// Compare says whether an answer means the same as the right one. It is symmetric.
func Compare(gold, answer string) Verdict {
	if equal, ok := plainNumbers(gold, answer); ok {
		return Verdict{equal, "numbers", f.Clean(gold), f.Clean(answer)}
	}
	d := decide(strings.TrimSpace(gold), strings.TrimSpace(answer))
	return Verdict{d.equal, d.rule, show(d.gold, gold), show(d.answer, answer)}
}

// Equal is Compare without the reasons.
func Equal(gold, answer string) bool {
	if equal, ok := plainNumbers(gold, answer); ok {
		return equal
	}
	return decide(strings.TrimSpace(gold), strings.TrimSpace(answer)).equal
}

// decision is a verdict with the readings that it is about, nil for text.
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

// other says whether another reading may be taken: a list where the other side is one,
// a number where the other side is a number.
func other(primary, reading *f.Node) bool {
	return (primary.Kind == f.List || primary.Kind == f.Tuple) == (reading.Kind == f.List || reading.Kind == f.Tuple)
}

func show(n *f.Node, answer string) string {
	if n == nil {
		return "“" + cut(normalText(strings.TrimSpace(answer))) + "”"
	}
	return cut(n.String())
}

// cut keeps what is shown short.
func cut(s string) string {
	const most = 300
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// Bounds of the work for one comparison.
const (
	maxComparisons = 400  // of parts with each other
	maxArithmetic  = 5000 // operations at 128 bits, or as much work at more
	maxProducts    = 3000 // of terms of polynomials
)

// comparison is one pair of readings, with what it has cost.
type comparison struct {
	rule                              string
	comparisons, arithmetic, products int
}

// decide notes the rule.
func (c *comparison) decide(rule string, equal bool) bool {
	c.rule = rule
	return equal
}

// same compares answers of any shape.
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

// shaped says whether a node is no single value.
func shaped(n *f.Node) bool {
	switch n.Kind {
	case f.Tuple, f.Matrix, f.Ratio, f.Union, f.Base, f.Set, f.List, f.Relation, f.Text:
		return true
	}
	return false
}

// vector is the entries of a tuple, or of a matrix of one row or column. brackets are
// "" where nothing can be an interval.
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

// anyOrder pairs the entries off.
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

// lists compares bare lists and sets, in any order; a list of commas alone and a tuple
// must be in the same order. A set of one entry is that entry.
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

// unrepeated says whether an entry that is written twice counts once: in a set, and of
// points.
func unrepeated(n *f.Node, entries []*f.Node) bool {
	return n.Kind == f.Set || len(entries) > 0 && !slices.ContainsFunc(entries, func(entry *f.Node) bool { return entry.Kind != f.Tuple })
}

// distinct leaves the entries out that are the same as one before them.
func (c *comparison) distinct(entries []*f.Node) (out []*f.Node) {
	for _, entry := range entries {
		if !slices.ContainsFunc(out, func(other *f.Node) bool { return c.same(entry, other) }) {
			out = append(out, entry)
		}
	}
	return out
}

// entries are those of a bare list or set, and the two values of what has a ±; nil for
// anything else.
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
	case f.Tuple: // (±1, 0); of several signs it is not clear which go together
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

// chooseSign takes + for one of ± and ∓, and − for the other.
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
