package equiv

import (
	"hash/fnv"
	"math/big"

	"github.com/rltrain/rltrain/envs/answer/ball"
	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// Points where expressions with variables are compared.
const (
	realPoints  = 7
	wholePoints = 14
)

// point gives every variable a value, from its name and the index.
type point struct {
	index   int
	whole   bool
	decadic bool // log means base 10
	widen   bool
}

// complex reports whether z and w have non-real values.
func (p point) complex() bool { return p.index >= 4 && !p.whole }

// ranges are the ranges of the real points, in 1/1024.
var ranges = [realPoints][2]int64{{20, 1000}, {1030, 4000}, {4100, 40000}, {-1000, -20}, {-6000, -1030}, {30, 3000}, {-9000, 9000}}

func (p point) value(c *ball.Context, name string) ball.Complex {
	h := fnv.New64a()
	h.Write([]byte{byte(p.index)})
	h.Write([]byte(name))
	sum := h.Sum64()
	if p.whole {
		return ball.FromReal(c.Int(1 + int64(sum>>20%24)))
	}
	draw := func(bits uint64) ball.Real {
		r := ranges[p.index]
		const fine = 1 << 12
		return c.Rat(big.NewRat(r[0]*fine+int64(bits%uint64((r[1]-r[0])*fine)), 1024*fine))
	}
	v := ball.FromReal(draw(sum >> 8))
	if p.complex() && (name == "z" || name == "w") {
		v.Im = draw(sum*0x9e3779b97f4a7c15>>16 + 77)
	}
	return v
}

// evaluator computes the value of an expression at a point.
type evaluator struct {
	c     *comparison
	ball  *ball.Context
	point point
	// Steps cost weight/384 each, because more bits take longer.
	weight, limit int
}

func newEvaluator(c *comparison, bits int, p point) *evaluator {
	weight := bits + 256
	return &evaluator{c: c, ball: ball.New(bits), point: p, weight: weight, limit: (maxArithmetic - c.arithmetic) * 384 / weight}
}

// finish records the work and returns the span of the exponents.
func (e *evaluator) finish() (span int) {
	e.c.arithmetic += e.ball.Steps * e.weight / 384
	return e.ball.Span
}

func (e *evaluator) eval(n *f.Node) ball.Complex {
	if e.ball.Steps > e.limit {
		return ball.Undefined()
	}
	e.ball.Steps++
	switch n.Kind {
	case f.Number:
		v := e.ball.Rat(n.Num)
		if e.point.widen && n.Places > 0 && n.Digits >= leastDigits {
			v = e.ball.Widen(&v, new(big.Rat).SetFrac(big.NewInt(1), new(big.Int).Mul(big.NewInt(2), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n.Places)), nil))))
		}
		return ball.FromReal(v)
	case f.Name:
		return e.point.value(e.ball, n.Text)
	case f.Constant:
		return e.constant(n.Text)
	case f.Sum, f.Product, f.Quotient:
		v := e.eval(n.Args[0])
		for _, arg := range n.Args[1:] {
			w := e.eval(arg)
			switch n.Kind {
			case f.Sum:
				v = e.ball.CAdd(&v, &w)
			case f.Product:
				v = e.ball.CMul(&v, &w)
			default:
				v = e.ball.CDiv(&v, &w)
			}
		}
		return v
	case f.Power:
		return e.power(n)
	case f.Call:
		return e.call(n)
	case f.Apply, f.Big:
		key := n.Text
		for _, arg := range n.Args {
			key += "," + e.opaque(arg)
		}
		return e.point.value(e.ball, key)
	case f.Quantity:
		return e.quantity(n)
	}
	return ball.Undefined()
}

// opaque formats an argument of an unknown function so that equal arguments usually get equal text. Atom names depend on
// their order, so each argument is formatted separately.
func (e *evaluator) opaque(n *f.Node) string {
	alone := newNormal(e.c)
	for _, name := range names(n, nil) {
		alone.atom("x "+name, true, rule{})
	}
	key := alone.key(n)
	for _, name := range names(n, nil) {
		key += " " + name
	}
	return key
}

func (e *evaluator) constant(name string) ball.Complex {
	switch name {
	case "pi":
		return ball.FromReal(e.ball.Pi())
	case "e":
		one := e.ball.Int(1)
		return ball.FromReal(e.ball.Exp(&one))
	case "i":
		return ball.Complex{Im: e.ball.Int(1)}
	}
	return ball.Undefined()
}

func (e *evaluator) quantity(n *f.Node) ball.Complex {
	v := e.eval(n.Args[0])
	switch n.Text {
	case "%":
		hundred := ball.FromReal(e.ball.Int(100))
		return e.ball.CDiv(&v, &hundred)
	case "deg":
		half, pi := ball.FromReal(e.ball.Int(180)), ball.FromReal(e.ball.Pi())
		v = e.ball.CMul(&v, &pi)
		return e.ball.CDiv(&v, &half)
	}
	return ball.Undefined()
}

func (e *evaluator) power(n *f.Node) ball.Complex {
	exponent, ok := exact(n.Args[1])
	if n.Args[0].Is(f.Constant, "e") && !(ok && exponent.IsInt()) {
		v := e.eval(n.Args[1])
		return e.ball.CExp(&v)
	}
	base := e.eval(n.Args[0])
	if ok {
		if exponent.Sign() == 0 && base.Re.Sign() == 0 && base.Im.Sign() == 0 {
			return ball.Undefined()
		}
		return e.ball.CPowRat(&base, exponent)
	}
	v := e.eval(n.Args[1])
	if k, ok := wholeValue(&v); ok && k > -5000 && k < 5000 {
		return e.ball.CPowInt(&base, int(k))
	}
	return e.ball.CPow(&base, &v)
}

// wholeValue returns v as an integer, if it is exactly one.
func wholeValue(v *ball.Complex) (int64, bool) {
	if !v.Valid() || !v.IsReal() || !v.Re.Exact() {
		return 0, false
	}
	mid := v.Re.Mid()
	if !mid.IsInt() || mid.MantExp(nil) > 60 {
		return 0, false
	}
	k, _ := mid.Int64()
	return k, true
}

// names returns the variables of an expression, sorted.
func names(n *f.Node, found []string) []string {
	if n.Kind == f.Name {
		at := 0
		for at < len(found) && found[at] < n.Text {
			at++
		}
		if at == len(found) || found[at] != n.Text {
			found = append(found[:at], append([]string{n.Text}, found[at:]...)...)
		}
	}
	for _, arg := range n.Args {
		found = names(arg, found)
	}
	return found
}
