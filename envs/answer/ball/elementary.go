package ball

import (
	"math/big"
	"sync"
)

// Elementary functions of the midpoint are computed in fixed point, as multiples of 2^-bits, with guard bits for rounding.
// The error of the argument is added through the derivative.

// guard is the number of bits for rounding errors. The longest computation below has a few hundred truncations, with errors
// magnified at most 2^10 times.
const guard = 40

// constants are π and log 2 in fixed point with constantBits.
const constantBits = MaxPrecision + maxArgument + 2*guard

// maxArgument bounds the exponent of arguments of exp, sin and cos.
const maxArgument = 64

var constants = sync.OnceValue(func() (c struct{ pi, ln2 *big.Int }) {
	inverse := func(n int64, alternate bool) *big.Int { // atan(1/n), or atanh(1/n)
		term := new(big.Int).Lsh(big.NewInt(1), constantBits)
		term.Quo(term, big.NewInt(n))
		sum, square, part := new(big.Int), big.NewInt(n*n), new(big.Int)
		for k := int64(0); term.Sign() != 0; k++ {
			part.Quo(term, big.NewInt(2*k+1))
			if alternate && k%2 == 1 {
				sum.Sub(sum, part)
			} else {
				sum.Add(sum, part)
			}
			term.Quo(term, square)
		}
		return sum
	}
	times := func(n int64, x *big.Int) *big.Int { return x.Mul(x, big.NewInt(n)) }
	c.pi = times(16, inverse(5, true))
	c.pi.Sub(c.pi, times(4, inverse(239, true)))
	c.ln2 = times(18, inverse(26, false))
	c.ln2.Sub(c.ln2, times(2, inverse(4801, false)))
	c.ln2.Add(c.ln2, times(8, inverse(8749, false)))
	return c
})

// fixed converts x to fixed point.
func fixed(x *big.Float, bits int) *big.Int {
	scaled := new(big.Float).SetMantExp(x, bits)
	n, _ := scaled.Int(nil)
	return n
}

func shifted(constant *big.Int, bits int) *big.Int {
	return new(big.Int).Rsh(constant, uint(constantBits-bits))
}

// float converts n·2^-bits to a Real with an error of 2^-(bits-guard/2).
func (c *Context) float(n *big.Int, bits int) Real {
	var z Real
	z.mid.SetPrec(c.prec).SetInt(n)
	z.mid.SetMantExp(&z.mid, -bits)
	z.rad = power(guard/2 - bits)
	c.Steps += 20
	if z.mid.Sign() != 0 {
		z.rad = z.rad.add(power(z.mid.MantExp(nil) - int(c.prec)))
	}
	return z
}

// Pi returns π.
func (c *Context) Pi() Real {
	bits := int(c.prec) + guard
	return c.float(shifted(constants().pi, bits), bits)
}

// Exp is e^x.
func (c *Context) Exp(x *Real) Real {
	if x.bad || x.mid.Sign() != 0 && x.mid.MantExp(nil) > 16 || !x.rad.less(power(-1)) {
		return undefined()
	}
	if x.IsZero() {
		return c.Int(1)
	}
	const halvings = 8
	bits := int(c.prec) + guard
	r := fixed(&x.mid, bits)
	ln2 := shifted(constants().ln2, bits)
	k := new(big.Int).Quo(r, ln2)
	r.Sub(r, new(big.Int).Mul(k, ln2)) // k is below 2^17, so its error is below 2^-(bits-17)
	r.Rsh(r, halvings)
	sum := new(big.Int).Lsh(big.NewInt(1), uint(bits))
	term := new(big.Int).Set(sum)
	small := new(big.Int)
	for n := int64(1); term.BitLen() > 1; n++ {
		term.Mul(term, r).Rsh(term, uint(bits)).Quo(term, small.SetInt64(n))
		sum.Add(sum, term)
	}
	for range halvings {
		sum.Mul(sum, sum).Rsh(sum, uint(bits))
	}
	z := c.float(sum, bits)
	z.mid.SetMantExp(&z.mid, int(k.Int64()))
	z.rad = z.rad.mul(power(int(k.Int64())))
	if z.mid.Sign() == 0 {
		return undefined()
	}
	z.rad = z.rad.add(above(&z.mid).mul(x.rad).mul(power(1))) // e^r − 1 < 2r
	c.finish(&z)
	return z
}

// Log is the natural logarithm of a positive number.
func (c *Context) Log(x *Real) Real {
	if x.Sign() <= 0 {
		return undefined()
	}
	const roots = 6
	bits := int(c.prec) + guard
	var m big.Float
	k := x.mid.MantExp(&m)
	t := fixed(&m, bits)
	for range roots {
		t.Lsh(t, uint(bits)).Sqrt(t)
	}
	one := new(big.Int).Lsh(big.NewInt(1), uint(bits))
	u := new(big.Int).Sub(t, one)
	u.Lsh(u, uint(bits)).Quo(u, t.Add(t, one)) // log t = 2 atanh u
	square := new(big.Int).Mul(u, u)
	square.Rsh(square, uint(bits))
	sum, part, small := new(big.Int), new(big.Int), new(big.Int)
	for n := int64(1); u.BitLen() > 1; n += 2 {
		sum.Add(sum, part.Quo(u, small.SetInt64(n)))
		u.Mul(u, square).Rsh(u, uint(bits))
	}
	sum.Lsh(sum, roots+1)
	sum.Add(sum, part.Mul(shifted(constants().ln2, bits), small.SetInt64(int64(k))))
	z := c.float(sum, bits)
	if x.rad.m != 0 {
		least := new(big.Float).SetPrec(53).SetMode(big.ToZero).Set(&x.mid)
		least.Sub(least, x.rad.float())
		if least.Sign() <= 0 {
			return undefined()
		}
		z.rad = z.rad.add(x.rad.div(below(least)))
	}
	c.note(&z)
	return z
}

