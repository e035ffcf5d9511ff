package equiv

import (
	"math/big"

	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// values compares single values with their units.
func (c *comparison) values(a, b *f.Node) bool {
	if shaped(a) || shaped(b) {
		return c.decide("of different shapes", false)
	}
	x, unitX := split(a)
	y, unitY := split(b)
	if unitX != "" && unitY == "" {
		y, unitY = typed(y, unitX)
	} else if unitY != "" && unitX == "" {
		x, unitX = typed(x, unitY)
	}
	if unitX == unitY {
		return c.numbers(x, y)
	}
	if unitX == "" {
		x, unitX, y, unitY = y, unitY, x, unitX
	}
	if unitY == "" {
		if c.numbers(x, y) {
			c.rule += ", a unit on one side"
			return true
		}
		if (unitX == "%" || unitX == "deg") && c.numbers(f.Of(f.Quantity, unitX, x), y) {
			c.rule += ", with the sign taken as a factor"
			return true
		}
		return false
	}
	if factor, ok := conversion(unitX, unitY); ok {
		return c.numbers(f.Of(f.Product, "", &f.Node{Kind: f.Number, Num: factor}, x), y)
	}
	return c.decide("different units", false)
}

// split separates a value from its unit.
func split(n *f.Node) (value *f.Node, unit string) {
	switch {
	case n.Kind == f.Quantity:
		return n.Args[0], n.Text
	case n.Kind == f.Product && len(n.Args) == 2 && n.Args[0].Kind == f.Number && n.Args[1].Kind == f.Quantity && n.Args[0].Num.Cmp(big.NewRat(-1, 1)) == 0:
		return f.Negative(n.Args[1].Args[0]), n.Args[1].Text
	}
	return n, ""
}

// typed separates a unit written in letters, 60 s or 9.8 m/s^2, if the other side has a compatible unit.
func typed(n *f.Node, other string) (value *f.Node, unit string) {
	below := ""
	top := n
	if n.Kind == f.Quotient {
		if below = symbol(n.Args[1]); below == "" {
			return n, ""
		}
		top, below = n.Args[0], "/"+below
	}
	if top.Kind != f.Product || len(top.Args) != 2 || top.Args[0].Kind != f.Number || symbol(top.Args[1]) == "" {
		return n, ""
	}
	unit = symbol(top.Args[1]) + below
	if _, ok := conversion(unit, other); !ok && unit != other {
		return n, ""
	}
	return top.Args[0], unit
}

// symbol reads a letter, possibly with a power, as a unit.
func symbol(n *f.Node) string {
	switch {
	case n.Kind == f.Name && len(n.Text) == 1:
		return n.Text
	case n.Kind == f.Power && n.Args[0].Kind == f.Name && len(n.Args[0].Text) == 1 && n.Args[1].Kind == f.Number && n.Args[1].Num.IsInt():
		return n.Args[0].Text + "^" + n.Args[1].Num.RatString()
	}
	return ""
}

// numbers compares expressions without units: rational numbers exactly, decimals to their precision, others by normal form
// or evaluation.
func (c *comparison) numbers(a, b *f.Node) bool {
	x, okX := exact(a)
	y, okY := exact(b)
	if okX && okY && x.Cmp(y) == 0 {
		return c.decide("numbers", true)
	}
	if !okX || !okY {
		n := newNormal(c)
		if p, ok := n.form(a); ok {
			if q, ok := n.form(b); ok {
				equal, ok := n.equal(p, q)
				if ok && (equal || n.decides() && !hasDecimals(a) && !hasDecimals(b)) {
					return c.decide("normal form", equal)
				}
			}
		}
		if equal := c.evaluate(a, b, false); equal {
			return true
		}
	} else {
		c.rule = "numbers"
	}
	if hasDecimals(a) != hasDecimals(b) && c.written(a, b) {
		return c.decide("decimal to the precision written", true)
	}
	return false
}

// leastDigits is the number of significant digits from which a decimal may be a rounded number.
const leastDigits = 3

// hasDecimals reports whether a decimal with enough digits occurs.
func hasDecimals(n *f.Node) bool {
	if n.Kind == f.Number && n.Places > 0 && n.Digits >= leastDigits {
		return true
	}
	for _, arg := range n.Args {
		if hasDecimals(arg) {
			return true
		}
	}
	return false
}

// written compares a decimal with an exact value: it must be that value, rounded or truncated after its last digit, and
// closer than a thousandth. Within expressions, each decimal means all numbers that round to it.
func (c *comparison) written(a, b *f.Node) bool {
	if !hasDecimals(a) {
		a, b = b, a
	}
	v, ok := exact(b)
	if ok && terminates(v) {
		return false // it could have been written exactly
	}
	d, rational := exact(a)
	switch {
	case rational && !single(a):
		return false // 1/2.10 is 10/21
	case !rational || !constant(b):
		return c.evaluate(a, b, true)
	}
	places := decimalPlaces(a)
	if !ok {
		if v, ok = c.approximate(b); !ok {
			return false
		}
	}
	if v.Sign() == 0 || v.Sign() != d.Sign() {
		return false
	}
	unit := new(big.Rat).SetFrac(big.NewInt(1), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(places)), nil))
	off := new(big.Rat).Sub(v, d)
	beyond := off.Sign() == v.Sign() // the value continues after the last digit
	off.Abs(off)
	share := new(big.Rat).Quo(off, new(big.Rat).Abs(v))
	if share.Cmp(big.NewRat(1, 1000)) > 0 {
		return false
	}
	return new(big.Rat).Mul(off, big.NewRat(2, 1)).Cmp(unit) <= 0 || beyond && off.Cmp(unit) < 0
}

// terminates reports whether a number has finitely many decimals.
func terminates(v *big.Rat) bool {
	_, exact := v.FloatPrec()
	return exact
}

// single reports whether n is one decimal, with an optional sign.
func single(n *f.Node) bool {
	return n.Kind == f.Number || n.Is(f.Quantity, "%") && n.Args[0].Kind == f.Number
}

func decimalPlaces(n *f.Node) int {
	if n.Kind == f.Quantity {
		return n.Args[0].Places + 2
	}
	return n.Places
}
