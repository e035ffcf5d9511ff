package ball

import "math/big"

const (
	// MaxPrecision is the maximum number of bits of a Context.
	MaxPrecision = 3000
	// maxExponent bounds the size of a number: 2^±maxExponent.
	maxExponent = 20000
)

// Context is a precision in bits. It counts the work done with it.
type Context struct {
	prec uint
	// Steps counts operations; an elementary function counts as several.
	Steps int
	// Span is the maximum |e| over all numbers between 2^e and 2^(e+1) that occurred.
	Span int
}

// New returns a Context with the given bits, at most MaxPrecision.
func New(bits int) *Context { return &Context{prec: uint(min(bits, MaxPrecision))} }

// Real is a ball of real numbers. The zero value is 0.
type Real struct {
	mid big.Float
	rad mag
	bad bool
}

// undefined has no value.
func undefined() Real { return Real{bad: true} }

// Valid reports whether x has a value.
func (x *Real) Valid() bool { return !x.bad }

// IsZero reports whether x is exactly 0.
func (x *Real) IsZero() bool { return !x.bad && x.rad.m == 0 && x.mid.Sign() == 0 }

// Exact reports whether x has no error.
func (x *Real) Exact() bool { return !x.bad && x.rad.m == 0 }

// Sign is 1 or -1 if all of x is positive or negative, and 0 if x is 0 or the sign is unknown.
func (x *Real) Sign() int {
	if x.bad || x.mid.Sign() == 0 || x.rad.m != 0 && !x.rad.less(below(&x.mid)) && x.rad.float().Cmp(new(big.Float).Abs(&x.mid)) >= 0 {
		return 0
	}
	return x.mid.Sign()
}

// Mid returns the midpoint.
func (x *Real) Mid() *big.Float { return new(big.Float).Set(&x.mid) }

// Accurate reports whether the error is below 2^-bits of the number, or of 1 for numbers below 1.
func (x *Real) Accurate(bits int) bool {
	if x.bad {
		return false
	}
	e := 0
	if x.mid.Sign() != 0 {
		e = max(0, x.mid.MantExp(nil))
	}
	return x.rad.less(power(e - bits))
}

// Meets reports whether x and y overlap.
func (c *Context) Meets(x, y *Real) bool {
	d := c.Sub(x, y)
	return d.bad || d.Sign() == 0
}

// finish adds the rounding errors of the midpoint and the radius.
func (c *Context) finish(z *Real) {
	c.Steps++
	if z.mid.Sign() == 0 {
		return
	}
	e := z.mid.MantExp(nil)
	if e > maxExponent || e < -maxExponent {
		*z = undefined()
		return
	}
	if z.mid.Acc() != big.Exact {
		z.rad = z.rad.add(power(e - int(c.prec)))
	}
	c.note(z)
}

// note records the size of a number, except for rounding residues of 0.
func (c *Context) note(z *Real) {
	if z.mid.Sign() != 0 && z.rad.less(below(&z.mid)) {
		e := z.mid.MantExp(nil)
		c.Span = max(c.Span, e, -e)
	}
}

// Rat converts a rational number.
func (c *Context) Rat(v *big.Rat) Real {
	var z Real
	z.mid.SetPrec(c.prec)
	if v.IsInt() && v.Num().BitLen() <= int(c.prec) {
		z.mid.SetInt(v.Num())
		return z
	}
	z.mid.SetRat(v)
	c.finish(&z)
	return z
}

// Int converts an integer.
func (c *Context) Int(n int64) Real {
	var z Real
	z.mid.SetPrec(c.prec).SetInt64(n)
	return z
}

// Widen adds a non-negative error r.
func (c *Context) Widen(x *Real, r *big.Rat) Real {
	z := *x
	if r.Sign() > 0 {
		f, _ := new(big.Float).SetPrec(53).SetMode(big.AwayFromZero).SetRat(r).Float64()
		z.rad = z.rad.add(newMag(f*up, 0))
	}
	return z
}

// Neg is −x.
func (c *Context) Neg(x *Real) Real {
	z := Real{rad: x.rad, bad: x.bad}
	z.mid.Neg(&x.mid)
	return z
}

// Add is x + y.
func (c *Context) Add(x, y *Real) Real {
	if x.bad || y.bad {
		return undefined()
	}
	if x.IsZero() {
		return *y
	}
	if y.IsZero() {
		return *x
	}
	var z Real
	z.rad = x.rad.add(y.rad)
	if x.mid.Sign() != 0 && y.mid.Sign() != 0 {
		// big.Float aligns the numbers in memory: keep far smaller ones out of that.
		apart := x.mid.MantExp(nil) - y.mid.MantExp(nil)
		if limit := int(c.prec) + 8; apart > limit {
			z.mid.Set(&x.mid)
			z.rad = z.rad.add(above(&y.mid))
			c.finish(&z)
			return z
		} else if apart < -limit {
			z.mid.Set(&y.mid)
			z.rad = z.rad.add(above(&x.mid))
			c.finish(&z)
			return z
		}
	}
	z.mid.SetPrec(c.prec).Add(&x.mid, &y.mid)
	c.finish(&z)
	return z
}

// Sub is x − y.
func (c *Context) Sub(x, y *Real) Real {
	n := c.Neg(y)
	return c.Add(x, &n)
}

// Mul is x·y.
func (c *Context) Mul(x, y *Real) Real {
	if x.bad || y.bad {
		return undefined()
	}
	if x.IsZero() || y.IsZero() {
		return Real{}
	}
	var z Real
	z.mid.SetPrec(c.prec).Mul(&x.mid, &y.mid)
	z.rad = above(&x.mid).mul(y.rad).add(above(&y.mid).mul(x.rad)).add(x.rad.mul(y.rad))
	c.finish(&z)
	return z
}

// Div is x/y.
func (c *Context) Div(x, y *Real) Real {
	if x.bad || y.bad || y.Sign() == 0 {
		return undefined()
	}
	if x.IsZero() {
		return Real{}
	}
	var z Real
	z.mid.SetPrec(c.prec).Quo(&x.mid, &y.mid)
	if x.rad.m != 0 || y.rad.m != 0 {
		// |x/y − x'/y'| ≤ (|x| ry + |y| rx) / (|y| (|y| − ry))
		least := new(big.Float).SetPrec(53).SetMode(big.ToZero).Abs(&y.mid)
		least.Sub(least, y.rad.float())
		if least.Sign() <= 0 {
			return undefined()
		}
		top := above(&x.mid).mul(y.rad).add(above(&y.mid).mul(x.rad))
		z.rad = top.div(below(&y.mid).mul(below(least)))
	}
	c.finish(&z)
	return z
}

// Sqrt is the square root of a non-negative number.
func (c *Context) Sqrt(x *Real) Real {
	if x.bad || x.Sign() < 0 {
		return undefined()
	}
	if x.IsZero() {
		return Real{}
	}
	if x.Sign() == 0 { // anything from 0 to the root of the maximum
		return Real{rad: above(&x.mid).add(x.rad).sqrt()}
	}
	var z Real
	z.mid.SetPrec(c.prec).Sqrt(&x.mid)
	z.rad = x.rad.div(below(&z.mid)) // |√x − √x'| ≤ |x − x'| / √x
	c.finish(&z)
	z.rad = z.rad.add(power(z.mid.MantExp(nil) - int(c.prec)))
	return z
}
