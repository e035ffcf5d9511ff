package equiv

import (
	"math/big"
	"os"
	"strings"
	"testing"

	f "github.com/rltrain/rltrain/envs/answer/formula"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// pair is a line of testdata/pairs.txt.
type pair struct {
	rule, a, b string
	equal      bool
}

func pairs(t testing.TB) []pair {
	t.Helper()
	text := must.Get(os.ReadFile("testdata/pairs.txt"))(t)
	var out []pair
	rule := ""
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		sign, rest, _ := strings.Cut(line, " ")
		if sign == "#" {
			rule = rest
			continue
		}
		a, b, ok := strings.Cut(rest, " ;; ")
		expect.Require(t, ok && (sign == "=" || sign == "!"), "testdata/pairs.txt: %q", line)
		out = append(out, pair{rule, a, b, sign == "="})
	}
	return out
}

func TestPairs(t *testing.T) {
	equal, different := 0, 0
	for _, p := range pairs(t) {
		if p.equal {
			equal++
		} else {
			different++
		}
		v := Compare(p.a, p.b)
		expect.True(t, v.Equal == p.equal, "%s: %q and %q: %t by %s: %s, %s", p.rule, p.a, p.b, v.Equal, v.Rule, v.Gold, v.Answer)
		v = Compare(p.b, p.a)
		expect.True(t, v.Equal == p.equal, "%s: %q and %q: %t by %s: %s, %s", p.rule, p.b, p.a, v.Equal, v.Rule, v.Gold, v.Answer)
	}
	expect.True(t, equal+different >= 400 && different*9 >= equal*8, "%d pairs are equal, %d different: want 400, about half of them different", equal, different)
}

