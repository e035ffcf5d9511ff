package equiv

import (
	"slices"

	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// interval is an interval of real numbers; a nil end is infinite. A point is closed at both ends.
type interval struct {
	low, high             *f.Node
	lowClosed, highClosed bool
}

// region is a set of real numbers, possibly the values of a name.
type region struct {
	name   string
	parts  []interval
	strong bool // unambiguous; an open interval may also be a point of the plane
}

// regions compares sets of real numbers in any notation: x ≥ 5, 5 ≤ x and [5, ∞).
func (c *comparison) regions(a, b *f.Node) (equal, ok bool) {
	x, okX := c.region(a)
	if !okX {
		return false, false
	}
	y, okY := c.region(b)
	if !okY || !x.strong && !y.strong {
		return false, false
	}
	if x.name != "" && y.name != "" && x.name != y.name {
		return c.decide("sets of different names", false), true
	}
	p, okX := c.merge(x.parts)
	q, okY := c.merge(y.parts)
	if !okX || !okY {
		return false, false
	}
	return c.decide("intervals", slices.EqualFunc(p, q, c.sameInterval)), true
}

func (c *comparison) sameInterval(a, b interval) bool {
	return a.lowClosed == b.lowClosed && a.highClosed == b.highClosed && c.sameEnd(a.low, b.low) && c.sameEnd(a.high, b.high)
}

func (c *comparison) sameEnd(a, b *f.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	return c.same(a, b)
}

func (c *comparison) region(n *f.Node) (r region, ok bool) {
	switch n.Kind {
	case f.Constant:
		switch n.Text {
		case "R":
			return region{parts: []interval{{}}, strong: true}, true
		case "empty":
			return region{}, true
		}
	case f.Tuple:
		return c.tupleRegion(n)
	case f.Set:
		return pointRegion(n)
	case f.Relation:
		return c.relationRegion(n)
	case f.Union:
		return c.unionRegion(n)
	case f.List:
		return c.listRegion(n)
	}
	return r, false
}

// tupleRegion reads (1, 2] as an interval, but not (2, 1).
func (c *comparison) tupleRegion(n *f.Node) (r region, ok bool) {
	if len(n.Args) != 2 || n.Text == "<>" {
		return r, false
	}
	i := interval{low: n.Args[0], high: n.Args[1], lowClosed: n.Text[0] == '[', highClosed: n.Text[1] == ']'}
	infinite := false
	switch infinity(i.low) {
	case -1:
		i.low, i.lowClosed, infinite = nil, false, true
	case 1:
		return r, false
	}
	switch infinity(i.high) {
	case 1:
		i.high, i.highClosed, infinite = nil, false, true
	case -1:
		return r, false
	}
	for _, end := range []*f.Node{i.low, i.high} {
		if end != nil && (!constant(end) || shaped(end) || hasSign(end)) {
			return r, false
		}
	}
	if i.low != nil && i.high != nil {
		if order, ok := c.order(i.low, i.high); !ok || order > 0 {
			return r, false
		}
	}
	return region{parts: []interval{i}, strong: infinite || mixed(n.Text)}, true
}

// infinity is the sign of an infinite end, else 0.
func infinity(n *f.Node) int {
	switch {
	case n.Is(f.Constant, "infinity"):
		return 1
	case n.Kind == f.Product && len(n.Args) == 2 && n.Args[0].Kind == f.Number && n.Args[0].Num.Sign() < 0 && infinity(n.Args[1]) == 1:
		return -1
	}
	return 0
}

// pointRegion reads a set of numbers as points.
func pointRegion(n *f.Node) (r region, ok bool) {
	for _, arg := range entries(n) {
		if !constant(arg) || shaped(arg) {
			return r, false
		}
		r.parts = append(r.parts, interval{arg, arg, true, true})
	}
	return r, true
}

func (c *comparison) unionRegion(n *f.Node) (r region, ok bool) {
	for i, arg := range n.Args {
		part, ok := c.region(arg)
		if !ok || part.name != "" {
			return r, false
		}
		switch {
		case i == 0:
			r.parts = part.parts
		case n.Text == "cup":
			r.parts = append(slices.Clone(r.parts), part.parts...)
		case n.Text == "setminus":
			for _, p := range part.parts {
				if r.parts, ok = c.cut(r.parts, outside(p)); !ok {
					return r, false
				}
			}
		default:
			if r.parts, ok = c.cut(r.parts, part.parts); !ok {
				return r, false
			}
		}
		if len(r.parts) > maxParts {
			return r, false
		}
	}
	r.strong = true
	return r, true
}

// maxParts bounds the intervals of a set.
const maxParts = 20

// outside is the complement of an interval.
func outside(p interval) (out []interval) {
	if p.low != nil {
		out = append(out, interval{high: p.low, highClosed: !p.lowClosed})
	}
	if p.high != nil {
		out = append(out, interval{low: p.high, lowClosed: !p.highClosed})
	}
	return out
}

// cut is the intersection of two sets.
func (c *comparison) cut(a, b []interval) (out []interval, ok bool) {
	for _, p := range b {
		piece, ok := c.intersect(a, p)
		if !ok {
			return nil, false
		}
		out = append(out, piece...)
	}
	return c.merge(out)
}

// without removes a point from intervals.
func (c *comparison) without(parts []interval, point *f.Node) (out []interval, ok bool) {
	for _, p := range parts {
		above, below := -1, 1
		if p.low != nil {
			if above, ok = c.order(p.low, point); !ok {
				return nil, false
			}
		}
		if p.high != nil {
			if below, ok = c.order(p.high, point); !ok {
				return nil, false
			}
		}
		switch {
		case above > 0 || below < 0:
			out = append(out, p)
		case above == 0 && below == 0:
		case above == 0:
			p.lowClosed = false
			out = append(out, p)
		case below == 0:
			p.highClosed = false
			out = append(out, p)
		default:
			out = append(out, interval{p.low, point, p.lowClosed, false}, interval{point, p.high, false, p.highClosed})
		}
	}
	return out, true
}

// merge sorts intervals and joins adjacent ones.
func (c *comparison) merge(parts []interval) (out []interval, ok bool) {
	if len(parts) > maxParts {
		return nil, false
	}
	ok = true
	compare := func(a, b *f.Node) int {
		order, known := c.order(a, b)
		ok = ok && known
		return order
	}
	sorted := slices.Clone(parts)
	slices.SortStableFunc(sorted, func(a, b interval) int {
		switch {
		case a.low == nil && b.low == nil:
			return 0
		case a.low == nil:
			return -1
		case b.low == nil:
			return 1
		}
		order := compare(a.low, b.low)
		if order == 0 && a.lowClosed != b.lowClosed {
			if a.lowClosed {
				return -1
			}
			return 1
		}
		return order
	})
	for _, p := range sorted {
		if p.low != nil && p.high != nil {
			if order := compare(p.low, p.high); order > 0 || order == 0 && !(p.lowClosed && p.highClosed) {
				continue // empty
			}
		}
		if len(out) == 0 {
			out = append(out, p)
			continue
		}
		last := &out[len(out)-1]
		if last.high != nil && p.low != nil {
			if gap := compare(last.high, p.low); gap < 0 || gap == 0 && !last.highClosed && !p.lowClosed {
				out = append(out, p)
				continue
			}
		}
		switch {
		case last.high == nil:
		case p.high == nil:
			last.high, last.highClosed = nil, false
		default:
			if order := compare(last.high, p.high); order < 0 {
				last.high, last.highClosed = p.high, p.highClosed
			} else if order == 0 {
				last.highClosed = last.highClosed || p.highClosed
			}
		}
	}
	return out, ok
}
