package answer_test

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/internal/expect"
)

func TestMatch(t *testing.T) {
	const (
		none  = ""
		exact = "exact numeric units"
		num   = "numeric units"
		units = "units"
	)
	for _, test := range []struct{ a, b, same string }{
		{"18", "18", exact},
		{" A ", "a", exact},
		{"18", "19", none},
		{"18.0", "18", num},
		{"1,234", "1234", num},
		{"1{,}234", "1234", num},
		{`1,\!234`, "1234", num},
		{"1,23", "123", none},
		{"$18", "18", num},
		{`\$18.50`, "18.5", num},
		{"18.", "18", num},
		{"−3", "-3", num},
		{"0.5", `\frac{1}{2}`, num},
		{"0.1", `\frac{1}{10}`, num},
		{"0.3333", `\frac13`, none},
		{`0.\overline{3}`, `\frac13`, num},
		{`0.1\overline{6}`, "1/6", num},
		{`\dfrac{2}{4}`, `\tfrac12`, num},
		{`\frac{1}2`, "1/2", num},
		{`\frac{-1}{2}`, `-\frac{1}{2}`, num},
		{`\frac{1}{0}`, "0", none},
		{`2\frac{1}{2}`, "2.5", num},
		{"2 1/2", "2.5", num},
		{"21/2", "2.5", none},
		{"21/2", "10.5", num},
		{`-1\frac12`, "-1.5", num},
		{`1.2\times10^{3}`, "1200", num},
		{`1.2 \cdot 10^{-3}`, "0.0012", num},
		{`5 \times 10^4`, "50,000", num},
		{"1e3", "1000", num},
		{`50\%`, "0.5", num},
		{`50\%`, `50%`, num},
		{`50\%`, "50", units},
		{"50 percent", "0.5", num},
		{"26 dollars", "26", units},
		{"3 bolts", "3", units},
		{"3 bolts", "3 bolt", units},
		{"3 bolts", "3 nuts", none},
		{`5\text{ cm}`, "5 centimeters", units},
		{`5\text{ cm}`, "5", units},
		{`5\text{ cm}`, "5 inches", none},
		{`12\text{ cm}^2`, "12 square centimeters", units},
		{`12\text{ cm}^2`, "12 cm", none},
		{"12 square centimeters", "12 cm", none},
		{"12 cubic meters", "12 m^3", units},
		{"12 cubic meters", "12 m^2", none},
		{"90^\\circ", "90", num},
		{"90^{\\circ}", "90 degrees", units},
		{"6 or 7", "6", none},
		{"2x", "2", none},
		{"2 x", "2", none},
		{"2ab", "2", none},
		{`2\pi`, "2", none},
		{"5-x", "5", none},
		{"160 + 80 = 240", "240", num},
		{"160 + 80 = 240 sheep", "240", units},
		{"1,000 + 234 = 1,234", "1234", num},
		{"x=5", "5", num},
		{`x \in [0,1)`, "[0,1)", num},
		{"x >= 5", "5", none},
		{"x=1, y=2", "2", none},
		{"(1,2)", "(1, 2)", num},
		{`\left(\frac12,3\right)`, "(0.5,3)", num},
		{"(1,2)", "(2,1)", none},
		{"(1,2)", "[1,2]", none},
		{"[0,1)", "[0,1]", none},
		{`(-\infty, 2]`, `(-\infty,2]`, num},
		{"1, 2", "1,2", num},
		{`\{1,2,3\}`, `\{3,1,2\}`, num},
		{`\{1,2\}`, `\{1,1\}`, none},
		{`(0,1)\cup(2,3)`, `(0,1) \cup (2,3)`, num},
		{`\text{(A)}`, "A", num},
		{`\text{Evelyn}`, "evelyn", num},
		{`\boxed{7}`, "7", num},
		{`x^{2}+1`, "x^2 + 1", num},
		{`\sqrt{2}`, `\sqrt2`, num},
		{`\frac{\pi}{2}`, `\frac\pi2`, num},
		{"", "", exact},
		{"", " ", exact},
		{"()", "", none},
	} {
		for _, m := range []answer.Match{answer.Exact, answer.Numeric, answer.Units} {
			want := false
			for _, name := range strings.Fields(test.same) {
				want = want || name == string(m)
			}
			expect.Same(t, want, m.Same(test.a, test.b), "%s: Same(%q, %q)", m, test.a, test.b)
			expect.Same(t, want, m.Same(test.b, test.a), "%s: Same(%q, %q)", m, test.b, test.a)
		}
	}
}