// Every answer equals itself, also with other spacing and with \left and \right.
func TestSpelling(t *testing.T) {
	grow := strings.NewReplacer("(", `\left(`, ")", `\right)`, "[", `\left[`, "]", `\right]`)
	for _, p := range pairs(t) {
		for _, s := range []string{p.a, p.b} {
			spellings := map[string]string{"itself": s, "space around": "  " + s + "\n", "dollars": "$" + s + "$", "box": `\boxed{` + s + "}", "display": `\[ ` + s + ` \]`}
			if !strings.ContainsAny(s, `$\`) || strings.Contains(s, "$") {
				delete(spellings, "dollars")
			}
			if !strings.Contains(s, "]") || !strings.HasPrefix(s, "]") {
				if !strings.Contains(s, "sqrt[") && !strings.Contains(s, "left") && !strings.Contains(s, "sqrt(") {
					spellings["growing brackets"] = grow.Replace(s)
				}
			}
			if n, err := f.Parse(s); err == nil && n.Kind != f.Text {
				spellings["thin spaces"] = `\,` + s + `\;`
				spellings["spaces around operators"] = strings.NewReplacer("+", " + ", "=", " = ", "<", " < ", ">", " > ", "< =", "<=", "> =", ">=").Replace(s)
			}
			for name, spelling := range spellings {
				if name == "spaces around operators" && (strings.ContainsAny(s, "'*") || strings.Contains(s, ">=") || strings.Contains(s, "<=") || strings.HasPrefix(s, "+")) {
					continue
				}
				v := Compare(s, spelling)
				expect.True(t, v.Equal, "%s: %q and %q differ by %s: %s, %s", name, s, spelling, v.Rule, v.Gold, v.Answer)
			}
		}
	}
}

// moved returns an exact number with a thousandth added.
func moved(s string) (string, bool) {
	n, err := f.Parse(s)
	if err != nil {
		return "", false
	}
	v, ok := exact(n)
	if !ok || v.Sign() == 0 || !small(v) {
		return "", false
	}
	return new(big.Rat).Mul(v, big.NewRat(1001, 1000)).RatString(), true
}

func TestThousandthIsSeen(t *testing.T) {
	checked := 0
	for _, p := range pairs(t) {
		for _, s := range []string{p.a, p.b} {
			other, ok := moved(s)
			if !ok {
				continue
			}
			checked++
			v := Compare(s, other)
			expect.True(t, !v.Equal, "%q and %q are equal by %s", s, other, v.Rule)
			r, _ := new(big.Rat).SetString(other)
			decimal := r.FloatString(12)
			expect.True(t, !Compare(s, decimal).Equal, "%q and %q are equal", s, decimal)
		}
	}
	for _, s := range []string{`\sqrt{2}`, `\pi`, `\frac{x}{7}`, `e^x`, `\sin x`, `(a+b)^3`, `\frac{1+\sqrt5}{2}`, `x^2+y^2`} {
		v := Compare(s, `\frac{1001}{1000}(`+s+")")
		expect.True(t, !v.Equal, "%q is equal to itself and a thousandth by %s", s, v.Rule)
		checked++
	}
	expect.True(t, checked >= 150, "only %d numbers", checked)
}

func FuzzCompare(f *testing.F) {
	for _, p := range pairs(f) {
		f.Add(p.a, p.b)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		v, w := Compare(a, b), Compare(b, a)
		expect.Require(t, v.Equal == w.Equal, "%q and %q: %t by %s, the other way round %t by %s", a, b, v.Equal, v.Rule, w.Equal, w.Rule)
		expect.Require(t, v.Rule != "", "%q and %q: no rule", a, b)
		for _, s := range []string{a, b} {
			expect.Require(t, strings.TrimSpace(s) == "" || Compare(s, s).Equal, "%q differs from itself", s)
		}
	})
}

// Adding to an exact number gives another number.
func FuzzAdded(f *testing.F) {
	for _, p := range pairs(f) {
		f.Add(p.a)
	}
	f.Fuzz(func(t *testing.T, a string) {
		if other, ok := moved(a); ok {
			v := Compare(a, other)
			expect.Require(t, !v.Equal, "%q and %q are equal by %s", a, other, v.Rule)
		}
	})
}

// hostile answers would be expensive without limits on the work.
func hostile() map[string]string {
	repeat := strings.Repeat
	out := map[string]string{
		"tower of powers":            "9^{9^{9}}",
		"high tower of powers":       "9^{9^{9^{9^{9^{9}}}}}",
		"typed tower":                repeat("9^", 500) + "9",
		"braced tower":               repeat("2^{", 300) + "2" + repeat("}", 300),
		"brackets":                   repeat("(", 10000) + "1" + repeat(")", 10000),
		"brackets that stay open":    repeat("(", 10000),
		"brackets within the length": repeat("(", 1000) + "1" + repeat(")", 1000),
		"square brackets":            repeat("[", 1500),
		"sets":                       repeat(`\{`, 900) + repeat(`\}`, 900),
		"fractions":                  repeat(`\frac{1}{`, 400) + "1" + repeat("}", 400),
		"unbraced fractions":         repeat(`\frac`, 700),
		"fractions of digits":        repeat(`\frac11`, 500),
		"roots":                      repeat(`\sqrt{`, 500) + "2" + repeat("}", 500),
		"unbraced roots":             repeat(`\sqrt`, 700) + "2",
		"a million digits":           repeat("9", 1000000),
		"digits":                     repeat("9", 3900),
		"decimals":                   "0." + repeat("3", 3900),
		"groups of digits":           "1" + repeat(",000", 900),
		"a list of digits":           "1" + repeat(", 1", 1200),
		"a list of fractions":        `\frac12` + repeat(`,\frac12`, 400),
		"a list in another order":    "x,y" + repeat(",x^2+y", 200),
		"a sum":                      "x" + repeat("+x", 1500),
		"a sum of names":             repeat("a+b+c+d+e+f+g+h+k+l+m+n+o+p+q+", 60) + "1",
		"a product of sums":          repeat("(a+b+c+d+e)", 100),
		"a power of a sum":           "(a+b+c+d+e+f)^{60}",
		"a power of a power":         "((((a+b)^{50})^{50})^{50})^{50}",
		"a power of a quotient":      `(\frac{a+b}{c+d}+\frac{e+f}{g+h})^{40}`,
		"large exponents":            "x^{99999999999}+y^{99999999999}",
		"a large power":              "3^{100000000}",
		"a large power in a sum":     `\pi+3^{3000}`,
		"a small power":              `\pi+3^{-3000}`,
		"a factorial":                "99999999!",
		"factorials":                 "9" + repeat("!", 1000),
		"a factorial of names":       "n!" + repeat("+n!", 300),
		"a binomial":                 `\binom{10^{9}}{10^{8}}`,
		"sines":                      repeat(`\sin(`, 300) + "x" + repeat(")", 300),
		"a sum of sines":             `\sin x` + repeat(`+\sin x`, 300),
		"sines within the depth":     repeat(`\sin(`, 12) + "x" + repeat(")", 12),
		"exponentials":               repeat("e^{", 20) + "x" + repeat("}", 20),
		"logarithms":                 repeat(`\ln(`, 20) + "x" + repeat(")", 20),
		"signs":                      repeat(`\pm `, 1000) + "1",
		"a sum of signs":             "1" + repeat(`\pm 1`, 300),
		"minus signs":                repeat("-", 3900) + "1",
		"a matrix":                   `\begin{pmatrix}` + repeat(`1&2&3\\`, 300) + `\end{pmatrix}`,
		"matrices":                   repeat(`\begin{pmatrix}1&2\\3&4\end{pmatrix}`, 80),
		"matrices in matrices":       repeat(`\begin{pmatrix}`, 100) + "1" + repeat(`\end{pmatrix}`, 100),
		"a union":                    "[0,1]" + repeat(`\cup[0,1]`, 300),
		"a union of roots":           `[\sqrt2,\sqrt3]` + repeat(`\cup[\sqrt5,\sqrt7]`, 100),
		"a chain":                    "1" + repeat("<x", 1000),
		"a chain of equations":       "1" + repeat("=1", 1000),
		"equations":                  "x=1" + repeat(" or x=1", 300),
		"bars":                       repeat("|", 3000),
		"bars around":                repeat("|", 500) + "x" + repeat("|", 500),
		"indices":                    "x" + repeat("_{x", 800) + repeat("}", 800),
		"primes":                     "x" + repeat("'", 3000),
		"boxes":                      repeat(`\boxed{`, 500) + "1" + repeat("}", 500),
		"texts":                      repeat(`\text{`, 500) + "1" + repeat("}", 500),
		"dollars":                    repeat("$", 3999),
		"stars":                      repeat("*", 3999),
		"backslashes":                repeat(`\`, 3999),
		"spaces":                     repeat(" ", 1000000),
		"words":                      "1 " + repeat("apple ", 600),
		"one word":                   repeat("a", 3999),
		"letters":                    repeat("a ", 1900),
		"different letters":          repeat("a b c d f g h j k l m n o p q r s t u v w x y z ", 60),
		"raised digits":              "2" + repeat("²", 1500),
		"fractions in unicode":       repeat("½", 1000),
		"full width":                 repeat("９", 1200),
		"roots in unicode":           repeat("√", 1200) + "2",
		"invalid bytes":              repeat("\xff\xfe", 1900),
		"nul bytes":                  repeat("\x00", 3900),
		"commas":                     repeat(",", 3900),
		"ors":                        repeat(" or ", 900),
		"colons":                     "1" + repeat(":1", 1200),
		"percent signs":              "1" + repeat("%", 3000),
		"degrees":                    "1" + repeat(`^\circ`, 600),
		"periods":                    "0." + repeat(`\overline{3}`, 300),
		"exponents of decimals":      "1e999" + repeat("*1e999", 300),
		"an exponent":                "1e999",
		"integrals":                  repeat(`\int_0^1 `, 400) + "x",
		"sums":                       repeat(`\sum_{k=0}^{n} `, 250) + "k",
		"functions":                  repeat("f(", 600) + "x" + repeat(")", 600),
		"functions of sums":          "f(x+1)" + repeat("+f(x+1)", 400),
		"floors":                     repeat(`\lfloor `, 300) + "x" + repeat(`\rfloor `, 300),
		"chooses":                    repeat("{", 500) + `1 \choose 2` + repeat("}", 500),
		"logarithms of bases":        repeat(`\log_{2}`, 300) + "8",
		"greatest divisors":          `\gcd(` + repeat("10^{1000},", 300) + "2)",
		"roots of large numbers":     `\sqrt[50]{` + repeat("7", 380) + "}",
		"a root of a large degree":   `\sqrt[999999999]{2}`,
		"a fraction of large powers": `\frac{2^{3900}+1}{3^{2400}+1}`,
		"trigonometry of a tower":    `\sin(9^{9^{9}})`,
		"a base":                     "11111_{999999999}",
		"nested lists":               repeat("{1,", 500) + "1" + repeat("}", 500),
		"intervals":                  repeat("[1,2)", 700),
		"implications":               repeat(`x=1 \Rightarrow `, 200),
		"commands":                   repeat(`\alpha`, 600),
		"unknown commands":           repeat(`\zzz `, 700),
	}
	return out
}

// TestHostile bounds the work instead of the time: nodes when parsing, counted operations when comparing.
func TestHostile(t *testing.T) {
	answers := hostile()
	expect.Require(t, len(answers) >= 90, "only %d answers", len(answers))
	others := []string{"18", `\frac{x+1}{2}`, "(1,2)", "x=4 or x=-8", `[0,\infty)`, ""}
	for name, answer := range answers {
		for _, gold := range append(others, answer, answer+"+1") {
			a, errA := f.Readings(f.Clean(gold))
			b, errB := f.Readings(f.Clean(answer))
			if errA == nil && errB == nil {
				for _, n := range append(a, b...) {
					size := count(n)
					expect.True(t, size <= 6000, "%s: %d nodes", name, size)
				}
				c := &comparison{}
				c.same(a[0], b[0])
				expect.True(t, c.comparisons <= maxComparisons+200 && c.arithmetic <= 2*maxArithmetic && c.products <= maxProducts+100000,
					"%s: %d comparisons, %d operations, %d products", name, c.comparisons, c.arithmetic, c.products)
			}
			v := Compare(gold, answer)
			expect.True(t, !v.Equal || gold == answer || strings.TrimSpace(gold) == "" || name == "minus signs" || name == "spaces", "%s is equal to %.60q: %s", name, gold, v.Rule)
		}
		expect.True(t, strings.TrimSpace(answer) == "" || Compare(answer, answer).Equal, "%s differs from itself", name)
	}
}

func count(n *f.Node) int {
	size := 1
	for _, arg := range n.Args {
		size += count(arg)
	}
	return size
}
