package reward

import "math"

// evaluation evaluates an expression for one label and differentiates it by reverse accumulation: forward keeps every
// value, backward carries the adjoint of each node to the three inputs that depend on the probabilities.
type evaluation struct {
	values        []float64 // by node id
	action, truth int
	probs         []float64
	entropy       float64

	gradient       []float64 // by label, accumulated
	entropyAdjoint float64
}

// value returns R_action. probs may be nil if the expression does not read them.
func (e *evaluation) value(x *expression, action, truth int, probs []float64) float64 {
	e.action, e.truth, e.probs = action, truth, probs
	return e.forward(x.root)
}

// expected returns Σ_a π_a·R_a and writes R_k + Σ_a π_a·∂R_a/∂π_k to grad, which must be zero.
func (e *evaluation) expected(x *expression, truth int, probs, grad []float64) float64 {
	e.gradient, e.entropyAdjoint = grad, 0
	e.entropy = entropyOf(probs)
	sum := 0.0
	for a, p := range probs {
		value := e.value(x, a, truth, probs)
		sum += p * value
		grad[a] += value
		e.backward(x.root, p)
	}
	if e.entropyAdjoint != 0 {
		for k, p := range probs {
			grad[k] += e.entropyAdjoint * entropySlope(p)
		}
	}
	return sum
}

// entropyOf is −Σ p·log p in nats, with 0·log 0 = 0.
func entropyOf(probs []float64) float64 {
	h := 0.0
	for _, p := range probs {
		if p != 0 {
			h -= p * math.Log(p)
		}
	}
	return h
}

// entropySlope is ∂H/∂p = −log p − 1. It is unbounded as p → 0, but softmax multiplies it by p. A p that underflowed to 0
// uses the slope at the smallest float32, so that the product is 0 and not NaN.
func entropySlope(p float64) float64 {
	if p == 0 {
		p = math.SmallestNonzeroFloat32
	}
	return -math.Log(p) - 1
}

func (e *evaluation) forward(n *node) float64 {
	v := e.compute(n)
	e.values[n.id] = v
	return v
}

func (e *evaluation) compute(n *node) float64 {
	switch n.op {
	case opConstant:
		return n.value
	case opCorrect:
		return truthValue(e.action == e.truth)
	case opConfidence:
		return e.probs[e.action]
	case opEntropy:
		return e.entropy
	case opPredicted:
		return float64(e.action)
	case opTruth:
		return float64(e.truth)
	case opChoose:
		if e.forward(n.args[0]) != 0 {
			return e.forward(n.args[1])
		}
		return e.forward(n.args[2])
	case opAnd:
		return truthValue(e.forward(n.args[0]) != 0 && e.forward(n.args[1]) != 0)
	case opOr:
		return truthValue(e.forward(n.args[0]) != 0 || e.forward(n.args[1]) != 0)
	case opMin, opMax:
		return e.extreme(n)
	case opIn:
		a := e.forward(n.args[0])
		for _, element := range n.args[1:] {
			if e.forward(element) == a {
				return 1
			}
		}
		return 0
	}
	a := e.forward(n.args[0])
	switch n.op {
	case opProb:
		return e.probs[int(a)]
	case opNegate:
		return -a
	case opAbs:
		return math.Abs(a)
	case opExp:
		return math.Exp(a)
	case opLog:
		return math.Log(a)
	case opSqrt:
		return math.Sqrt(a)
	case opNot:
		return truthValue(a == 0)
	}
	b := e.forward(n.args[1])
	switch n.op {
	case opAdd:
		return a + b
	case opSubtract:
		return a - b
	case opMultiply:
		return a * b
	case opDivide:
		return a / b
	case opPower:
		return math.Pow(a, b)
	case opEqual:
		return truthValue(a == b)
	case opLess:
		return truthValue(a < b)
	case opLessEqual:
		return truthValue(a <= b)
	}
	panic("reward: unknown operation in an expression")
}

// extreme returns the largest or smallest argument, or NaN if one is NaN.
func (e *evaluation) extreme(n *node) float64 {
	best := e.forward(n.args[0])
	for _, arg := range n.args[1:] {
		if v := e.forward(arg); n.op == opMax {
			best = max(best, v)
		} else {
			best = min(best, v)
		}
	}
	return best
}

// backward adds adjoint·∂n/∂π to the gradient, from the values of forward.
func (e *evaluation) backward(n *node, adjoint float64) {
	if !n.reads {
		return
	}
	value := func(i int) float64 { return e.values[n.args[i].id] }
	switch n.op {
	case opConfidence:
		e.gradient[e.action] += adjoint
	case opEntropy:
		e.entropyAdjoint += adjoint
	case opProb:
		e.gradient[int(value(0))] += adjoint
	case opNegate:
		e.backward(n.args[0], -adjoint)
	case opAdd:
		e.backward(n.args[0], adjoint)
		e.backward(n.args[1], adjoint)
	case opSubtract:
		e.backward(n.args[0], adjoint)
		e.backward(n.args[1], -adjoint)
	case opMultiply:
		e.backward(n.args[0], adjoint*value(1))
		e.backward(n.args[1], adjoint*value(0))
	case opDivide:
		e.backward(n.args[0], adjoint/value(1))
		e.backward(n.args[1], -adjoint*value(0)/(value(1)*value(1)))
	case opPower:
		e.backward(n.args[0], adjoint*powerSlopeBase(value(0), value(1)))
		e.backward(n.args[1], adjoint*powerSlopeExponent(value(0), value(1)))
	case opMin, opMax:
		for i, arg := range n.args {
			if value(i) == e.values[n.id] {
				e.backward(arg, adjoint)
				break
			}
		}
	case opAbs:
		switch a := value(0); {
		case a > 0:
			e.backward(n.args[0], adjoint)
		case a < 0:
			e.backward(n.args[0], -adjoint)
		}
	case opExp:
		e.backward(n.args[0], adjoint*e.values[n.id])
	case opLog:
		e.backward(n.args[0], adjoint/value(0))
	case opSqrt:
		e.backward(n.args[0], adjoint/(2*e.values[n.id]))
	case opChoose:
		if value(0) != 0 {
			e.backward(n.args[1], adjoint)
		} else {
			e.backward(n.args[2], adjoint)
		}
	}
}

// powerSlopeBase is ∂a^b/∂a; a^0 is 1 everywhere, even at a = 0.
func powerSlopeBase(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return b * math.Pow(a, b-1)
}

// powerSlopeExponent is ∂a^b/∂b; 0^b is 0 for every b > 0.
func powerSlopeExponent(a, b float64) float64 {
	if a == 0 && b > 0 {
		return 0
	}
	return math.Pow(a, b) * math.Log(a)
}

func truthValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
