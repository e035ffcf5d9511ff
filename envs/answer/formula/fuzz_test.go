package formula

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// seeds cover everything that the parser reads.
var seeds = []string{
	"18", "1,234.5", "1.000,50", `11,\! 111`, "2 1/2", `2\frac12`, `\dfrac{x+2}{7}`, "1e-5", `0.1\overline{6}`, "204_5", "½x²⁻³√2", `x \ge 5`, `[5,\infty)`, `(-\infty,2)\cup\{3\}`,
	`\{x \mid x > 3\}`, `]1,2[`, `x=4 \text{ or } x=-8`, `1 \pm \sqrt[3]{19}`, `(p,q)=(3,2)`, `\sin^2 2x\cos y`, `\begin{pmatrix}1&2\\3&4\end{pmatrix}`, `\left\{\begin{array}{l}x=1\\y=2\end{array}\right.`,
	`15\mbox{ cm}^2`, "12 square meters", `90^\circ`, `28\%`, "$1,000.99", "3 thousand", "18 apples (3 red)", `\text{(A)}`, `|x-|y||`, `\lfloor x\rfloor!`, `\binom{n}{k}`, `{n \choose k}`, `\log_2 8`, `F_{n-1}'`,
	`\sum_{k=0}^{n-1} k^2`, "12:00", "f(x+1)", `\overline{AB}`, `z\bar{z}`, `m\angle ABC = 90`, `\$5`, "5€", "x**2", "a <= b != c", `\mathbb{R} \setminus \{3\}`, `\\frac{1}{2}`, "cos-", "-$", `\sqrt`, `\sin^`, `\boxed{\boxed{7}}`, "**18**",
}

func FuzzParse(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		readings, err := Readings(Clean(s))
		expect.Require(t, (err == nil) == (len(readings) > 0), "%q: %d readings, error %v", s, len(readings), err)
		for _, n := range readings {
			check(t, s, n, 0)
		}
		first, err := Parse(s)
		expect.Require(t, err != nil || len(readings) != 0 && first.String() == readings[0].String(), "%q: the first reading of %v is not %v", s, readings, first)
		spaced, err2 := Parse("  " + s + " ")
		expect.Require(t, err != nil || err2 == nil && spaced.String() == first.String(), "%q: with space around it %v, %v; without %v", s, spaced, err2, first)
	})
}

// check looks for invalid nodes.
func check(t *testing.T, s string, n *Node, depth int) {
	t.Helper()
	expect.Require(t, depth <= 400, "%.200q: too deep", s)
	want := map[Kind]int{Quotient: 2, Power: 2, Sign: 1, Quantity: 1, Big: 3}[n.Kind]
	switch {
	case n.Kind == Number && n.Num == nil, n.Kind == Base && n.Num == nil,
		want > 0 && len(n.Args) != want,
		n.Kind == Relation && (len(n.Args) < 2 || len(n.Ops) != len(n.Args)-1),
		(n.Kind == Sum || n.Kind == Product || n.Kind == List || n.Kind == Tuple && n.Text != "()" || n.Kind == Union || n.Kind == Ratio) && len(n.Args) < 2,
		n.Kind == Call && len(n.Args) == 0, n.Kind == Matrix && len(n.Args) == 0:
		t.Fatalf("%.200q: kind %d, text %q, %d parts", s, n.Kind, n.Text, len(n.Args))
	}
	for _, arg := range n.Args {
		check(t, s, arg, depth+1)
	}
}

func FuzzClean(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > MaxLength {
			return
		}
		once := Clean(s)
		expect.Require(t, strings.TrimSpace(once) == once, "Clean(%q) = %q has space around it", s, once)
		for _, c := range []commas{thousands, separator, decimal} {
			tokens, err := lex(once, c)
			expect.Require(t, err != nil || tokens[len(tokens)-1].kind == endToken, "%q: no end", s)
		}
	})
}
