package jinja

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"unicode/utf8"
)

// Value is a value in a template: nil (None), bool, int64, *big.Int (of JSON integers beyond
// 64 bits; it can be printed and compared), float64, string, *List, *Dict, Undefined, and during a
// rendering functions, namespaces and loops. Lists and dictionaries are immutable.
type Value = any

// Undefined is the value of missing names. It prints as nothing; most uses of it are errors that name what is missing.
type Undefined struct{ why string }

// List is a list or a tuple.
type List struct {
	Items []Value
	Tuple bool
}

// Dict is a dictionary with string keys in insertion order.
type Dict struct {
	keys   []string
	values map[string]Value
}

// NewDict returns an empty dictionary.
func NewDict() *Dict { return &Dict{values: map[string]Value{}} }

// Set adds or replaces a value; do not change a dictionary that a template has seen.
func (d *Dict) Set(key string, v Value) {
	if _, ok := d.values[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[key] = v
}

// Get finds the value of a key.
func (d *Dict) Get(key string) (Value, bool) {
	v, ok := d.values[key]
	return v, ok
}

// Keys returns the keys in order; the caller must not change them.
func (d *Dict) Keys() []string { return d.keys }

// Len returns the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// namespace is a dictionary whose attributes a template can set.
type namespace struct{ Dict }

func (n *namespace) set(name string, v Value) { n.Dict.Set(name, v) }

type kwarg struct {
	name  string
	value Value
}

// function is a macro, a function or a method of a value.
type function struct {
	name string
	call func(r *run, args []Value, kw []kwarg) Value
}

// loopState is the variable loop of a for.
type loopState struct {
	items   []Value
	index   int // counted from 0
	depth   int
	last    Value // the last argument of loop.changed
	changed bool  // whether there was one
	again   func(x Value) string
}

func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *List:
		if v.Tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "dict"
	case Undefined:
		return "Undefined"
	case *namespace:
		return "namespace"
	case *loopState:
		return "loop"
	}
	return "function"
}

// object is jinja2's name for v in messages.
func object(v Value) string {
	if v == nil {
		return "None"
	}
	return "'" + typeName(v) + " object'"
}

func truth(v Value) bool {
	switch v := v.(type) {
	case nil, Undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// integer is v as an integer; like Python's, a bool is one.
func integer(v Value) (int64, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int64:
		return v, true
	}
	return 0, false
}

func number(v Value) (float64, bool) {
	if f, ok := v.(float64); ok {
		return f, true
	}
	n, ok := integer(v)
	return float64(n), ok
}

// nested limits the depth of walks through lists and dictionaries.
func (r *run) nested(depth int) {
	r.spend(1)
	if depth > maxNest {
		r.fail("a value nests more than %d deep", maxNest)
	}
}

func (r *run) equal(a, b Value, depth int) bool {
	r.nested(depth)
	if x, ok := integer(a); ok {
		if y, ok := integer(b); ok {
			return x == y
		}
	}
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case *big.Int:
		b, ok := b.(*big.Int)
		return ok && a.Cmp(b) == 0
	case string:
		b, ok := b.(string)
		r.built(min(len(a), len(b)))
		return ok && a == b
	case Undefined:
		_, ok := b.(Undefined)
		return ok
	case *List:
		b, ok := b.(*List)
		if !ok || a.Tuple != b.Tuple || len(a.Items) != len(b.Items) {
			return false
		}
		for i := range a.Items {
			if !r.equal(a.Items[i], b.Items[i], depth+1) {
				return false
			}
		}
		return true
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || a.Len() != b.Len() {
			return false
		}
		for _, key := range a.keys {
			other, ok := b.Get(key)
			if !ok || !r.equal(a.values[key], other, depth+1) {
				return false
			}
		}
		return true
	}
	return a == b
}