func TestParseMatch(t *testing.T) {
	for _, name := range []string{"exact", "numeric", "units", "math"} {
		m, err := answer.ParseMatch(name)
		expect.True(t, err == nil && string(m) == name, "ParseMatch(%q) = %q, %v", name, m, err)
	}
	expect.Failure(answer.ParseMatch("fuzzy"))(t, "numeric, exact, units or math")
}

func FuzzSame(f *testing.F) {
	for _, seed := range [][2]string{
		{`2\frac{1}{2}`, "2.5"}, {`\{1,(2,3)\}`, `\{(2,3),1\}`}, {`0.1\overline{6}`, "1/6"}, {"5 cm^2", "5 square cm"},
		{`\text{a}{{b}}`, "x = 1,000"}, {`1.2\times10^{999}`, "−3%"}, {`\boxed{\boxed`, "}"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, m := range []answer.Match{answer.Exact, answer.Numeric, answer.Units} {
			expect.Require(t, m.Same(a, a) && m.Same(b, b), "%s: %q or %q differs from itself", m, a, b)
			expect.Require(t, m.Same(a, b) == m.Same(b, a), "%s is not symmetric on %q and %q", m, a, b)
		}
		expect.Require(t, (!answer.Exact.Same(a, b) || answer.Numeric.Same(a, b)) && (!answer.Numeric.Same(a, b) || answer.Units.Same(a, b)), "%q and %q: the rules are not ordered", a, b)
	})
}

func TestFinished(t *testing.T) {
	tests := []struct{ gold, finished, unfinished string }{ // answers equal to gold, by |
		{"4", `4|4.0|+4|$4$|\boxed{4}|x = 4|74 - 70 = 4|4 apples|400%|4 = 4|4 = x|74 - 70 = 4 = x|4...`, `74 - 70|74-70|2+2|8/2|\frac{8}{2}|4!/6|2^2|\sqrt{16}|2·2|2*2|1·4|5 + -1|-(-4)+0|\log_2 16|(74 - 70)|\boxed{74-70}|x = 74 - 70|4 + 0|3.5 + 0.5|12/3 apples|abs(-4)|\binom{4}{1}|2^{2^1}|\sum_{i=1}^{4} 1|74 - 70 =...|74 - 70 = …|74 - 70 = x|x = 74 - 70 = y|74 - 70 = \ldots`},
		{"-4", `-4|- 4|−4`, `70 - 74|-8/2|-(2+2)|-2·2`},
		{"1/2", `1/2|0.5|\frac12|50%|\frac{1}{2}`, `2/4|3/6|1 - 1/2|0.25·2|\frac{5}{10}|1/4 + 1/4`},
		{"3/2", `3/2|1.5|1 1/2|1\frac{1}{2}`, `1 + 1/2|6/4|3·0.5`},
		{"-1/2", `-1/2|-0.5|\frac{-1}{2}|-\frac12`, `-2/4|1/2 - 1`},
		{"1500", `1500|1,500|1.5e3|1.5 × 10^3|1.5 \cdot 10^3`, `15·100|10^3 + 500|1000 + 500`},
		{"0.125", `0.125|1/8|12.5%`, `1/4/2|0.5^3|2^{-3}`},
		{`2\sqrt{3}`, `2\sqrt{3}|\sqrt{12}`, `\sqrt{3} + \sqrt{3}`},
		{`\pi/2`, `\pi/2|\frac{\pi}{2}`, `\pi - \pi/2|\arcsin 1`},
		{"(1, 2)", `(1, 2)|(1,2)`, `(1, 1+1)|(2-1, 2)`},
		{"1, 2", `1, 2|1 and 2`, `1, 4/2`},
		{"x^2 + 2x + 1", `x^2 + 2x + 1|(x+1)^2`, ``},
		{"yes", `yes|no doubt: yes`, ``},
	}
	for _, test := range tests {
		for _, a := range strings.Split(test.finished, "|") {
			expect.True(t, answer.Finished(test.gold, a), "%q is an answer to %q, but taken for unfinished", a, test.gold)
		}
		for _, a := range strings.Split(test.unfinished, "|") {
			expect.True(t, a == "" || !answer.Finished(test.gold, a), "%q is taken for a finished answer to %q", a, test.gold)
		}
	}
}

