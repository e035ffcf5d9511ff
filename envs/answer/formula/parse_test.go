package formula

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestReadings(t *testing.T) {
	for answer, want := range map[string][]string{
		"27":                                   {"27"},
		"3,456":                                {"3456", "list(3, 456)"},
		"7,25":                                 {"list(7, 25)", "29/4≈7.25"},
		"(7,25)":                               {"(7, 25)"},
		"1.500,75":                             {"list(3/2≈1.500, 75)", "6003/4≈1500.75"},
		"3 1/2":                                {"7/2"},
		`3\frac{x}{2}`:                         {"(3·(x/2))"},
		`\frac12x`:                             {"((1/2)·x)"},
		"-x^2":                                 {"(-1·(x^2))"},
		"2x^2y":                                {"(2·(x^2)·y)"},
		"2^3^2":                                {"(2^(3^2))"},
		"x^10":                                 {"(x^10)"},
		`\sqrt[3]{x}^2`:                        {"((x^(1/3))^2)"},
		`\sin^2 3x + 1`:                        {"((sin((3·x))^2) + 1)"},
		`\cos^{-1} x`:                          {"arccos(x)"},
		"sin x cos y":                          {"(sin(x)·cos(y))"},
		`\log_3 9`:                             {"log(9, 3)"},
		"exp(2)":                               {"(e^2)"},
		"ab":                                   {"(a·b)"},
		"f(x, y)":                              {"f(x, y)"},
		"a(b+1)":                               {"(a·(b + 1))"},
		`x_{n+1}'`:                             {"x_(n + 1)'"},
		`|x|+|y|`:                              {"(abs(x) + abs(y))"},
		"5!":                                   {"factorial(5)"},
		`2 \le x < 5`:                          {"2 <= x < 5"},
		`x = 1 \text{ or } 2`:                  {"list(x = 1 or 2)"},
		`\{1, 2\}`:                             {"{1, 2}"},
		`[1,2)\cup(3,\infty)`:                  {"([1, 2) cup (3, infinity))"},
		`1\pm\sqrt2`:                           {"(1 + ±(2^(1/2)))"},
		`\begin{bmatrix}1&0\\0&1\end{bmatrix}`: {"matrix[1, 0; 0, 1]"},
		`\begin{cases}x=1\\y=2\end{cases}`:     {"list(x = 1 and y = 2)"},
		`\begin{aligned}y&=x+1\\&=2\end{aligned}`: {"y = (x + 1) = 2"},
		`4 \text{ cm}^2`:           {"4 [cm^2]"},
		"4 miles per hour":         {"4 [mi/h]"},
		"4 boxes (2 of them open)": {"4 [box]"},
		"4 hundred dollars":        {"400 [dollar]"},
		"$4$ km":                   {"4 [km]"},
		"US $":                     {"“US”"},
		`4\%`:                      {"4 [%]"},
		`4^\circ`:                  {"4 [deg]"},
		"121_3":                    {"121 in base 3"},
		"1:2":                      {"(1:2)"},
		`\text{two words}`:         {"“two words”"},
		`\overline{z}`:             {"conj(z)"},
		`\overline{AB}=3`:          {"overline AB = 3"},
		`\mathbb{R}`:               {"R"},
		`0.1\overline{6}`:          {"1/6"},
		`\boxed{\text{ 7 }}.`:      {"7"},
		`\left( 1 , 2 \right)`:     {"(1, 2)"},
	} {
		readings, err := Readings(Clean(answer))
		var got []string
		for _, r := range readings {
			got = append(got, r.String())
		}
		expect.True(t, err == nil && cmp.Equal(want, got), "%s: %v, %q, want %q", answer, err, got, want)
	}
}

// Ambiguous notation is refused, not guessed.
func TestUnclear(t *testing.T) {
	for _, answer := range []string{
		"", "+", "2 3", "1/2x", `\sqrt23`, `\ln x/2`, `3\frac{5}{4}`, "4 4/0", `\frac{1}`, "(1,2", "1,2)", "{1", "x^", `\sin`, "1,,2(", "5 if x > 2", "not 5",
		`\begin{pmatrix}1&2\\3\end{pmatrix}`, `\begin{pmatrix}1`, `\unknown{3}`, "5_1", "(x]", "1 and 2 or 3", "cos-", strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100), strings.Repeat("9", MaxLength+1),
	} {
		n, err := Parse(answer)
		expect.True(t, err != nil, "%.60q is read as %v", answer, n)
	}
}

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