// SinCos returns the sine and cosine of x.
func (c *Context) SinCos(x *Real) (sin, cos Real) {
	if x.bad || x.mid.Sign() != 0 && x.mid.MantExp(nil) > maxArgument {
		return undefined(), undefined()
	}
	if x.IsZero() {
		return Real{}, c.Int(1)
	}
	bits := int(c.prec) + guard
	wide := bits + maxArgument
	r := fixed(&x.mid, wide)
	half := shifted(constants().pi, wide-1) // π/2
	quarter := new(big.Int).Add(r, new(big.Int).Rsh(half, 1))
	q := new(big.Int)
	q.Div(quarter, half) // Euclidean: the remainder is not negative
	r.Sub(r, new(big.Int).Mul(q, half)).Rsh(r, maxArgument)
	s, co := new(big.Int), new(big.Int).Lsh(big.NewInt(1), uint(bits))
	term, small := new(big.Int).Set(co), new(big.Int)
	for n := int64(1); term.BitLen() > 1; n++ {
		term.Mul(term, r).Rsh(term, uint(bits)).Quo(term, small.SetInt64(n))
		switch n % 4 {
		case 0:
			co.Add(co, term)
		case 1:
			s.Add(s, term)
		case 2:
			co.Sub(co, term)
		case 3:
			s.Sub(s, term)
		}
	}
	switch new(big.Int).And(q, big.NewInt(3)).Int64() {
	case 1:
		s, co = co, s.Neg(s)
	case 2:
		s, co = s.Neg(s), co.Neg(co)
	case 3:
		s, co = co.Neg(co), s
	}
	sin, cos = c.float(s, bits), c.float(co, bits)
	sin.rad, cos.rad = sin.rad.add(x.rad), cos.rad.add(x.rad)
	c.note(&sin)
	c.note(&cos)
	return sin, cos
}

// Atan is the arc tangent of x.
func (c *Context) Atan(x *Real) Real {
	if x.bad || x.IsZero() {
		return *x
	}
	if x.mid.MantExp(nil) > 1 && x.Sign() != 0 { // atan x = ±π/2 − atan 1/x
		one := c.Int(1)
		inverse := c.Div(&one, x)
		rest := c.Atan(&inverse)
		quarter := c.Pi()
		quarter = c.scale(&quarter, -1)
		if x.mid.Sign() < 0 {
			quarter = c.Neg(&quarter)
		}
		return c.Sub(&quarter, &rest)
	}
	const halvings = 4
	bits := int(c.prec) + guard
	t := fixed(&x.mid, bits)
	one := new(big.Int).Lsh(big.NewInt(1), uint(bits))
	w := new(big.Int)
	for range halvings { // atan t = 2 atan(t / (1 + √(1 + t²)))
		w.Mul(t, t).Rsh(w, uint(bits)).Add(w, one).Lsh(w, uint(bits)).Sqrt(w)
		t.Lsh(t, uint(bits)).Quo(t, w.Add(w, one))
	}
	square := new(big.Int).Mul(t, t)
	square.Rsh(square, uint(bits))
	sum, part, small := new(big.Int), new(big.Int), new(big.Int)
	for n := int64(1); t.BitLen() > 1; n += 2 {
		part.Quo(t, small.SetInt64(n))
		if n%4 == 1 {
			sum.Add(sum, part)
		} else {
			sum.Sub(sum, part)
		}
		t.Mul(t, square).Rsh(t, uint(bits))
	}
	z := c.float(sum.Lsh(sum, halvings), bits)
	z.rad = z.rad.add(x.rad)
	c.note(&z)
	return z
}

// scale is x·2^n.
func (c *Context) scale(x *Real, n int) Real {
	z := Real{rad: x.rad, bad: x.bad}
	z.mid.Set(&x.mid)
	if z.mid.Sign() != 0 {
		z.mid.SetMantExp(&z.mid, n)
	}
	if z.rad.m != 0 {
		z.rad.e += n
	}
	return z
}

// Floor is the largest integer not above x, if it is the same for all of x.
func (c *Context) Floor(x *Real) Real {
	if x.bad || x.mid.Sign() != 0 && x.mid.MantExp(nil) > int(c.prec) {
		return undefined()
	}
	radius := x.rad.float()
	low := floor(new(big.Float).SetPrec(c.prec+64).SetMode(big.ToNegativeInf).Sub(&x.mid, radius))
	high := floor(new(big.Float).SetPrec(c.prec+64).SetMode(big.ToPositiveInf).Add(&x.mid, radius))
	if low.Cmp(high) != 0 {
		return undefined()
	}
	var z Real
	z.mid.SetPrec(c.prec).SetInt(low)
	c.Steps++
	return z
}

func floor(x *big.Float) *big.Int {
	n, accuracy := x.Int(nil)
	if accuracy == big.Above {
		n.Sub(n, big.NewInt(1))
	}
	return n
}
