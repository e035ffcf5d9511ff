package equiv

import (
	"math/big"
	"strings"

	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// normal brings expressions into a normal form: a quotient of polynomials with rational coefficients in atoms. Atoms are
// variables, constants, roots, and functions of normal forms.
type normal struct {
	c     *comparison
	atoms map[string]int
	rules [maxAtoms]rule
	// free counts the algebraically independent atoms.
	free int
}

// rule states that the degree-th power of an atom is a number.
type rule struct {
	degree int8
	value  *big.Rat
}

func newNormal(c *comparison) *normal { return &normal{c: c, atoms: map[string]int{}} }

// decides reports whether different forms prove different expressions: they contain only variables and i.
func (n *normal) decides() bool { return n.free == len(n.atoms) }

// atom is the monomial of a single atom; ok is false if there are too many.
func (n *normal) atom(key string, free bool, r rule) (i int, ok bool) {
	i, known := n.atoms[key]
	if !known {
		if i = len(n.atoms); i == maxAtoms {
			return 0, false
		}
		n.atoms[key] = i
		n.rules[i] = r
		if free {
			n.free++
		}
	}
	return i, true
}

func (n *normal) single(key string, free bool, r rule) (fraction, bool) {
	i, ok := n.atom(key, free, r)
	if !ok {
		return fraction{}, false
	}
	var m monomial
	m[i] = 1
	return fraction{polynomial{m: big.NewRat(1, 1)}, one()}, true
}

func (n *normal) times(p, q polynomial) (polynomial, bool) {
	if n.c.products += len(p) * len(q); n.c.products > maxProducts {
		return nil, false
	}
	out := make(polynomial, len(p)*len(q))
	for a, v := range p {
		for b, w := range q {
			m, coefficient := a, new(big.Rat).Mul(v, w)
			if !small(coefficient) {
				return nil, false
			}
			for i := range m {
				e := int(a[i]) + int(b[i])
				if r := n.rules[i]; r.degree > 0 {
					for ; e >= int(r.degree); e -= int(r.degree) {
						coefficient.Mul(coefficient, r.value)
					}
				}
				if e > 120 {
					return nil, false
				}
				m[i] = int8(e)
			}
			if before, ok := out[m]; ok {
				coefficient.Add(coefficient, before)
				if coefficient.Sign() == 0 {
					delete(out, m)
					continue
				}
			}
			out[m] = coefficient
		}
	}
	return out, true
}

func (n *normal) multiply(a, b fraction) (out fraction, ok bool) {
	if out.above, ok = n.times(a.above, b.above); !ok {
		return out, false
	}
	out.below, ok = n.times(a.below, b.below)
	return out, ok
}

func (n *normal) divide(a, b fraction) (out fraction, ok bool) {
	if len(b.above) == 0 {
		return out, false
	}
	return n.multiply(a, fraction{b.below, b.above})
}

func (n *normal) add(a, b fraction) (out fraction, ok bool) {
	if a.below.equal(b.below) {
		return fraction{a.above.add(b.above), a.below}, true
	}
	left, ok := n.times(a.above, b.below)
	if !ok {
		return out, false
	}
	right, ok := n.times(b.above, a.below)
	if !ok {
		return out, false
	}
	out.above = left.add(right)
	out.below, ok = n.times(a.below, b.below)
	return out, ok
}

// form is the normal form of an expression, if it exists within bounds.
func (n *normal) form(e *f.Node) (out fraction, ok bool) {
	if v, ok := exact(e); ok {
		return fraction{number(v), one()}, true
	}
	switch e.Kind {
	case f.Name:
		return n.single("x "+e.Text, true, rule{})
	case f.Constant:
		if e.Text == "i" {
			return n.single("i", true, rule{2, big.NewRat(-1, 1)})
		}
		if e.Text != "pi" && e.Text != "e" {
			return out, false
		}
		return n.single("c "+e.Text, false, rule{})
	case f.Sum, f.Product, f.Quotient:
		for i, arg := range e.Args {
			part, ok := n.form(arg)
			if !ok {
				return out, false
			}
			switch {
			case i == 0:
				out = part
			case e.Kind == f.Sum:
				out, ok = n.add(out, part)
			case e.Kind == f.Product:
				out, ok = n.multiply(out, part)
			default:
				out, ok = n.divide(out, part)
			}
			if !ok {
				return out, false
			}
		}
		return out, len(e.Args) > 0
	case f.Power:
		return n.power(e)
	case f.Call, f.Apply, f.Big:
		key := "f" + e.Text
		for _, arg := range e.Args {
			key += "," + n.key(arg)
		}
		return n.single(key, false, rule{})
	case f.Quantity:
		if e.Text == "deg" {
			part, ok := n.form(e.Args[0])
			if !ok {
				return out, false
			}
			degree, ok := n.single("c pi", false, rule{})
			if !ok {
				return out, false
			}
			degree.below = number(big.NewRat(180, 1))
			return n.multiply(part, degree)
		}
	}
	return out, false
}

// key formats an expression so that equal normal forms get equal text.
func (n *normal) key(e *f.Node) string {
	if e.Kind == f.Relation || e.Kind == f.List || e.Kind == f.Tuple {
		key := "["
		for i, arg := range e.Args {
			if i > 0 && e.Kind == f.Relation {
				key += e.Ops[i-1]
			}
			key += n.key(arg) + ";"
		}
		return key + "]"
	}
	form, ok := n.form(e)
	if !ok {
		return e.String()
	}
	scale := new(big.Rat).Inv(form.below.leading())
	return form.above.scaled(scale).String() + "/" + form.below.scaled(scale).String()
}

// maxPower bounds exponents that are expanded.
const maxPower = 60

func (n *normal) power(e *f.Node) (out fraction, ok bool) {
	exponent, ok := exact(e.Args[1])
	if !ok {
		return n.single("p "+n.key(e.Args[0])+"^"+n.key(e.Args[1]), false, rule{})
	}
	if !exponent.Num().IsInt64() || !exponent.Denom().IsInt64() {
		return out, false
	}
	base, ok := n.form(e.Args[0])
	if !ok {
		return out, false
	}
	times, degree := exponent.Num().Int64(), exponent.Denom().Int64()
	if times > maxPower || times < -maxPower || times == 0 && len(base.above) == 0 {
		return out, false
	}
	if degree != 1 {
		r := rule{}
		if v, ok := base.above.value(); ok && degree <= 60 {
			if w, ok := base.below.value(); ok && v.Sign() > 0 {
				r = rule{int8(degree), new(big.Rat).Quo(v, w)}
			}
		}
		if base, ok = n.single("r"+exponent.Denom().String()+" "+n.key(e.Args[0]), false, r); !ok {
			return out, false
		}
	}
	if times < 0 {
		if base, ok = n.divide(fraction{one(), one()}, base); !ok {
			return out, false
		}
		times = -times
	}
	out = fraction{one(), one()}
	for range times {
		if out, ok = n.multiply(out, base); !ok {
			return out, false
		}
	}
	return out, true
}

// equal compares normal forms.
func (n *normal) equal(a, b fraction) (equal, ok bool) {
	left, ok := n.times(a.above, b.below)
	if !ok {
		return false, false
	}
	right, ok := n.times(b.above, a.below)
	if !ok {
		return false, false
	}
	return left.equal(right), true
}

// factor is the number a/b if a is a multiple of b by a constant.
func (n *normal) factor(a, b fraction) (*big.Rat, bool) {
	left, ok := n.times(a.above, b.below)
	if !ok {
		return nil, false
	}
	right, ok := n.times(b.above, a.below)
	if !ok {
		return nil, false
	}
	return ratio(left, right)
}

// ratio is the number p/q.
func ratio(p, q polynomial) (*big.Rat, bool) {
	if len(p) != len(q) || len(p) == 0 {
		return nil, false
	}
	var r *big.Rat
	for m, v := range p {
		w, ok := q[m]
		if !ok {
			return nil, false
		}
		x := new(big.Rat).Quo(v, w)
		if r != nil && r.Cmp(x) != 0 {
			return nil, false
		}
		r = x
	}
	return r, true
}

// cleared reports whether an equation "fraction = 0" keeps its solutions without the denominator: the denominator is one
// term without common variables with the numerator.
func (n *normal) cleared(e fraction) bool {
	if len(e.below) != 1 || !n.decides() {
		return false
	}
	for below := range e.below {
		for i, power := range below {
			common := power > 0
			for above := range e.above {
				common = common && above[i] > 0
			}
			if common {
				return false
			}
		}
	}
	return true
}

// linear reads slope·x + rest as the name x, the slope, and the root −rest/slope.
func (n *normal) linear(e fraction) (name string, slope, root *big.Rat, ok bool) {
	below, ok := e.below.value()
	if !ok || len(n.atoms) != 1 || !n.decides() {
		return "", nil, nil, false
	}
	for key := range n.atoms {
		if name, ok = strings.CutPrefix(key, "x "); !ok {
			return "", nil, nil, false
		}
	}
	rest := new(big.Rat)
	for m, v := range e.above {
		switch m[0] {
		case 0:
			rest = v
		case 1:
			slope = new(big.Rat).Quo(v, below)
		default:
			return "", nil, nil, false
		}
	}
	if slope == nil {
		return "", nil, nil, false
	}
	root = new(big.Rat).Quo(rest, below)
	root.Quo(root, slope)
	return name, slope, root.Neg(root), true
}
