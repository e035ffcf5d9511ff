package ball

import "math/big"

// Complex is a complex number with a ball for each part.
type Complex struct{ Re, Im Real }

// Valid reports whether x has a value.
func (x *Complex) Valid() bool { return x.Re.Valid() && x.Im.Valid() }

// IsReal reports whether the imaginary part is exactly 0.
func (x *Complex) IsReal() bool { return x.Im.IsZero() }

// Undefined has no value.
func Undefined() Complex { return Complex{undefined(), undefined()} }

// Real converts a real number.
func FromReal(x Real) Complex { return Complex{Re: x} }

// CAdd is x + y.
func (c *Context) CAdd(x, y *Complex) Complex {
	return Complex{c.Add(&x.Re, &y.Re), c.Add(&x.Im, &y.Im)}
}

// CNeg is −x.
func (c *Context) CNeg(x *Complex) Complex { return Complex{c.Neg(&x.Re), c.Neg(&x.Im)} }

// CSub is x − y.
func (c *Context) CSub(x, y *Complex) Complex {
	return Complex{c.Sub(&x.Re, &y.Re), c.Sub(&x.Im, &y.Im)}
}

// CMul is x·y.
func (c *Context) CMul(x, y *Complex) Complex {
	if !x.Valid() || !y.Valid() {
		return Undefined()
	}
	if x.IsReal() && y.IsReal() {
		return Complex{Re: c.Mul(&x.Re, &y.Re)}
	}
	a, b := c.Mul(&x.Re, &y.Re), c.Mul(&x.Im, &y.Im)
	p, q := c.Mul(&x.Re, &y.Im), c.Mul(&x.Im, &y.Re)
	return Complex{c.Sub(&a, &b), c.Add(&p, &q)}
}

// CDiv is x/y.
func (c *Context) CDiv(x, y *Complex) Complex {
	if !x.Valid() || !y.Valid() {
		return Undefined()
	}
	if y.IsReal() {
		return Complex{c.Div(&x.Re, &y.Re), c.Div(&x.Im, &y.Re)}
	}
	square := c.norm(y)
	conjugate := Complex{y.Re, c.Neg(&y.Im)}
	top := c.CMul(x, &conjugate)
	return Complex{c.Div(&top.Re, &square), c.Div(&top.Im, &square)}
}

func (c *Context) norm(x *Complex) Real {
	a, b := c.Mul(&x.Re, &x.Re), c.Mul(&x.Im, &x.Im)
	return c.Add(&a, &b)
}

// CAbs is |x|.
func (c *Context) CAbs(x *Complex) Complex {
	if !x.Valid() {
		return Undefined()
	}
	if x.IsReal() {
		if x.Re.Sign() >= 0 {
			if x.Re.Sign() == 0 && !x.Re.IsZero() { // contains 0
				return Complex{Re: Real{rad: above(&x.Re.mid).add(x.Re.rad)}}
			}
			return *x
		}
		return c.CNeg(x)
	}
	square := c.norm(x)
	return Complex{Re: c.Sqrt(&square)}
}

// arg is the angle of x in (−π, π].
func (c *Context) arg(x *Complex) Real {
	switch {
	case x.IsReal() && x.Re.Sign() > 0:
		return Real{}
	case x.IsReal() && x.Re.Sign() < 0:
		return c.Pi()
	case x.Re.Sign() > 0:
		slope := c.Div(&x.Im, &x.Re)
		return c.Atan(&slope)
	case x.Im.Sign() != 0:
		slope := c.Div(&x.Re, &x.Im)
		rest := c.Atan(&slope)
		quarter := c.Pi()
		quarter = c.scale(&quarter, -1)
		if x.Im.Sign() < 0 {
			quarter = c.Neg(&quarter)
		}
		return c.Sub(&quarter, &rest)
	}
	return undefined() // on the cut, or contains 0
}

// CExp is e^x.
func (c *Context) CExp(x *Complex) Complex {
	if !x.Valid() {
		return Undefined()
	}
	size := c.Exp(&x.Re)
	if x.IsReal() {
		return Complex{Re: size}
	}
	sin, cos := c.SinCos(&x.Im)
	return Complex{c.Mul(&size, &cos), c.Mul(&size, &sin)}
}

