package equiv

import (
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// maxAtoms bounds the atoms of one comparison.
const maxAtoms = 12

// monomial holds the exponent of each atom.
type monomial [maxAtoms]int8

// polynomial holds the non-zero coefficients.
type polynomial map[monomial]*big.Rat

// fraction is above/below; below is not the zero polynomial.
type fraction struct{ above, below polynomial }

func number(v *big.Rat) polynomial {
	p := polynomial{}
	if v.Sign() != 0 {
		p[monomial{}] = v
	}
	return p
}

func one() polynomial { return number(big.NewRat(1, 1)) }

// value returns a polynomial without atoms as a number.
func (p polynomial) value() (*big.Rat, bool) {
	if len(p) == 0 {
		return new(big.Rat), true
	}
	v, ok := p[monomial{}]
	return v, ok && len(p) == 1
}

func (p polynomial) add(q polynomial) polynomial {
	sum := make(polynomial, len(p)+len(q))
	for m, v := range p {
		sum[m] = v
	}
	for m, v := range q {
		if w, ok := sum[m]; ok {
			v = new(big.Rat).Add(v, w)
			if v.Sign() == 0 {
				delete(sum, m)
				continue
			}
		}
		sum[m] = v
	}
	return sum
}

func (p polynomial) equal(q polynomial) bool {
	if len(p) != len(q) {
		return false
	}
	for m, v := range p {
		if w, ok := q[m]; !ok || v.Cmp(w) != 0 {
			return false
		}
	}
	return true
}

// String formats a polynomial with ordered terms.
func (p polynomial) String() string {
	terms := make([]string, 0, len(p))
	for m, v := range p {
		var b strings.Builder
		for i, e := range m {
			if e != 0 {
				b.WriteString("#" + strconv.Itoa(i) + "^" + strconv.Itoa(int(e)))
			}
		}
		terms = append(terms, b.String()+"*"+v.RatString())
	}
	slices.Sort(terms)
	return strings.Join(terms, "+")
}

// leading is the coefficient of the largest monomial.
func (p polynomial) leading() *big.Rat {
	var largest monomial
	var coefficient *big.Rat
	for m, v := range p {
		if coefficient == nil || slices.Compare(m[:], largest[:]) > 0 {
			largest, coefficient = m, v
		}
	}
	return coefficient
}

func (p polynomial) scaled(by *big.Rat) polynomial {
	out := make(polynomial, len(p))
	for m, v := range p {
		out[m] = new(big.Rat).Mul(v, by)
	}
	return out
}
