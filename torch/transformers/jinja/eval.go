package jinja

import (
	"slices"
	"strings"
)

// Expressions.
type expr interface{ eval(r *run, s *scope) Value }

type (
	literal  struct{ v Value }
	nameExpr string
	listExpr struct {
		items []expr
		tuple bool
	}
	dictExpr struct {
		line         int
		keys, values []expr
	}
	attrExpr struct {
		line int
		x    expr
		name string
	}
	itemExpr struct {
		line int
		x, i expr
	}
	sliceExpr struct {
		line  int
		x     expr
		parts [3]expr // start, stop, step; nil if absent
	}
	kwargExpr struct {
		name string
		x    expr
	}
	callExpr struct {
		line int
		f    expr
		args []expr
		kw   []kwargExpr
	}
	filterExpr struct {
		line int
		x    expr // nil in a filter block
		name string
		args []expr
		kw   []kwargExpr
	}
	testExpr struct {
		line    int
		x       expr
		negated bool
		name    string
		args    []expr
	}
	binaryExpr struct {
		line int
		op   string
		a, b expr
	}
	compareExpr struct {
		line  int
		first expr
		ops   []string
		rest  []expr
	}
	notExpr  struct{ x expr }
	signExpr struct {
		line  int
		minus bool
		x     expr
	}
	condExpr struct {
		line          int
		cond, yes, no expr // no is nil without an else
	}
)

func (r *run) eval(x expr, s *scope) Value {
	r.enter()
	v := x.eval(r, s)
	r.depth--
	return v
}

func (r *run) evalAll(xs []expr, s *scope) []Value {
	out := make([]Value, len(xs))
	for i, x := range xs {
		out[i] = r.eval(x, s)
	}
	return out
}

func (r *run) evalKw(kw []kwargExpr, s *scope) []kwarg {
	var out []kwarg
	for _, k := range kw {
		if slices.ContainsFunc(out, func(o kwarg) bool { return o.name == k.name }) {
			r.fail("keyword argument %q is given twice", k.name)
		}
		out = append(out, kwarg{k.name, r.eval(k.x, s)})
	}
	return out
}

func (l literal) eval(*run, *scope) Value { return l.v }

func (n nameExpr) eval(_ *run, s *scope) Value {
	if v, ok := s.get(string(n)); ok {
		return v
	}
	return Undefined{"'" + string(n) + "' is undefined"}
}

func (l *listExpr) eval(r *run, s *scope) Value {
	return &List{Items: r.evalAll(l.items, s), Tuple: l.tuple}
}

func (d *dictExpr) eval(r *run, s *scope) Value {
	out := NewDict()
	for i := range d.keys {
		key, ok := r.eval(d.keys[i], s).(string)
		if !ok {
			fail(d.line, "a dictionary's key is no string")
		}
		out.Set(key, r.eval(d.values[i], s))
	}
	return out
}

func (a *attrExpr) eval(r *run, s *scope) Value {
	x := r.eval(a.x, s)
	r.line = a.line
	return r.attribute(x, a.name)
}

func (i *itemExpr) eval(r *run, s *scope) Value {
	x, key := r.eval(i.x, s), r.eval(i.i, s)
	r.line = i.line
	return r.item(x, key)
}

func (n *sliceExpr) eval(r *run, s *scope) Value {
	x := r.eval(n.x, s)
	var at [3]*int64
	for k, part := range n.parts {
		if part == nil {
			continue
		}
		switch v := r.eval(part, s).(type) {
		case nil:
		case int64:
			at[k] = &v
		default:
			fail(n.line, "a slice's bound is %s, not an integer", typeName(v))
		}
	}
	r.line = n.line
	switch x := x.(type) {
	case string:
		runes := []rune(x)
		r.listed(len(runes))
		return string(slice(r, runes, at))
	case *List:
		r.listed(len(x.Items))
		return &List{Items: slice(r, x.Items, at), Tuple: x.Tuple}
	case Undefined:
		r.fail("%s", x.why)
	}
	r.fail("%s cannot be sliced", typeName(x))
	return nil
}

