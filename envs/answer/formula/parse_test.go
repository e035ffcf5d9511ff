package formula_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs/answer/formula"
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
		readings, err := formula.Readings(formula.Clean(answer))
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
		`\begin{pmatrix}1&2\\3\end{pmatrix}`, `\begin{pmatrix}1`, `\unknown{3}`, "5_1", "(x]", "1 and 2 or 3", "cos-", strings.Repeat("(", 100) + "1" + strings.Repeat(")", 100), strings.Repeat("9", formula.MaxLength+1),
	} {
		n, err := formula.Parse(answer)
		expect.True(t, err != nil, "%.60q is read as %v", answer, n)
	}
}
