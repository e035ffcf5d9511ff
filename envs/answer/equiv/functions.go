package equiv

import (
	"github.com/rltrain/rltrain/envs/answer/ball"
	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// call is the value of a known function.
func (e *evaluator) call(n *f.Node) ball.Complex {
	if v, ok := exact(n); ok {
		return ball.FromReal(e.ball.Rat(v))
	}
	args := make([]ball.Complex, len(n.Args))
	for i, arg := range n.Args {
		args[i] = e.eval(arg)
		if !args[i].Valid() {
			return ball.Undefined()
		}
	}
	c, x := e.ball, &args[0]
	one := ball.FromReal(c.Int(1))
	switch n.Text {
	case "sin", "cos", "tan", "cot", "sec", "csc":
		return e.trigonometric(n.Text, x)
	case "sinh", "cosh", "tanh", "coth", "sech", "csch":
		return e.hyperbolic(n.Text, x)
	case "arcsin", "arccos", "arctan", "arccot", "arcsec", "arccsc", "arcsinh", "arccosh", "arctanh":
		return e.inverse(n.Text, x)
	case "ln":
		return c.CLog(x)
	case "lg":
		return e.logarithm(x, 10)
	case "log":
		if len(args) == 2 {
			above, below := c.CLog(x), c.CLog(&args[1])
			return c.CDiv(&above, &below)
		}
		if e.point.decadic {
			return e.logarithm(x, 10)
		}
		return c.CLog(x)
	case "abs":
		return c.CAbs(x)
	case "conj":
		return ball.Complex{Re: x.Re, Im: c.Neg(&x.Im)}
	case "Re":
		return ball.FromReal(x.Re)
	case "Im":
		return ball.FromReal(x.Im)
	case "floor":
		return realOnly(x, c.Floor(&x.Re))
	case "ceil":
		m := c.Neg(&x.Re)
		v := c.Floor(&m)
		return realOnly(x, c.Neg(&v))
	case "sgn":
		if sign := x.Re.Sign(); sign != 0 {
			return realOnly(x, c.Int(int64(sign)))
		}
	case "max", "min":
		return e.extreme(n.Text, args)
	case "factorial", "double factorial":
		k, ok := wholeValue(x)
		if !ok || k < 0 || k > maxFactorial {
			break
		}
		step := int64(1)
		if n.Text != "factorial" {
			step = 2
		}
		v := one
		for ; k > 1; k -= step {
			factor := ball.FromReal(c.Int(k))
			v = c.CMul(&v, &factor)
		}
		return v
	case "binom":
		return e.binomial(args)
	}
	return ball.Undefined()
}

func realOnly(x *ball.Complex, v ball.Real) ball.Complex {
	if !x.IsReal() {
		return ball.Undefined()
	}
	return ball.FromReal(v)
}

func (e *evaluator) logarithm(x *ball.Complex, base int64) ball.Complex {
	b := ball.FromReal(e.ball.Int(base))
	above, below := e.ball.CLog(x), e.ball.CLog(&b)
	return e.ball.CDiv(&above, &below)
}

func (e *evaluator) trigonometric(name string, x *ball.Complex) ball.Complex {
	c := e.ball
	sin, cos := c.CSinCos(x)
	one := ball.FromReal(c.Int(1))
	switch name {
	case "sin":
		return sin
	case "cos":
		return cos
	case "tan":
		return c.CDiv(&sin, &cos)
	case "cot":
		return c.CDiv(&cos, &sin)
	case "sec":
		return c.CDiv(&one, &cos)
	}
	return c.CDiv(&one, &sin)
}

func (e *evaluator) hyperbolic(name string, x *ball.Complex) ball.Complex {
	c := e.ball
	one, two := ball.FromReal(c.Int(1)), ball.FromReal(c.Int(2))
	grow := c.CExp(x)
	shrink := c.CDiv(&one, &grow)
	sum, difference := c.CAdd(&grow, &shrink), c.CSub(&grow, &shrink)
	switch name {
	case "sinh":
		return c.CDiv(&difference, &two)
	case "cosh":
		return c.CDiv(&sum, &two)
	case "tanh":
		return c.CDiv(&difference, &sum)
	case "coth":
		return c.CDiv(&sum, &difference)
	case "sech":
		return c.CDiv(&two, &sum)
	}
	return c.CDiv(&two, &difference)
}

// inverse is an inverse function of a real number, within its real range.
func (e *evaluator) inverse(name string, x *ball.Complex) ball.Complex {
	c := e.ball
	if !x.IsReal() {
		return ball.Undefined()
	}
	one := ball.FromReal(c.Int(1))
	pi := c.Pi()
	two := c.Int(2)
	quarter := c.Div(&pi, &two)
	switch name {
	case "arctan":
		return ball.FromReal(c.Atan(&x.Re))
	case "arccot": // in (0, π)
		v := c.Atan(&x.Re)
		return ball.FromReal(c.Sub(&quarter, &v))
	case "arcsec", "arccsc":
		v := c.CDiv(&one, x)
		return e.inverse(map[string]string{"arcsec": "arccos", "arccsc": "arcsin"}[name], &v)
	case "arcsinh", "arccosh":
		square := c.CMul(x, x)
		if name == "arcsinh" {
			square = c.CAdd(&square, &one)
		} else if square = c.CSub(&square, &one); x.Re.Sign() <= 0 || square.Re.Sign() < 0 {
			return ball.Undefined()
		}
		root := c.CSqrt(&square)
		sum := c.CAdd(x, &root)
		return c.CLog(&sum)
	case "arctanh":
		above, below := c.CAdd(&one, x), c.CSub(&one, x)
		quotient := c.CDiv(&above, &below)
		if quotient.Re.Sign() <= 0 {
			return ball.Undefined()
		}
		log := c.CLog(&quotient)
		half := ball.FromReal(two)
		return c.CDiv(&log, &half)
	}
	// arcsin x = atan(x / √(1 − x²))
	above, below := c.CSub(&one, x), c.CAdd(&one, x)
	square := c.CMul(&above, &below)
	var v ball.Real
	switch {
	case square.Re.IsZero() && x.Re.Sign() > 0:
		v = quarter
	case square.Re.IsZero() && x.Re.Sign() < 0:
		v = c.Neg(&quarter)
	case square.Re.Sign() > 0:
		root := c.CSqrt(&square)
		slope := c.CDiv(x, &root)
		v = c.Atan(&slope.Re)
	default:
		return ball.Undefined()
	}
	if name == "arccos" {
		v = c.Sub(&quarter, &v)
	}
	return ball.FromReal(v)
}

func (e *evaluator) extreme(name string, args []ball.Complex) ball.Complex {
	v := args[0]
	for i := range args {
		if !args[i].IsReal() {
			return ball.Undefined()
		}
		d := e.ball.Sub(&args[i].Re, &v.Re)
		if i > 0 && d.Sign() == 0 {
			return ball.Undefined()
		}
		if d.Sign() > 0 == (name == "max") && d.Sign() != 0 {
			v = args[i]
		}
	}
	return v
}

// binomial is n over k for integer k from 0 to 60.
func (e *evaluator) binomial(args []ball.Complex) ball.Complex {
	if len(args) != 2 {
		return ball.Undefined()
	}
	k, ok := wholeValue(&args[1])
	if n, whole := wholeValue(&args[0]); ok && whole && n >= k && k > n/2 {
		k = n - k
	}
	if !ok || k < 0 || k > 60 {
		return ball.Undefined()
	}
	v := ball.FromReal(e.ball.Int(1))
	for i := range k {
		shift, divisor := ball.FromReal(e.ball.Int(i)), ball.FromReal(e.ball.Int(i+1))
		factor := e.ball.CSub(&args[0], &shift)
		v = e.ball.CMul(&v, &factor)
		v = e.ball.CDiv(&v, &divisor)
	}
	return v
}
