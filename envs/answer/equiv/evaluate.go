package equiv

import (
	"math/big"
	"slices"

	"github.com/rltrain/rltrain/envs/answer/ball"
	f "github.com/rltrain/rltrain/envs/answer/formula"
)

const (
	constantBits = 256 // initially, for an expression without variables
	pointBits    = 192 // at a point
	spareBits    = 100 // bits in which two balls must agree to be equal
	maxSpan      = 700 // of exponents; beyond it, agreement proves nothing
	leastPoints  = 3   // points where expressions with variables must agree
)

// outcome is the result at one point.
type outcome int

const (
	unknown outcome = iota
	agree
	differ
)

// evaluate compares two expressions by value: a single value, or values at fixed real and complex points. Disjoint
// balls prove a difference; equality needs agreement in spareBits wherever both have a value. With widen, a decimal
// means all numbers that round to it.
func (c *comparison) evaluate(a, b *f.Node, widen bool) bool {
	conventions := []bool{false}
	if plainLog(a) || plainLog(b) { // log may be natural or to base 10; both must agree
		conventions = append(conventions, true)
	}
	variables := !constant(a) || !constant(b)
	whole := variables && (needsWhole(a) || needsWhole(b))
	points := 1
	if variables {
		points = realPoints
		if whole {
			points = wholePoints
		}
	}
	agreed := 0
	for _, decadic := range conventions {
		agreed = 0
		for k := range points {
			p := point{index: k, whole: whole, decadic: decadic, widen: widen}
			switch c.at(a, b, p, variables) {
			case differ:
				return c.decide("evaluated: they differ", false)
			case agree:
				agreed++
			}
		}
		if agreed == 0 || variables && agreed < leastPoints {
			return c.decide("no value to compare", false)
		}
	}
	if widen {
		return true
	}
	return c.decide("evaluated: they agree", true)
}

// at compares two expressions at a point, with more bits if numbers are large.
func (c *comparison) at(a, b *f.Node, p point, variables bool) outcome {
	bits := constantBits
	if variables {
		bits = pointBits
	}
	for range 2 {
		e := newEvaluator(c, bits, p)
		x := e.eval(a)
		y := e.eval(b)
		span := e.finish()
		if c.arithmetic > maxArithmetic || !x.Valid() || !y.Valid() {
			return unknown
		}
		if p.widen {
			return e.near(&x, &y)
		}
		realX, realY := e.ball.Meets(&x.Im, &ball.Real{}), e.ball.Meets(&y.Im, &ball.Real{})
		if !e.ball.Meets(&x.Re, &y.Re) || !e.ball.Meets(&x.Im, &y.Im) {
			if variables && !realX && !realY && !(p.complex() && complexNames(a, b)) {
				return unknown // off the real numbers, branches are a convention
			}
			return differ
		}
		if span > maxSpan {
			return unknown
		}
		if bits < 2*span+spareBits+40 {
			bits = 2*span + spareBits + 60
			continue
		}
		if x.Re.Accurate(spareBits) && x.Im.Accurate(spareBits) && y.Re.Accurate(spareBits) && y.Im.Accurate(spareBits) {
			return agree
		}
		bits *= 2
	}
	return unknown
}

// near reports whether values with widened decimals overlap and differ by less than a thousandth.
func (e *evaluator) near(x, y *ball.Complex) outcome {
	if !e.ball.Meets(&x.Re, &y.Re) || !e.ball.Meets(&x.Im, &y.Im) {
		return differ
	}
	d := e.ball.CSub(x, y)
	off, size := e.ball.CAbs(&d), e.ball.CAbs(y)
	if size.Re.Mid().Sign() == 0 {
		return unknown
	}
	share := new(big.Float).Quo(off.Re.Mid(), size.Re.Mid())
	if share.Cmp(big.NewFloat(1e-3)) > 0 || !size.Re.Accurate(9) {
		return differ
	}
	return agree
}

// ratioIsConstant reports whether a/b is the same number at all points.
func (c *comparison) ratioIsConstant(a, b *f.Node, positive bool) bool {
	if needsWhole(a) || needsWhole(b) || plainLog(a) || plainLog(b) {
		return false
	}
	var first *ball.Complex
	agreed := 0
	for k := range realPoints {
		e := newEvaluator(c, pointBits, point{index: k})
		x, y := e.eval(a), e.eval(b)
		r := e.ball.CDiv(&x, &y)
		if span := e.finish(); c.arithmetic > maxArithmetic || !r.Valid() || span > maxSpan/10 {
			continue
		}
		if !r.IsReal() && !e.ball.Meets(&r.Im, &ball.Real{}) || r.Re.Sign() == 0 || positive && r.Re.Sign() < 0 {
			return false
		}
		if first != nil && !e.ball.Meets(&first.Re, &r.Re) {
			return false
		}
		if !r.Re.Accurate(spareBits / 2) {
			continue
		}
		first = &r
		agreed++
	}
	return agreed >= leastPoints
}

// order compares two constants by size; 0 if they are equal.
func (c *comparison) order(a, b *f.Node) (order int, ok bool) {
	x, okX := exact(a)
	y, okY := exact(b)
	if okX && okY {
		return x.Cmp(y), true
	}
	if a.String() == b.String() {
		return 0, true
	}
	e := newEvaluator(c, constantBits, point{})
	v, w := e.eval(a), e.eval(b)
	e.finish()
	if c.arithmetic > maxArithmetic || !v.Valid() || !w.Valid() || !v.IsReal() || !w.IsReal() {
		return 0, false
	}
	d := e.ball.Sub(&v.Re, &w.Re)
	if sign := d.Sign(); sign != 0 {
		return sign, true
	}
	return 0, c.numbers(a, b)
}

// approximate returns a rational number very close to a real constant.
func (c *comparison) approximate(n *f.Node) (*big.Rat, bool) {
	e := newEvaluator(c, constantBits, point{})
	v := e.eval(n)
	e.finish()
	if c.arithmetic > maxArithmetic || !v.Valid() || e.ball.Span > maxSpan || !v.IsReal() || !v.Re.Accurate(spareBits) || plainLog(n) {
		return nil, false
	}
	r, _ := v.Re.Mid().Rat(nil)
	return r, r != nil
}

// complexNames reports whether a variable stands for complex numbers.
func complexNames(a, b *f.Node) bool {
	for _, name := range names(b, names(a, nil)) {
		if name == "z" || name == "w" {
			return true
		}
	}
	return false
}

func plainLog(n *f.Node) bool {
	return n.Is(f.Call, "log") && len(n.Args) == 1 || slices.ContainsFunc(n.Args, plainLog)
}

// needsWhole reports whether variables must be integers: in factorials, binomials, and exponents of negative numbers.
func needsWhole(n *f.Node) bool {
	switch {
	case n.Kind == f.Call && (n.Text == "factorial" || n.Text == "double factorial" || n.Text == "binom" || n.Text == "gcd" || n.Text == "lcm") && !constant(n):
		return true
	case n.Kind == f.Power && !constant(n.Args[1]):
		if v, ok := exact(n.Args[0]); ok && v.Sign() < 0 {
			return true
		}
	}
	return slices.ContainsFunc(n.Args, needsWhole)
}