// order is negative, 0 or positive as a compares to b; false if one is NaN.
func (r *run) order(a, b Value, depth int) (int, bool) {
	r.nested(depth)
	if x, ok := integer(a); ok {
		if y, ok := integer(b); ok {
			return compareNumbers(x, y), true
		}
	}
	if x, ok := number(a); ok {
		if y, ok := number(b); ok {
			return compareNumbers(x, y), !math.IsNaN(x) && !math.IsNaN(y)
		}
	}
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			r.built(min(len(a), len(b)))
			return strings.Compare(a, b), true
		}
	case *List:
		if b, ok := b.(*List); ok && a.Tuple == b.Tuple {
			for i := range min(len(a.Items), len(b.Items)) {
				if !r.equal(a.Items[i], b.Items[i], depth+1) {
					return r.order(a.Items[i], b.Items[i], depth+1)
				}
			}
			return compareNumbers(len(a.Items), len(b.Items)), true
		}
	}
	r.defined(a, b)
	r.fail("%s and %s cannot be compared", typeName(a), typeName(b))
	return 0, false
}

func compareNumbers[T int | int64 | float64](x, y T) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// defined fails with the reason of the first undefined value in vs.
func (r *run) defined(vs ...Value) {
	for _, v := range vs {
		if u, ok := v.(Undefined); ok {
			r.fail("%s", u.why)
		}
	}
}

// sequence lists the items of an iterable value; false if it is not iterable.
func (r *run) sequence(v Value) ([]Value, bool) {
	switch v := v.(type) {
	case Undefined:
		return nil, true
	case *List:
		return v.Items, true
	case *Dict:
		r.listed(v.Len())
		return stringsList(v.keys).Items, true
	case string:
		n := utf8.RuneCountInString(v)
		r.listed(n)
		out := make([]Value, 0, n)
		for _, c := range v {
			out = append(out, string(c))
		}
		return out, true
	}
	return nil, false
}

func (r *run) items(v Value) []Value {
	out, ok := r.sequence(v)
	if !ok {
		r.fail("%s is not iterable", object(v))
	}
	return out
}

func stringsList(texts []string) *List {
	l := &List{Items: make([]Value, len(texts))}
	for i, t := range texts {
		l.Items[i] = t
	}
	return l
}

func length(v Value) (int, bool) {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v), true
	case *List:
		return len(v.Items), true
	case *Dict:
		return v.Len(), true
	case Undefined:
		return 0, true
	}
	return 0, false
}

func (r *run) contains(in, x Value) bool {
	switch in := in.(type) {
	case string:
		s, ok := x.(string)
		if !ok {
			r.defined(x)
			r.fail("'in' on a string needs a string, not %s", typeName(x))
		}
		r.built(len(in))
		return strings.Contains(in, s)
	case *Dict:
		key, ok := x.(string)
		if ok {
			_, ok = in.Get(key)
		}
		return ok
	}
	for _, item := range r.items(in) {
		if r.equal(item, x, 0) {
			return true
		}
	}
	return false
}

// attribute is x.name: a method first, then an entry.
func (r *run) attribute(x Value, name string) Value {
	r.defined(x)
	switch v := x.(type) {
	case *namespace:
		if value, ok := v.Get(name); ok {
			return value
		}
	case *loopState:
		if value, ok := v.attribute(name); ok {
			return value
		}
	default:
		if m, ok := method(x, name); ok {
			return m
		}
		if d, ok := x.(*Dict); ok {
			if value, ok := d.Get(name); ok {
				return value
			}
		}
	}
	return Undefined{fmt.Sprintf("%s has no attribute '%s'", object(x), name)}
}

// item is x[key]: an entry first, then a method.
func (r *run) item(x, key Value) Value {
	r.defined(x)
	var n int
	switch v := x.(type) {
	case *Dict:
		if name, ok := key.(string); ok {
			if value, ok := v.Get(name); ok {
				return value
			}
		}
	case *List:
		if i, ok := index(key, len(v.Items)); ok {
			return v.Items[i]
		}
	case string:
		r.built(len(v))
		n = utf8.RuneCountInString(v)
		if i, ok := index(key, n); ok {
			return string([]rune(v)[i])
		}
	}
	if name, ok := key.(string); ok {
		return r.attribute(x, name)
	}
	return Undefined{fmt.Sprintf("%s has no element %s", object(x), r.repr(key))}
}

// index is the position that key selects among n items; negative keys count from the end.
func index(key Value, n int) (int64, bool) {
	i, ok := integer(key)
	if i < 0 {
		i += int64(n)
	}
	return i, ok && i >= 0 && i < int64(n)
}
