package equiv

import (
	"math/big"

	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// maxBits bounds exact numbers.
const maxBits = 4000

// exact returns the value of an expression as a rational number, if it can be computed.
func exact(n *f.Node) (*big.Rat, bool) {
	switch n.Kind {
	case f.Number:
		return n.Num, true
	case f.Sum, f.Product, f.Quotient:
		var v *big.Rat
		for i, arg := range n.Args {
			w, ok := exact(arg)
			if !ok {
				return nil, false
			}
			switch {
			case i == 0:
				v = new(big.Rat).Set(w)
			case n.Kind == f.Sum:
				v.Add(v, w)
			case n.Kind == f.Product:
				v.Mul(v, w)
			case w.Sign() == 0:
				return nil, false
			default:
				v.Quo(v, w)
			}
			if !small(v) {
				return nil, false
			}
		}
		return v, v != nil
	case f.Power:
		return exactPower(n)
	case f.Call:
		return exactCall(n)
	case f.Quantity:
		if v, ok := exact(n.Args[0]); ok && n.Text == "%" {
			return new(big.Rat).Quo(v, big.NewRat(100, 1)), true
		}
	}
	return nil, false
}

func small(v *big.Rat) bool { return v.Num().BitLen() <= maxBits && v.Denom().BitLen() <= maxBits }

func exactPower(n *f.Node) (*big.Rat, bool) {
	base, ok := exact(n.Args[0])
	if !ok {
		return nil, false
	}
	exponent, ok := exact(n.Args[1])
	if !ok || !exponent.Num().IsInt64() || !exponent.Denom().IsInt64() {
		return nil, false
	}
	if root := exponent.Denom().Int64(); root != 1 {
		if base, ok = exactRoot(base, root); !ok {
			return nil, false
		}
	}
	return powerOf(base, exponent.Num().Int64())
}

// powerOf is base^e; ok is false if it is too large or undefined.
func powerOf(base *big.Rat, e int64) (*big.Rat, bool) {
	if e < 0 {
		if base.Sign() == 0 {
			return nil, false
		}
		base = new(big.Rat).Inv(base)
		if e = -e; e < 0 {
			return nil, false
		}
	}
	if e == 0 {
		return big.NewRat(1, 1), base.Sign() != 0
	}
	bits := int64(max(base.Num().BitLen(), base.Denom().BitLen()))
	if bits > 1 && (e > maxBits || (bits-1)*e > maxBits) { // a lower bound on the bits of the power
		return nil, false
	}
	if bits <= 1 { // 0, 1, −1
		e = 2 - e%2
	}
	power := big.NewInt(e)
	v := new(big.Rat).SetFrac(new(big.Int).Exp(base.Num(), power, nil), new(big.Int).Exp(base.Denom(), power, nil))
	return v, small(v)
}

// exactRoot is the root of a perfect power; negative numbers have odd roots only.
func exactRoot(v *big.Rat, degree int64) (*big.Rat, bool) {
	if degree < 2 || degree > 64 || v.Sign() < 0 && degree%2 == 0 {
		return nil, false
	}
	above, ok := wholeRoot(new(big.Int).Abs(v.Num()), degree)
	if !ok {
		return nil, false
	}
	below, ok := wholeRoot(v.Denom(), degree)
	if !ok {
		return nil, false
	}
	if v.Sign() < 0 {
		above.Neg(above)
	}
	return new(big.Rat).SetFrac(above, below), true
}

func wholeRoot(v *big.Int, degree int64) (*big.Int, bool) {
	if v.BitLen() > 600 || v.Sign() == 0 {
		return new(big.Int), v.Sign() == 0
	}
	n, d := big.NewInt(1), big.NewInt(degree)
	if degree == 2 {
		n.Sqrt(v)
	} else { // Newton's method from above
		n.Lsh(n, uint(v.BitLen())/uint(degree)+1)
		less := big.NewInt(degree - 1)
		for range 1000 {
			next := new(big.Int).Exp(n, less, nil)
			next.Quo(v, next)
			next.Add(next, new(big.Int).Mul(less, n)).Quo(next, d)
			if next.Cmp(n) >= 0 {
				break
			}
			n = next
		}
	}
	return n, new(big.Int).Exp(n, d, nil).Cmp(v) == 0
}

// maxFactorial bounds n in n!.
const maxFactorial = 400

func exactCall(n *f.Node) (*big.Rat, bool) {
	args := make([]*big.Rat, len(n.Args))
	for i, arg := range n.Args {
		var ok bool
		if args[i], ok = exact(arg); !ok {
			return nil, false
		}
	}
	first := args[0]
	switch n.Text {
	case "abs":
		return new(big.Rat).Abs(first), true
	case "floor":
		return new(big.Rat).SetInt(floorOf(first)), true
	case "ceil":
		v := new(big.Rat).SetInt(floorOf(new(big.Rat).Neg(first)))
		return v.Neg(v), true
	case "conj", "Re":
		return first, true
	case "sgn":
		return new(big.Rat).SetInt64(int64(first.Sign())), true
	case "factorial":
		if first.IsInt() && first.Sign() >= 0 && first.Num().IsInt64() && first.Num().Int64() <= maxFactorial {
			return new(big.Rat).SetInt(new(big.Int).MulRange(1, first.Num().Int64())), true
		}
	case "binom":
		if len(args) == 2 && first.IsInt() && args[1].IsInt() && first.Num().IsInt64() && args[1].Num().IsInt64() {
			a, b := first.Num().Int64(), args[1].Num().Int64()
			if a >= 0 && a <= 2000 && b >= 0 {
				v := new(big.Rat).SetInt(new(big.Int).Binomial(a, b))
				return v, small(v)
			}
		}
	case "max", "min":
		v := first
		for _, arg := range args {
			if (arg.Cmp(v) > 0) == (n.Text == "max") && arg.Cmp(v) != 0 {
				v = arg
			}
		}
		return v, true
	case "gcd", "lcm":
		return common(n.Text, args)
	case "log":
		return exactLog(args)
	}
	return nil, false
}

func floorOf(v *big.Rat) *big.Int { return new(big.Int).Div(v.Num(), v.Denom()) }

func common(name string, args []*big.Rat) (*big.Rat, bool) {
	v := new(big.Int)
	for i, arg := range args {
		if !arg.IsInt() || arg.Sign() <= 0 {
			return nil, false
		}
		g := new(big.Int).GCD(nil, nil, v, arg.Num())
		switch {
		case name == "gcd" || i == 0:
			v.Set(g)
		default:
			v.Mul(v, new(big.Int).Quo(arg.Num(), g))
		}
		if v.BitLen() > maxBits {
			return nil, false
		}
	}
	return new(big.Rat).SetInt(v), true
}

// exactLog is the logarithm of an integer power of an integer base.
func exactLog(args []*big.Rat) (*big.Rat, bool) {
	if len(args) != 2 || !args[0].IsInt() || !args[1].IsInt() || args[0].Sign() <= 0 || args[1].Cmp(big.NewRat(1, 1)) <= 0 {
		return nil, false
	}
	v, base, count := new(big.Int).Set(args[0].Num()), args[1].Num(), int64(0)
	rest := new(big.Int)
	for v.Cmp(base) >= 0 && count < maxBits {
		if v.QuoRem(v, base, rest); rest.Sign() != 0 {
			return nil, false
		}
		count++
	}
	return new(big.Rat).SetInt64(count), v.Cmp(big.NewInt(1)) == 0
}