// CLog is the principal natural logarithm.
func (c *Context) CLog(x *Complex) Complex {
	if !x.Valid() {
		return Undefined()
	}
	size := c.CAbs(x)
	return Complex{c.Log(&size.Re), c.arg(x)}
}

// CSqrt is the principal square root.
func (c *Context) CSqrt(x *Complex) Complex {
	if !x.Valid() {
		return Undefined()
	}
	if x.IsReal() {
		switch {
		case x.Re.IsZero() || x.Re.Sign() > 0:
			return Complex{Re: c.Sqrt(&x.Re)}
		case x.Re.Sign() < 0:
			n := c.Neg(&x.Re)
			return Complex{Im: c.Sqrt(&n)}
		}
		around := Real{rad: above(&x.Re.mid).add(x.Re.rad).sqrt()}
		return Complex{around, around}
	}
	size := c.CAbs(x)
	root := c.Sqrt(&size.Re)
	angle := c.arg(x)
	angle = c.scale(&angle, -1)
	sin, cos := c.SinCos(&angle)
	return Complex{c.Mul(&root, &cos), c.Mul(&root, &sin)}
}

// CSinCos returns the sine and cosine.
func (c *Context) CSinCos(x *Complex) (sin, cos Complex) {
	if !x.Valid() {
		return Undefined(), Undefined()
	}
	s, co := c.SinCos(&x.Re)
	if x.IsReal() {
		return Complex{Re: s}, Complex{Re: co}
	}
	grow := c.Exp(&x.Im)
	one := c.Int(1)
	shrink := c.Div(&one, &grow)
	cosh, sinh := c.Add(&grow, &shrink), c.Sub(&grow, &shrink)
	cosh, sinh = c.scale(&cosh, -1), c.scale(&sinh, -1)
	n := c.Mul(&s, &sinh)
	return Complex{c.Mul(&s, &cosh), c.Mul(&co, &sinh)}, Complex{c.Mul(&co, &cosh), c.Neg(&n)}
}

// CPowInt is x^n for |n| up to 10,000.
func (c *Context) CPowInt(x *Complex, n int) Complex {
	if n < 0 {
		one := FromReal(c.Int(1))
		p := c.CPowInt(x, -n)
		return c.CDiv(&one, &p)
	}
	if n > 10000 || !x.Valid() {
		return Undefined()
	}
	z, square := FromReal(c.Int(1)), *x
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			z = c.CMul(&z, &square)
		}
		if n > 1 {
			square = c.CMul(&square, &square)
		}
	}
	return z
}

// CPow is x^y = e^(y log x), and 0 for x = 0 and positive y.
func (c *Context) CPow(x, y *Complex) Complex {
	if !x.Valid() || !y.Valid() {
		return Undefined()
	}
	if x.Re.IsZero() && x.Im.IsZero() {
		if y.Re.Sign() > 0 {
			return Complex{}
		}
		return Undefined()
	}
	log := c.CLog(x)
	power := c.CMul(y, &log)
	return c.CExp(&power)
}

// CPowRat is x^(p/q): the real root of a negative number if q is odd, as in school mathematics, else the principal value.
func (c *Context) CPowRat(x *Complex, p *big.Rat) Complex {
	if !p.Num().IsInt64() || !p.Denom().IsInt64() {
		return Undefined()
	}
	if p.IsInt() {
		if n := p.Num().Int64(); n >= -10000 && n <= 10000 {
			return c.CPowInt(x, int(n))
		}
	}
	if p.Denom().Int64() == 2 && p.Num().BitLen() < 13 {
		root := c.CSqrt(x)
		return c.CPowInt(&root, int(p.Num().Int64()))
	}
	exponent := FromReal(c.Rat(p))
	if x.IsReal() && x.Re.Sign() < 0 && p.Denom().Bit(0) == 1 {
		positive := c.CNeg(x)
		z := c.CPow(&positive, &exponent)
		if p.Num().Bit(0) == 1 {
			z = c.CNeg(&z)
		}
		return z
	}
	return c.CPow(x, &exponent)
}
