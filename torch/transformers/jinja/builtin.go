package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// builtin is a filter, a test, a method or a function, with the parameters that Python gives it.
type builtin struct {
	params []param
	rest   bool // it accepts any further arguments
	fn     func(c *call) Value
}

type param struct {
	name     string
	required bool
	value    Value // the default
}

// call is a builtin's arguments, one per parameter, then further ones.
type call struct {
	r    *run
	self Value // the input of a filter or test, or the object of a method
	args []Value
	kw   []kwarg // those without a parameter
}

// define parses a signature such as "old new count=-1" or "name *".
func define(signature string, fn func(c *call) Value) *builtin {
	b := &builtin{fn: fn}
	for _, field := range strings.Fields(signature) {
		if field == "*" {
			b.rest = true
			continue
		}
		name, text, optional := strings.Cut(field, "=")
		p := param{name: name, required: !optional}
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			p.value = n
		} else if text == "true" || text == "false" {
			p.value = text == "true"
		} else if text != "none" && optional {
			p.value = text
		}
		b.params = append(b.params, p)
	}
	return b
}

// use binds arguments to the parameters and calls.
func (b *builtin) use(r *run, name string, self Value, args []Value, kw []kwarg) Value {
	c := &call{r: r, self: self, args: make([]Value, len(b.params))}
	if len(args) > len(b.params) {
		if !b.rest {
			r.fail("%s takes %d arguments, not %d", name, len(b.params), len(args))
		}
		c.args = append(c.args, args[len(b.params):]...)
	}
	for i, p := range b.params {
		at := slices.IndexFunc(kw, func(k kwarg) bool { return k.name == p.name })
		switch {
		case i < len(args) && at >= 0:
			r.fail("%s is given its %s twice", name, p.name)
		case i < len(args):
			c.args[i] = args[i]
		case at >= 0:
			c.args[i] = kw[at].value
		case p.required:
			r.fail("%s needs its argument %s", name, p.name)
		default:
			c.args[i] = p.value
		}
	}
	for _, k := range kw {
		if slices.ContainsFunc(b.params, func(p param) bool { return p.name == k.name }) {
			continue
		}
		if !b.rest {
			r.fail("%s takes no argument %s", name, k.name)
		}
		c.kw = append(c.kw, k)
	}
	if s, ok := self.(string); ok {
		r.built(len(s))
	}
	return b.fn(c)
}

// text, number and flag read argument i.
func (c *call) text(i int) string {
	s, ok := c.args[i].(string)
	if !ok {
		c.r.defined(c.args[i])
		c.r.fail("expected a string, not %s", typeName(c.args[i]))
	}
	return s
}

func (c *call) number(i int) int {
	n, ok := integer(c.args[i])
	if !ok || n > maxOutput || n < -maxOutput {
		c.r.defined(c.args[i])
		c.r.fail("expected an integer of at most %d, not %s", maxOutput, c.r.repr(c.args[i]))
	}
	return int(n)
}

func (c *call) flag(i int) bool { return truth(c.args[i]) }

func (c *call) keyword(name string) (Value, bool) {
	for _, k := range c.kw {
		if k.name == name {
			return k.value, true
		}
	}
	return nil, false
}

// call calls a macro, a function, a method, or a loop.
func (r *run) call(f Value, args []Value, kw []kwarg) Value {
	switch f := f.(type) {
	case *function:
		return f.call(r, args, kw)
	case *loopState:
		if f.again == nil || len(args) != 1 {
			r.fail("loop can be called with one argument, in a for that is recursive")
		}
		return f.again(args[0])
	}
	r.defined(f)
	r.fail("%s is not callable", object(f))
	return nil
}

// bind returns a builtin as a value.
func (b *builtin) bind(name string, self Value) *function {
	return &function{name, func(r *run, args []Value, kw []kwarg) Value { return b.use(r, name, self, args, kw) }}
}

func (r *run) filter(name string, x Value, args []Value, kw []kwarg) Value {
	b, ok := filters[name]
	if !ok {
		r.fail("there is no filter %q", name)
	}
	return b.use(r, "filter "+name, x, args, kw)
}

func (r *run) test(name string, x Value, args []Value) bool {
	b, ok := tests[name]
	if !ok {
		r.fail("there is no test %q", name)
	}
	return truth(b.use(r, "test "+name, x, args, nil))
}
