package equiv

import (
	"slices"

	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// relationRegion converts inequalities between one name and constants to the set of its values: x ≥ 5, −2 < x ≤ 7, x ≠ 3,
// −x > −1.
func (c *comparison) relationRegion(n *f.Node) (r region, ok bool) {
	r.parts, r.strong = []interval{{}}, true
	for _, s := range steps(n) {
		if s.op == "notin" {
			return r, false
		}
		if size, bound, op := c.absolute(s); size != "" {
			if r.name != "" && size != r.name {
				return r, false
			}
			r.name = size
			if r.parts, ok = c.within(r.parts, bound, op); !ok {
				return r, false
			}
			continue
		}
		if s.op == "!=" && hasSign(s.right) { // x ≠ ±1
			lower := step{s.op, s.left, chooseSign(s.right, "-+")}
			name, bound, _, ok := c.solve(lower)
			if !ok || r.name != "" && name != r.name {
				return r, false
			}
			if r.parts, ok = c.without(r.parts, bound); !ok {
				return r, false
			}
			s.right = chooseSign(s.right, "+-")
		}
		name, bound, op, ok := c.solve(s)
		if !ok || r.name != "" && name != r.name {
			return r, false
		}
		r.name = name
		if op == "!=" {
			if r.parts, ok = c.without(r.parts, bound); !ok {
				return r, false
			}
			continue
		}
		part := interval{}
		switch op {
		case "<", "<=":
			part.high, part.highClosed = bound, op == "<="
		case ">", ">=":
			part.low, part.lowClosed = bound, op == ">="
		default:
			return r, false
		}
		if r.parts, ok = c.intersect(r.parts, part); !ok {
			return r, false
		}
	}
	return r, true
}

// absolute reads |x| < 3, 3 > |x| and so on. Names that are complex by convention do not qualify.
func (c *comparison) absolute(s step) (name string, bound *f.Node, op string) {
	if s.right.Is(f.Call, "abs") {
		s = step{flipped[s.op], s.right, s.left}
	}
	if !s.left.Is(f.Call, "abs") || s.left.Args[0].Kind != f.Name || !constant(s.right) || shaped(s.right) || hasSign(s.right) || infinity(s.right) != 0 {
		return "", nil, ""
	}
	if name = s.left.Args[0].Text; name == "z" || name == "w" || s.op == "!=" || flipped[s.op] == s.op || flipped[s.op] == "" {
		return "", nil, ""
	}
	if sign, ok := c.order(s.right, f.Int(0)); !ok || sign <= 0 {
		return "", nil, ""
	}
	return name, s.right, s.op
}

// within intersects intervals with |x| below or above a positive bound.
func (c *comparison) within(parts []interval, bound *f.Node, op string) (out []interval, ok bool) {
	closed := op == "<=" || op == ">="
	if op == "<" || op == "<=" {
		return c.intersect(parts, interval{f.Negative(bound), bound, closed, closed})
	}
	for _, ray := range []interval{{high: f.Negative(bound), highClosed: closed}, {low: bound, lowClosed: closed}} {
		piece, ok := c.intersect(parts, ray)
		if !ok {
			return nil, false
		}
		out = append(out, piece...)
	}
	return out, true
}

// solve brings a linear inequality of one name into the form name, operator, bound.
func (c *comparison) solve(s step) (name string, bound *f.Node, op string, ok bool) {
	switch s.op {
	case "<", "<=", ">", ">=", "!=":
	default:
		return "", nil, "", false
	}
	plain := func(n *f.Node) bool { return constant(n) && !shaped(n) && !hasSign(n) }
	named := func(n *f.Node) bool { return n.Kind == f.Name || n.Kind == f.Apply }
	switch {
	case named(s.left) && plain(s.right) && infinity(s.right) == 0:
		return s.left.String(), s.right, s.op, true
	case named(s.right) && plain(s.left) && infinity(s.left) == 0:
		return s.right.String(), s.left, flipped[s.op], true
	case infinity(s.left) != 0 && s.right.Kind == f.Name, infinity(s.right) != 0:
		return "", nil, "", false
	}
	if shaped(s.left) || shaped(s.right) {
		return "", nil, "", false
	}
	n := newNormal(c)
	form, ok := n.form(difference(s))
	if !ok {
		return "", nil, "", false
	}
	name, slope, root, ok := n.linear(form)
	if !ok {
		return "", nil, "", false
	}
	op = s.op
	if slope.Sign() < 0 {
		op = flipped[op]
	}
	return name, &f.Node{Kind: f.Number, Num: root}, op, true
}

func (c *comparison) intersect(parts []interval, with interval) (out []interval, ok bool) {
	for _, p := range parts {
		if with.low != nil {
			order := -1
			if p.low != nil {
				if order, ok = c.order(p.low, with.low); !ok {
					return nil, false
				}
			}
			if order < 0 || order == 0 && !with.lowClosed {
				p.low, p.lowClosed = with.low, with.lowClosed
			}
		}
		if with.high != nil {
			order := 1
			if p.high != nil {
				if order, ok = c.order(p.high, with.high); !ok {
					return nil, false
				}
			}
			if order > 0 || order == 0 && !with.highClosed {
				p.high, p.highClosed = with.high, with.highClosed
			}
		}
		out = append(out, p)
	}
	return out, true
}

// listRegion reads several inequalities: "or" unites them, "and" intersects them, and a comma intersects them unless that is
// empty.
func (c *comparison) listRegion(n *f.Node) (r region, ok bool) {
	var all []region
	excluded := true
	for i, arg := range n.Args {
		if arg.Kind != f.Relation && !(i > 0 && excluded) && !(arg.Kind == f.Tuple && n.Text == "or") {
			return r, false
		}
		if arg.Kind != f.Relation && arg.Kind != f.Tuple && excluded { // x ≠ 1, 2
			arg = &f.Node{Kind: f.Relation, Ops: []string{"!="}, Args: []*f.Node{f.Of(f.Name, all[0].name), arg}}
		}
		part, ok := c.region(c.simplify(arg))
		if !ok || part.name == "" && arg.Kind != f.Tuple && !(arg.Kind == f.Relation && arg.Ops[0] == "in") || i > 0 && part.name != all[0].name {
			return r, false
		}
		excluded = excluded && arg.Kind == f.Relation && arg.Ops[0] == "!="
		all = append(all, part)
	}
	r = region{name: all[0].name, strong: slices.ContainsFunc(all, func(part region) bool { return part.strong })}
	if n.Text != "or" {
		r.parts = all[0].parts
		for _, part := range all[1:] {
			if r.parts, ok = c.cut(r.parts, part.parts); !ok {
				return r, false
			}
		}
		merged, ok := c.merge(r.parts)
		if !ok {
			return r, false
		}
		if len(merged) > 0 || n.Text == "and" {
			return r, true
		}
		r.parts = nil
	}
	for _, part := range all {
		r.parts = append(slices.Clone(r.parts), part.parts...)
	}
	return r, true
}