// TestSpoken: answers as sentences give them.
func TestSpoken(t *testing.T) {
	for _, test := range []struct {
		gold, text string
		equal      bool
	}{
		{"72", "The answer is 72!", true},
		{"72", "So we get 48 + 24 = 72!", true},
		{"72", "#### 72!", true},
		{"72", "The answer is **72**!", true},
		{"72", "The answer is: **72**, as we saw", true},
		{"72", "The answer is: **72** clips!", true},
		{"72", "The answer is **72** or **73**", false},
		{"72", "The answer is **72** more than before", false},
		{"120", "The answer is 5!.", true},
		{"120", "We get $5!$.", true},
		{"120", "5!", true},
		{"5", "The answer is 5!.", false},
		{"120", "So the number of ways is 5!.", true},
		{"7", "<answer>The answer is 7</answer>", true},
		{"7", "<answer>Answer: 7</answer>", true},
		{"7", "<answer>So we find that it is 7.</answer> Bye!", true},
		{"7", "<answer>The answer is 6 or 7</answer>", false},
		{"-5", "The answer is negative 5.", true},
		{"-5", "The answer is minus 5.", true},
		{"5", "The answer is negative 5.", false},
		{"-5", "So the temperature is minus 5", true},
		{"1234", "The answer is USD 1,234", true},
		{"1234", "The answer is $1,234.00!", true},
		{"1234", "The answer is 1,234 euros.", true},
		{"\\$1234", "The answer is EUR 1,234", false},
		{"1234", "Thus \\boxed{\\approx 1234}", true},
		{"1234", "The answer is approximately 1234.", true},
		{"1234", "The answer is ≈ 1234", true},
		{"72", "The answer is 72 (rounded).", true},
		{"72", "The answer is 72 (rounded to 2 decimal places).", true},
		{"72", "The answer is 71 (or 72).", false},
		{"35", "The answer is 35 percent.", true},
		{"35", "The answer is 35%!", true},
		{"B", "The answer is option B", true},
		{"B", "The answer is option (B), since it is larger.", true},
		{"B", "The correct option is choice B.", true},
		{"B", "Answer: option B: the second one", true},
		{"B", "The answer is option A or B", false},
		{"B", "The answer is option Bad", false},
		{"A", "The answer is a guess", false},
		{"B", "Option B is correct.", true},
		{"B", "Therefore **B** is the correct answer.", true},
		{"B", "So (B) is the right choice.", true},
		{"B", "Option A is correct. No, option B is correct.", true},
		{"A", "Option A is correct. No, option B is correct.", false},
		{"B", "I do not know if B is correct.", false},
		{"B", "A or B is the answer.", false},
		{"B", "B is not correct.", false},
		{"72", "After all of that, **72** is the answer.", true},
		{"72", "72 is the answer.", true},
		{"72", "71 or 72 is the answer.", false},
		{"72", "The answer is 71, not 72 is the answer.", false},
	} {
		if got, tier := answer.Decide(test.gold, test.text); got.Equal != test.equal {
			found, _ := answer.Find(test.text)
			t.Errorf("%q, %q: %t by %s (found %q), want %t", test.gold, test.text, got.Equal, tier, found, test.equal)
		}
	}
}
