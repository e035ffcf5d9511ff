package ball

import (
	"math"
	"math/big"
)

// mag is an upper bound, m·2^e with m in [0.5, 1), or 0. Every operation rounds up.
type mag struct {
	m float64
	e int
}

// up slightly exceeds the rounding error of one float64 operation.
const up = 1 + 0x1p-50

func newMag(m float64, e int) mag {
	if m == 0 {
		return mag{}
	}
	fraction, exponent := math.Frexp(m)
	return mag{fraction, e + exponent}
}

// power is 2^e.
func power(e int) mag { return mag{0.5, e + 1} }

func (a mag) add(b mag) mag {
	switch {
	case a.m == 0:
		return b
	case b.m == 0:
		return a
	}
	if a.e < b.e {
		a, b = b, a
	}
	small := math.Ldexp(b.m, max(b.e-a.e, -60)) // smaller terms are still rounded up
	return newMag((a.m+small)*up, a.e)
}

func (a mag) mul(b mag) mag { return newMag(a.m*b.m*up, a.e+b.e) }

// div bounds a/b for a non-zero lower bound b.
func (a mag) div(b mag) mag { return newMag(a.m/b.m*up, a.e-b.e) }

func (a mag) sqrt() mag {
	if a.e%2 != 0 {
		return newMag(math.Sqrt(a.m*2)*up, (a.e-1)/2)
	}
	return newMag(math.Sqrt(a.m)*up, a.e/2)
}

func (a mag) less(b mag) bool {
	switch {
	case b.m == 0:
		return false
	case a.m == 0:
		return true
	case a.e != b.e:
		return a.e < b.e
	}
	return a.m < b.m
}

// above and below bound |x|; for below, x is not 0.
func above(x *big.Float) mag {
	if x.Sign() == 0 {
		return mag{}
	}
	return power(x.MantExp(nil))
}

func below(x *big.Float) mag { return power(x.MantExp(nil) - 1) }

// float returns the bound as a big.Float.
func (a mag) float() *big.Float {
	x := big.NewFloat(a.m)
	return x.SetMantExp(x, a.e)
}
