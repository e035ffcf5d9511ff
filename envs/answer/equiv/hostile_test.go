package equiv

import (
	"strings"
	"testing"

	f "github.com/rltrain/rltrain/envs/answer/formula"

	"github.com/rltrain/rltrain/internal/expect"
)

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
