package equiv

import (
	"slices"
	"strings"

	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// isName reports whether the left side of an equation only names its right side: x, f(x), \angle ABC, AB for a length,
// words.
func isName(n *f.Node) bool {
	switch n.Kind {
	case f.Name, f.Apply, f.Text:
		return true
	case f.Product: // AB, and m\angle ABC
		last := n.Args[len(n.Args)-1]
		if len(n.Args) == 2 && n.Args[0].Is(f.Name, "m") && last.Kind == f.Name && strings.HasPrefix(last.Text, "angle ") {
			return true
		}
		return figure(n)
	case f.Ratio: // A:B, S_1:S_2
		return !slices.ContainsFunc(n.Args, func(arg *f.Node) bool { return arg.Kind != f.Name && !figure(arg) })
	case f.Quotient: // \frac{AB}{CD}
		return figure(n.Args[0]) && figure(n.Args[1])
	case f.Call: // |AB|
		return n.Text == "abs" && figure(n.Args[0])
	}
	return false
}

// figure reports whether n is two to four capitals, like the endpoints of a line, or a capital with an index.
func figure(n *f.Node) bool {
	if n.Kind == f.Name {
		return len(n.Text) > 2 && capital(n.Text[0]) && n.Text[1] == '_'
	}
	return n.Kind == f.Product && len(n.Args) <= 4 && !slices.ContainsFunc(n.Args, func(arg *f.Node) bool {
		return arg.Kind != f.Name || len(arg.Text) != 1 || !capital(arg.Text[0])
	})
}

func capital(c byte) bool { return 'A' <= c && c <= 'Z' }

// member returns the name that an answer puts in a set or bounds; "" if there is none.
func member(n *f.Node) string {
	if n.Kind != f.Relation {
		return ""
	}
	switch n.Ops[0] {
	case "in":
		if isName(n.Args[0]) {
			return n.Args[0].String()
		}
	case "<", "<=", ">", ">=", "!=":
		if all := names(n, nil); len(all) == 1 {
			return all[0]
		}
	}
	return ""
}

// assigned are names with their values: x = 1, y = 2.
type assigned struct {
	names  []string
	values []*f.Node
	tuple  bool // from (x, y) = (1, 2)
}

// one reports whether there is a single name, possibly with several values.
func (a *assigned) one() bool {
	for _, name := range a.names {
		if name != a.names[0] {
			return false
		}
	}
	return true
}

// assignments reads an answer as names with values.
func assignments(n *f.Node) *assigned {
	switch n.Kind {
	case f.Relation:
		return assignment(n)
	case f.List, f.Set:
		out := &assigned{}
		for i, arg := range n.Args {
			a := (*assigned)(nil)
			if arg.Kind == f.Relation {
				a = assignment(arg)
			} else if i > 0 && out.one() && !out.tuple && n.Kind == f.List { // n = 1, 2, 3
				a = &assigned{names: out.names[:1], values: []*f.Node{arg}}
			}
			if a == nil || a.tuple && len(n.Args) > 1 && len(a.names) > 1 && !sameNames(out, a) {
				return nil
			}
			if a.tuple { // (x, y) = (1, 2) or (x, y) = (2, 1)
				a = &assigned{names: []string{strings.Join(a.names, ", ")}, values: []*f.Node{f.Of(f.Tuple, "()", a.values...)}}
			}
			out.names = append(out.names, a.names...)
			out.values = append(out.values, a.values...)
		}
		if len(out.names) == 0 {
			return nil
		}
		return out
	}
	return nil
}

func sameNames(out, a *assigned) bool {
	return len(out.names) == 0 || out.one() && out.names[0] == strings.Join(a.names, ", ")
}

// assignment reads an equation or chain: x = 3 + 4 = 7, x = 1/3 ≈ 0.33, 5 = x.
func assignment(n *f.Node) *assigned {
	for _, op := range n.Ops {
		if op != "=" && op != "~" {
			return nil
		}
	}
	if len(n.Args) == 2 && n.Args[0].Kind == f.Tuple && n.Args[1].Kind == f.Tuple && len(n.Args[0].Args) == len(n.Args[1].Args) {
		a := &assigned{values: n.Args[1].Args, tuple: true}
		for _, name := range n.Args[0].Args {
			if !isName(name) {
				return nil
			}
			a.names = append(a.names, name.String())
		}
		return a
	}
	first := n.Args[0]
	if isName(first) {
		value := chainValue(n.Args[1:], n.Ops[1:])
		// x = x + 1 names nothing, and x = y = 3 names two things
		if value == nil || mentions(value, first) {
			return nil
		}
		for _, arg := range n.Args[1 : len(n.Args)-1] {
			if arg.Kind == f.Name && arg != value {
				return nil
			}
		}
		return &assigned{names: []string{first.String()}, values: []*f.Node{value}}
	}
	if last := n.Args[len(n.Args)-1]; len(n.Args) == 2 && last.Kind == f.Name && constant(first) && n.Ops[0] == "=" {
		return &assigned{names: []string{last.String()}, values: []*f.Node{first}}
	}
	return nil
}

// chainValue is the value of a chain of = and ≈: its last part before the first ≈.
func chainValue(args []*f.Node, ops []string) *f.Node {
	for i, op := range ops {
		if op == "~" {
			return args[i]
		}
	}
	return args[len(args)-1]
}

func mentions(n, name *f.Node) bool {
	if n.Kind == name.Kind && n.String() == name.String() {
		return true
	}
	return slices.ContainsFunc(n.Args, func(arg *f.Node) bool { return mentions(arg, name) })
}

// constant reports whether n has no variable and no unknown function.
func constant(n *f.Node) bool {
	switch n.Kind {
	case f.Name, f.Apply, f.Text, f.Big, f.Relation:
		return false
	}
	return !slices.ContainsFunc(n.Args, func(arg *f.Node) bool { return !constant(arg) })
}

// chain is the value of a chain without a name: 160 + 80 = 240, √3/3 ≈ 0.577. An equation with a variable is not a chain,
// unless all sides are the same expression.
func (c *comparison) chain(n *f.Node) *f.Node {
	if n.Kind != f.Relation {
		return nil
	}
	for _, op := range n.Ops {
		if op != "=" && op != "~" {
			return nil
		}
	}
	value := chainValue(n.Args, n.Ops)
	if constant(n.Args[0]) && constant(value) && !shaped(value) {
		return value
	}
	if isName(n.Args[0]) || constant(n.Args[0]) || constant(value) {
		return nil
	}
	for i, op := range n.Ops {
		if op == "~" {
			break
		}
		if shaped(n.Args[i]) || shaped(n.Args[i+1]) || !c.values(n.Args[i], n.Args[i+1]) {
			return nil
		}
	}
	return value
}

// named compares sides, one of which names its values.
func (c *comparison) named(a, b *f.Node) (equal, ok bool) {
	x, y := assignments(a), assignments(b)
	if x == nil && y == nil {
		v, w := c.chain(a), c.chain(b)
		if v == nil && w == nil {
			return false, false
		}
		if v == nil {
			v = a
		}
		if w == nil {
			w = b
		}
		return c.same(v, w), true
	}
	if x != nil && y != nil {
		return c.bothNamed(a, b, x, y), true
	}
	if x == nil {
		a, b, x = b, a, y
	}
	if v := c.chain(b); v != nil {
		b = v
	}
	switch {
	case b.Kind == f.Relation && len(x.values) == 1: // x = 3 + y is also an equation
		return c.relations(a, b), true
	case b.Kind == f.Relation || b.Kind == f.List && slices.ContainsFunc(b.Args, func(n *f.Node) bool { return n.Kind == f.Relation }):
		if a.Kind == f.List && b.Kind == f.List {
			return c.decide("system, in any order", c.anyOrder(a.Args, b.Args)), true
		}
		return c.decide("names against relations", false), true
	case len(x.values) == 1 && !x.tuple:
		equal = c.same(x.values[0], b)
	case x.one() && !x.tuple:
		equal = c.same(f.Of(f.List, "or", x.values...), b)
	default:
		v, brackets := vector(b)
		if b.Kind == f.List {
			v, brackets = b.Args, "()"
		}
		equal = c.decide("values in order", v != nil && (brackets == "()" || brackets == "") && c.inOrder(x.values, v))
	}
	if equal {
		c.rule = "value without its name: " + c.rule
	}
	return equal, true
}

// bothNamed compares values name by name. Two different single names match only if they name functions: y = 2x and f(x) =
// 2x.
func (c *comparison) bothNamed(a, b *f.Node, x, y *assigned) bool {
	if x.one() && y.one() && x.names[0] == y.names[0] {
		if len(x.values) == 1 && len(y.values) == 1 {
			return c.same(x.values[0], y.values[0])
		}
		return c.decide("values of one name, in any order", c.same(f.Of(f.List, "", x.values...), f.Of(f.List, "", y.values...)))
	}
	if len(x.values) == 1 && len(y.values) == 1 {
		if functionName(x.names[0]) && functionName(y.names[0]) && inverseName(x.names[0]) == inverseName(y.names[0]) && !constant(x.values[0]) && !constant(y.values[0]) && c.same(x.values[0], y.values[0]) {
			return true
		}
		return a.Kind == f.Relation && b.Kind == f.Relation && c.relations(a, b)
	}
	if len(x.names) != len(y.names) || x.one() || y.one() {
		return c.decide("different names", false)
	}
	for i, name := range x.names {
		j := slices.Index(y.names, name)
		if j < 0 || slices.Index(x.names, name) != i || !c.same(x.values[i], y.values[j]) {
			return c.decide("name by name", false)
		}
	}
	return c.decide("name by name", true)
}

func inverseName(name string) bool { return strings.Contains(name, "^-1") }

func functionName(name string) bool {
	return name == "y" || strings.HasSuffix(name, ")") && strings.IndexByte(name, '(') > 0
}
