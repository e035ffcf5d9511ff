package jinja

import (
	"math/big"
	"strings"
)

// tests are the tests that may follow "is".
var tests map[string]*builtin

func init() { // test and filter look up others
	tests = map[string]*builtin{
		"defined":     define("", func(c *call) Value { return !isType[Undefined](c.self) }),
		"undefined":   define("", func(c *call) Value { return isType[Undefined](c.self) }),
		"none":        define("", func(c *call) Value { return c.self == nil }),
		"string":      define("", func(c *call) Value { return isType[string](c.self) }),
		"boolean":     define("", func(c *call) Value { return isType[bool](c.self) }),
		"integer":     define("", func(c *call) Value { return isType[int64](c.self) || isType[*big.Int](c.self) }),
		"float":       define("", func(c *call) Value { return isType[float64](c.self) }),
		"true":        define("", func(c *call) Value { return c.self == true }),
		"false":       define("", func(c *call) Value { return c.self == false }),
		"mapping":     define("", func(c *call) Value { return isType[*Dict](c.self) }),
		"callable":    define("", func(c *call) Value { return isType[*function](c.self) }),
		"escaped":     define("", func(*call) Value { return false }),
		"number":      define("", func(c *call) Value { _, ok := number(c.self); return ok || isType[*big.Int](c.self) }),
		"sequence":    define("", func(c *call) Value { _, ok := length(c.self); return ok }),
		"iterable":    define("", func(c *call) Value { return isIterable(c.self) }),
		"odd":         define("", func(c *call) Value { return c.r.remainder(c.self, 2) != 0 }),
		"even":        define("", func(c *call) Value { return c.r.remainder(c.self, 2) == 0 }),
		"divisibleby": define("num", func(c *call) Value { return c.r.remainder(c.self, c.args[0]) == 0 }),
		"upper":       define("", func(c *call) Value { return caseTest(c, "isupper") }),
		"lower":       define("", func(c *call) Value { return caseTest(c, "islower") }),
		"filter":      define("", func(c *call) Value { return filters[c.r.str(c.self)] != nil }),
		"test":        define("", func(c *call) Value { return tests[c.r.str(c.self)] != nil }),
		"sameas":      define("other", func(c *call) Value { return same(c.self, c.args[0]) }),
	}
	for op, names := range map[string]string{
		"==": "== eq equalto", "!=": "!= ne", "<": "< lt lessthan", ">": "> gt greaterthan", "<=": "<= le", ">=": ">= ge", "in": "in",
	} {
		for name := range strings.FieldsSeq(names) {
			tests[name] = define("other", func(c *call) Value { return c.r.compare(op, c.self, c.args[0]) })
		}
	}
}

func isType[T Value](v Value) bool {
	_, ok := v.(T)
	return ok
}

func isIterable(v Value) bool {
	switch v.(type) {
	case string, *List, *Dict, Undefined:
		return true
	}
	return false
}

// remainder is v modulo by, for integers or floats.
func (r *run) remainder(v, by Value) float64 {
	if n, ok := by.(int); ok {
		by = int64(n)
	}
	if isType[string](v) {
		r.fail("expected a number, not a string")
	}
	f, _ := number(r.arith("%", v, by))
	return f
}

func caseTest(c *call, method string) Value {
	return stringMethods[method].use(c.r, method, c.r.str(c.self), nil, nil)
}

// same is Python's is: for lists and dictionaries, the identical object.
func same(a, b Value) bool {
	if isType[Undefined](a) || isType[Undefined](b) {
		return false
	}
	return a == b
}
