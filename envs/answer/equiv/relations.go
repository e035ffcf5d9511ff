package equiv

import (
	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// flipped are the operators read from right to left.
var flipped = map[string]string{"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<=", "~": "~", "equiv": "equiv", "sim": "sim", "cong": "cong", "perp": "perp", "parallel": "parallel"}

// relations compares equations up to a non-zero factor, inequalities up to a positive one, and chains part by part.
func (c *comparison) relations(a, b *f.Node) bool {
	if a.Kind != f.Relation || b.Kind != f.Relation {
		return c.decide("a relation against a value", false)
	}
	x, y := steps(a), steps(b)
	if len(x) != len(y) {
		return c.decide("different numbers of relations", false)
	}
	if len(x) > 1 {
		taken := make([]bool, len(y))
	next:
		for _, s := range x {
			for i, t := range y {
				if !taken[i] && c.relation(s, t) {
					taken[i] = true
					continue next
				}
			}
			return c.decide("chain, step by step", false)
		}
		return c.decide("chain, step by step", true)
	}
	return c.relation(x[0], y[0])
}

// step is a relation between two sides.
type step struct {
	op          string
	left, right *f.Node
}

func steps(n *f.Node) []step {
	var out []step
	for i, op := range n.Ops {
		out = append(out, step{op, n.Args[i], n.Args[i+1]})
	}
	return out
}

func (c *comparison) relation(a, b step) bool {
	if sided(a.op) && !sided(b.op) || a.op == flipped[b.op] && a.op != b.op {
		b = step{flipped[b.op], b.right, b.left}
	}
	if a.op != b.op {
		return c.decide("different relations", false)
	}
	if c.side(a.left, b.left) && c.side(a.right, b.right) {
		return c.decide("both sides", true)
	}
	if _, symmetric := flipped[a.op]; !symmetric {
		return c.decide("both sides", false)
	}
	if flipped[a.op] == a.op && c.side(a.left, b.right) && c.side(a.right, b.left) {
		return c.decide("both sides", true)
	}
	if shaped(a.left) || shaped(a.right) || shaped(b.left) || shaped(b.right) {
		return c.decide("both sides", false)
	}
	switch a.op {
	case "=", "!=":
		return c.decide("equation up to a factor", c.proportional(difference(a), difference(b), false))
	case "<", ">", "<=", ">=":
		if c.proportional(difference(a), difference(b), true) {
			return c.decide("inequality up to a positive factor", true)
		}
		return c.decide("inequality up to a positive factor", false)
	}
	return c.decide("both sides", false)
}

func sided(op string) bool { return op == "<" || op == "<=" }

// side compares without changing the recorded rule.
func (c *comparison) side(a, b *f.Node) bool { return a.String() == b.String() || c.same(a, b) }

// difference is left − right.
func difference(s step) *f.Node { return f.Of(f.Sum, "", s.left, f.Negative(s.right)) }

// proportional reports whether two expressions with variables differ by a constant non-zero factor, positive if required.
func (c *comparison) proportional(a, b *f.Node, positive bool) bool {
	if constant(a) || constant(b) {
		return false
	}
	n := newNormal(c)
	if p, ok := n.form(a); ok {
		if q, ok := n.form(b); ok {
			if factor, ok := n.factor(p, q); ok {
				return factor.Sign() > 0 || !positive
			}
			if !positive && n.cleared(p) && n.cleared(q) {
				if _, ok := ratio(p.above, q.above); ok {
					return true
				}
			}
			if n.decides() {
				return false
			}
		}
	}
	return c.ratioIsConstant(a, b, positive)
}
