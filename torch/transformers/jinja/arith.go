package jinja

import (
	"math"
	"math/bits"
	"strings"
)

// arith is Python's a op b.
func (r *run) arith(op string, a, b Value) Value {
	r.defined(a, b)
	if v, ok := r.sequenceArith(op, a, b); ok {
		return v
	}
	x, isInt := integer(a)
	y, alsoInt := integer(b)
	if isInt && alsoInt && op != "/" {
		return r.integerArith(op, x, y)
	}
	f, isNumber := number(a)
	g, alsoNumber := number(b)
	if !isNumber || !alsoNumber {
		r.fail("%s and %s cannot be combined with %s", typeName(a), typeName(b), op)
	}
	if g == 0 && (op == "/" || op == "//" || op == "%") {
		r.fail("division by zero")
	}
	switch op {
	case "+":
		return f + g
	case "-":
		return f - g
	case "*":
		return f * g
	case "/":
		return f / g
	case "//":
		return math.Floor(f / g)
	case "%":
		m := math.Mod(f, g)
		if m != 0 && (m < 0) != (g < 0) {
			m += g
		}
		return m
	}
	return math.Pow(f, g)
}

// sequenceArith joins and repeats strings and lists, and formats strings with %.
func (r *run) sequenceArith(op string, a, b Value) (Value, bool) {
	if _, ok := integer(a); ok && op == "*" {
		a, b = b, a
	}
	switch x := a.(type) {
	case string:
		y, ok := b.(string)
		n, isInt := integer(b)
		switch {
		case op == "+" && ok:
			return r.concat(x, y), true
		case op == "*" && isInt:
			r.repeats(len(x), n)
			return strings.Repeat(x, int(max(n, 0))), true
		case op == "%":
			return r.percent(x, b), true
		}
	case *List:
		y, ok := b.(*List)
		n, isInt := integer(b)
		switch {
		case op == "+" && ok && x.Tuple == y.Tuple:
			r.listed(len(x.Items) + len(y.Items))
			return &List{Items: append(x.Items[:len(x.Items):len(x.Items)], y.Items...), Tuple: x.Tuple}, true
		case op == "*" && isInt:
			r.repeats(32*len(x.Items), n)
			out := &List{Tuple: x.Tuple}
			for range max(n, 0) {
				out.Items = append(out.Items, x.Items...)
			}
			return out, true
		}
	}
	return nil, false
}

// repeats charges the budget for n copies of size bytes.
func (r *run) repeats(size int, n int64) {
	if size > 0 && n > int64(maxOutput/size) {
		r.fail("a repeated value is longer than %d bytes", maxOutput)
	}
	if n > 0 && size > 0 {
		r.built(size * int(n))
	}
}

func (r *run) integerArith(op string, x, y int64) Value {
	overflow := false
	var v int64
	switch op {
	case "+":
		v = x + y
		overflow = (v > x) != (y > 0)
	case "-":
		v = x - y
		overflow = (v < x) != (y > 0)
	case "*":
		v, overflow = multiply(x, y)
	case "//", "%":
		if y == 0 {
			r.fail("division by zero")
		}
		overflow = x == math.MinInt64 && y == -1
		if op == "//" {
			v = floorDivide(x, y)
		} else {
			v = x - y*floorDivide(x, y)
		}
	case "**":
		if y < 0 {
			return math.Pow(float64(x), float64(y))
		}
		v = 1
		for range y {
			r.spend(1)
			if v, overflow = multiply(v, x); overflow || v == 0 || x == 1 {
				break
			}
		}
	}
	if overflow {
		r.fail("an integer is beyond 64 bits")
	}
	return v
}

func floorDivide(x, y int64) int64 {
	q := x / y
	if x%y != 0 && (x < 0) != (y < 0) {
		q--
	}
	return q
}

func multiply(x, y int64) (product int64, overflow bool) {
	magnitude := func(v int64) uint64 {
		if v < 0 {
			return -uint64(v)
		}
		return uint64(v)
	}
	high, low := bits.Mul64(magnitude(x), magnitude(y))
	return x * y, high != 0 || low > math.MaxInt64
}