// slice is Python's xs[start:stop:step].
func slice[T any](r *run, xs []T, at [3]*int64) []T {
	n, step := int64(len(xs)), int64(1)
	if at[2] != nil {
		step = *at[2]
	}
	if step == 0 {
		r.fail("a slice's step is zero")
	}
	low, high, start, stop := int64(0), n, int64(0), n
	if step < 0 {
		low, high, start, stop = -1, n-1, n-1, -1
	}
	bound := func(p *int64, otherwise int64) int64 {
		if p == nil {
			return otherwise
		}
		v := *p
		if v < 0 {
			v += n
		}
		return max(low, min(v, high))
	}
	start, stop = bound(at[0], start), bound(at[1], stop)
	var out []T
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		out = append(out, xs[i])
		if step > n || step < -n {
			break
		}
	}
	return out
}

func (c *callExpr) eval(r *run, s *scope) Value { return c.invoke(r, s) }

// invoke calls with the arguments of the expression, followed by more.
func (c *callExpr) invoke(r *run, s *scope, more ...kwarg) Value {
	f := r.eval(c.f, s)
	args, kw := r.evalAll(c.args, s), append(r.evalKw(c.kw, s), more...)
	r.line = c.line
	v := r.call(f, args, kw)
	r.line = c.line
	return v
}

func (f *filterExpr) eval(r *run, s *scope) Value { return f.apply(r, s, r.eval(f.x, s)) }

func (f *filterExpr) apply(r *run, s *scope, x Value) Value {
	args, kw := r.evalAll(f.args, s), r.evalKw(f.kw, s)
	r.line = f.line
	return r.filter(f.name, x, args, kw)
}

func (t *testExpr) eval(r *run, s *scope) Value {
	x, args := r.eval(t.x, s), r.evalAll(t.args, s)
	r.line = t.line
	return r.test(t.name, x, args) != t.negated
}

func (n *notExpr) eval(r *run, s *scope) Value { return !truth(r.eval(n.x, s)) }

func (n *signExpr) eval(r *run, s *scope) Value {
	v := r.eval(n.x, s)
	r.line = n.line
	if n.minus {
		return r.arith("-", int64(0), v)
	}
	return r.arith("+", int64(0), v)
}

func (c *condExpr) eval(r *run, s *scope) Value {
	if truth(r.eval(c.cond, s)) {
		return r.eval(c.yes, s)
	}
	if c.no == nil {
		return Undefined{"the inline if is false and has no else"}
	}
	return r.eval(c.no, s)
}

func (c *compareExpr) eval(r *run, s *scope) Value {
	a := r.eval(c.first, s)
	for i, op := range c.ops {
		b := r.eval(c.rest[i], s)
		r.line = c.line
		if !r.compare(op, a, b) {
			return false
		}
		a = b
	}
	return true
}

func (r *run) compare(op string, a, b Value) bool {
	switch op {
	case "==":
		return r.equal(a, b, 0)
	case "!=":
		return !r.equal(a, b, 0)
	case "in":
		return r.contains(b, a)
	case "not in":
		return !r.contains(b, a)
	}
	c, ordered := r.order(a, b, 0)
	switch {
	case !ordered: // a NaN
		return false
	case op == "<":
		return c < 0
	case op == ">":
		return c > 0
	case op == "<=":
		return c <= 0
	}
	return c >= 0
}

func (n *binaryExpr) eval(r *run, s *scope) Value {
	a := r.eval(n.a, s)
	switch n.op {
	case "or":
		if truth(a) {
			return a
		}
		return r.eval(n.b, s)
	case "and":
		if !truth(a) {
			return a
		}
		return r.eval(n.b, s)
	}
	b := r.eval(n.b, s)
	r.line = n.line
	if n.op == "~" {
		return r.concat(r.str(a), r.str(b))
	}
	return r.arith(n.op, a, b)
}

// concat joins strings and charges the budget for the result.
func (r *run) concat(parts ...string) string {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if r.built(n); n > maxOutput {
		r.fail("a string is longer than %d bytes", maxOutput)
	}
	return strings.Join(parts, "")
}
