package ball

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// functions are all elementary functions, with float64 versions for comparison.
var functions = map[string]struct {
	ball func(c *Context, x *Real) Real
	want func(float64) float64
}{
	"exp":   {(*Context).Exp, math.Exp},
	"log":   {(*Context).Log, math.Log},
	"sqrt":  {(*Context).Sqrt, math.Sqrt},
	"atan":  {(*Context).Atan, math.Atan},
	"floor": {(*Context).Floor, math.Floor},
	"sin":   {func(c *Context, x *Real) Real { s, _ := c.SinCos(x); return s }, math.Sin},
	"cos":   {func(c *Context, x *Real) Real { _, s := c.SinCos(x); return s }, math.Cos},
}

func TestFunctionsAgreeWithFloat64(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, f := range functions {
		for range 300 {
			x := math.Ldexp(rng.Float64()-0.5, rng.IntN(12)-4)
			c := New(100)
			r := c.Rat(new(big.Rat).SetFloat64(x))
			got := f.ball(c, &r)
			want := f.want(x)
			if math.IsNaN(want) {
				expect.True(t, !got.Valid(), "%s(%v) = %v, want none", name, x, &got.mid)
				continue
			}
			value, _ := got.mid.Float64()
			expect.True(t, got.Valid() && math.Abs(value-want) <= 1e-14*max(1, math.Abs(want)), "%s(%v) = %v, want %v", name, x, value, want)
		}
	}
}

// A low-precision ball must contain the high-precision value.
func TestErrorsAreBounds(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, f := range functions {
		for range 300 {
			v := new(big.Rat).SetFrac64(rng.Int64N(1<<40)-1<<39, 1+rng.Int64N(1<<30))
			radius := big.NewRat(1, 1<<40)
			few, many := New(64+rng.IntN(60)), New(500)
			x := few.Rat(v)
			x = few.Widen(&x, radius)
			// a number within the wide ball
			shift := new(big.Rat).Mul(radius, big.NewRat(rng.Int64N(201)-100, 100))
			y := many.Rat(new(big.Rat).Add(v, shift))
			a, b := f.ball(few, &x), f.ball(many, &y)
			expect.True(t, !a.Valid() || !b.Valid() || many.Meets(&a, &b),
				"%s(%s ± %s): %v ± %v does not hold %v", name, v.FloatString(20), radius.FloatString(20), &a.mid, a.rad.float(), &b.mid)
		}
	}
}

func TestIdentities(t *testing.T) {
	c := New(256)
	two, three, one := FromReal(c.Int(2)), FromReal(c.Int(3)), FromReal(c.Int(1))
	pi := FromReal(c.Pi())
	i := Complex{Im: c.Int(1)}
	minus := c.CNeg(&one)
	r2, r3 := c.CSqrt(&two), c.CSqrt(&three)
	sum := c.CAdd(&r2, &r3)
	six := c.CMul(&r2, &r3)
	square := c.CMul(&sum, &sum)
	twice := c.CMul(&two, &six)
	five := FromReal(c.Int(5))
	expanded := c.CAdd(&five, &twice)
	turn := c.CMul(&i, &pi)
	euler := c.CExp(&turn)
	log2 := c.CLog(&two)
	back := c.CExp(&log2)
	eight := FromReal(c.Int(-8))
	cube := c.CPowRat(&eight, big.NewRat(1, 3))
	logMinus := c.CLog(&minus)
	for name, pair := range map[string][2]Complex{
		"(√2+√3)² = 5+2√6": {square, expanded},
		"e^(iπ) = −1":      {euler, minus},
		"e^(log 2) = 2":    {back, two},
		"log(−1) = iπ":     {logMinus, turn},
		"cube root of −8":  {cube, c.CNeg(&two)},
	} {
		a, b := pair[0], pair[1]
		expect.True(t, c.Meets(&a.Re, &b.Re) && c.Meets(&a.Im, &b.Im), "%s: %v + %v i, %v + %v i", name, &a.Re.mid, &a.Im.mid, &b.Re.mid, &b.Im.mid)
		expect.True(t, a.Re.Accurate(200) && a.Im.Accurate(200), "%s: errors %v, %v", name, a.Re.rad.float(), a.Im.rad.float())
	}
}

func TestUndefined(t *testing.T) {
	c := New(128)
	zero, minus := c.Int(0), c.Int(-1)
	huge := c.Int(1 << 40)
	around := Real{rad: power(-100)}
	one := c.Int(1)
	for name, x := range map[string]Real{
		"1/0": c.Div(&one, &zero), "1/around 0": c.Div(&one, &around), "log 0": c.Log(&zero), "log −1": c.Log(&minus),
		"√−1": c.Sqrt(&minus), "e^(2^40)": c.Exp(&huge), "floor around 0": c.Floor(&around),
	} {
		expect.True(t, !x.Valid(), "%s = %v", name, &x.mid)
	}
}
