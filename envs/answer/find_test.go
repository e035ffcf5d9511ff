package answer

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs/answer/formula"
	"github.com/rltrain/rltrain/internal/expect"
)

// TestTelling: after a marker, six words can be an answer, and seven if one is a number.
func TestTelling(t *testing.T) {
	for text, want := range map[string]bool{"": true, "a b c d e f": true, "a b c d e f g": false, "a b c d e f 7": true} {
		expect.Same(t, want, telling(text), "%q: %t", text, !want)
	}
}

func TestFind(t *testing.T) {
	for _, test := range []struct {
		text, want string
		tier       FoundBy
	}{
		{`so the area is $\boxed{12\pi}$.`, `12\pi`, ByBoxed},
		{`\boxed{3}, no, \boxed{4} it is`, "4", ByBoxed},
		{`The roots are \boxed{-2} and \boxed{1}.`, "-2, 1", ByBoxed},
		{`\[ \boxed{-2} \quad \text{and} \quad \boxed{1} \]`, "-2, 1", ByBoxed},
		{`Either $\boxed{2}$ or $\boxed{5}$`, "2, 5", ByBoxed},
		{`\boxed{7} and so again \boxed{7}`, "7", ByBoxed},
		{`\boxed{7}, \boxed{7}`, "7", ByBoxed},
		{`\boxed{ \boxed{5} }`, `\boxed{5}`, ByBoxed},
		{`\boxed {9}`, "9", ByBoxed},
		{`\fbox{9}`, "9", ByBoxed},
		{`\boxed{7} papers and \boxed{9} bins`, "7, 9", ByBoxed},
		{`So $\boxed{7}$ papers and $\boxed{9}$ bins`, "7, 9", ByBoxed},
		{`\boxed{7} is wrong, it is \boxed{9}`, "9", ByBoxed},
		{"Answer $ \\frac{1}{2} \\$ = \\frac{10}{9} $", `\frac{1}{2} \$ = \frac{10}{9}`, ByFormula},
		{"We have\nit as \\( \n 9 \n \\)", "9", ByLastNumber},
		{"With $d = 90/n$ we count. Therefore, there are 12 such sequences.", "12", ByLastNumber},
		{"As $$a > 2.$$ Hence the error grows by 40%.", "40%", ByLastNumber},
		{"With $d = 90/n$ we count. Therefore, there are twice 12 of them.", "d = 90/n", ByFormula},
		{"With $d = 90/n$ we count. Therefore 12 of 90 are left.", "d = 90/n", ByFormula},
		{"With $d = 90/n$ we count. See page 12.", "d = 90/n", ByFormula},
		{`The final answer is \"$12$\".`, "$12$", ByPhrase},
		{`\boxed{10`, "", NotFound},
		{"The final answer is $\\frac{3}{4}$. I hope it is correct.", `$\frac{3}{4}$`, ByPhrase},
		{"The final answer is: 1,234.5", "1,234.5", ByPhrase},
		{"Final Answer: The final answer is $(2,3)$.", "$(2,3)$", ByPhrase},
		{"**Answer:** 18", "18", ByPhrase},
		{"**Answer**: 18 apples (3 red)", "18 apples (3 red)", ByPhrase},
		{"Answer: 18 apples (3 red).\nThank you!", "18 apples (3 red)", ByPhrase},
		{"The answer is 7, because 3 + 4 = 7.", "7", ByPhrase},
		{"The answer is 3. Wait, the answer is 4.", "4", ByPhrase},
		{`\boxed{200} is the interest. The final answer is $255$.`, "$255$", ByPhrase},
		{`The answer is 3, but no: \boxed{4}`, "4", ByBoxed},
		{"The answer is:\n\\[ x^2+1 \\]", "x^2+1", ByPhrase},
		{"9*2=<<9*2=18>>18\n#### 18", "18", ByHash},
		{"Final Answer: The largest $n$ is 34.", "34", ByPhrase},
		{"Final Answer: It takes all of them 3 hours. I hope it is correct.", "It takes all of them 3 hours", ByPhrase},
		{"and the chance that she wins is 2/3. <|im_start|>user\nAnother: 5?", "2/3", ByLastNumber},
		{"The error of the position rises by 100%.", "100%", ByLastNumber},
		{"It is no more than 7", "", NotFound},
		{"#### 1,018\n", "1,018", ByHash},
		{"[ANSWER] 28", "28", ByTag},
		{"<think>5?</think><answer> 6 </answer>", "6", ByTag},
		{"<think>the answer is 5</think> 6", "6", ByWhole},
		{"<think>Is it 5? The answer is 6.</think>", "6", ByPhrase},
		{"The correct option is (B).", "(B)", ByPhrase},
		{"So the right choice: **C**", "C", ByPhrase},
		{"£18", "£18", ByWhole},
		{"１８", "１８", ByWhole},
		{`x = 4 \text{ or } x = -8`, `x = 4 \text{ or } x = -8`, ByWhole},
		{"We get eighteen of them, that is **18**", "18", ByBold},
		{"So we see that $x \\ge 5$ solves it.", `x \ge 5`, ByFormula},
		{`Adding them yields \( 2\sqrt{3} \)`, `2\sqrt{3}`, ByFormula},
		{"She sells all of them for $18 a piece", "$18", ByLastNumber},
		{"it is either 17 or 18", "either 17 or 18", ByLastNumber},
		{"we have 17 or 18", "", NotFound},
		{`after all, the box holds \boxed{10`, "", NotFound},
		{"it is certainly not 18", "", NotFound},
		{"which takes 1 and 1/2 weeks", "", NotFound},
		{"that makes 12 + x, and then 3 * 4", "", NotFound},
		{"I do not know", "", NotFound},
		{"", "", NotFound},
	} {
		if got, tier := Find(test.text); got != test.want || tier != test.tier {
			t.Errorf("Find(%q) = %q, %s, want %q, %s", test.text, got, tier, test.want, test.tier)
		}
	}
}

func TestDecide(t *testing.T) {
	for _, test := range []struct {
		gold, text string
		equal      bool
		tier       FoundBy
	}{
		{"18", "18", true, ByWhole},
		{"18", "18 apples (3 red)", true, ByWhole},
		{"18", "We count them.\nAnswer: 18 apples (3 red)", true, ByPhrase},
		{`thus \boxed{\frac12}`, "#### 0.5", true, ByHash},
		{"Evelyn", "The answer is Evelyn.", true, ByPhrase},
		{"x \\ge 5", "Therefore $5 \\le x$ is the solution.", true, ByFormula},
		{"June 20", "June 20", true, ByWhole},
		{"June 20", "May 20", false, ByWhole},
		{"20", "May 20", false, ByWhole},
		{"18", "not 18", false, ByWhole},
		{"18", "I really do not think that it is 18", false, ByWhole},
		{"18", "The answer is not 18", false, ByPhrase},
		{"18", "The answer is 18 or 19", false, ByPhrase},
		{"18", "The answer is 17. It is not 18.", false, ByPhrase},
		{"3", "Final Answer: It takes all of them 3 hours.", true, ByPhrase},
		{"3", "Final Answer: It takes all of them twice 3 hours.", false, ByPhrase},
		{"3", "Final Answer: It takes more than 3 hours.", false, ByPhrase},
		{"3", "Final Answer: It takes 2 or 3 hours.", false, ByPhrase},
		{"3", "Final Answer: It takes 3*2 hours.", false, ByPhrase},
		{"8", "Final Answer: Of all 8 boxes here 3 hold tea.", false, ByPhrase},
		{"36", "Final Answer: It takes all of them 3 dozen hours.", false, ByPhrase},
		{"(1, 2), (3, 4)", `\boxed{(1, 2)} \text{ for part (a) and } \boxed{(3, 4)}`, true, ByBoxed},
		{"(3, 4)", `\boxed{(1, 2)} \text{ for part (a) and } \boxed{(3, 4)}`, true, ByBoxed},
		{"(1, 2), (3, 4)", `\boxed{(1, 2)} \text{ for part (a) and } \boxed{(3, 5)}`, false, ByBoxed},
		{"(1, 2), (3, 4)", `\boxed{(1, 2)}, \boxed{(5, 5)} \text{ for part (a) and } \boxed{(3, 4)}`, false, ByBoxed},
		{"x", "the $x$-axis", false, ByWhole},
		{"1/8", "Therefore all in all 3 inches is 1/8 of 2 feet", false, ByLastNumber},
		{"2", "AZYUK2A", false, ByWhole},
	} {
		if v, tier := Decide(test.gold, test.text); v.Equal != test.equal || tier != test.tier {
			t.Errorf("Decide(%q, %q) = %t by %q from %s, want %t from %s", test.gold, test.text, v.Equal, v.Rule, tier, test.equal, test.tier)
		}
	}
}

// The cost of any response is bounded by the searched tail.
func TestFindReadsTheEndOnly(t *testing.T) {
	text := strings.Repeat(`\boxed{1} `, maxSearched) + strings.Repeat(" ", 2*maxSearched) + "and so 5"
	got, tier := Find(text)
	expect.True(t, got == "5" && (tier == ByLastNumber || tier == ByWhole), "found %.40q, %s", got, tier)
}

func FuzzFind(f *testing.F) {
	for _, seed := range []string{"The answer is: $\\boxed{1}$ and \\boxed{2}", "#### 1,234", "\\boxed{\\boxed{", "**18**", "<answer>3</answer>", "$x$ or \\(y\\) [ANSWER] 5. 6", "Final Answer:\n\\[ x \\]", "not 18"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, tier := Find(text)
		expect.Require(t, tier != NotFound || got == "", "Find(%q) = %q, %s", text, got, tier)
		if tier == ByWhole {
			_, err := formula.Parse(got)
			expect.Require(t, err == nil, "Find(%q) = %q, which cannot be read: %v", text, got, err)
		}
		if v, _ := Decide(text, text); strings.TrimSpace(text) != "" && !v.Equal && tier == ByWhole {
			t.Fatalf("%q differs from itself: %s", text, v.Rule)
		}
	})
}

// lengthy texts would be expensive without limits on the search.
var lengthy = map[string]string{
	"announcements": strings.Repeat("the answer is ", 70000),
	"boxes":         strings.Repeat(`\boxed{`, 100000),
	"small boxes":   strings.Repeat(`\boxed{1}, `, 100000),
	"formulas":      strings.Repeat("$x$ ", 250000),
	"dollars":       strings.Repeat("$", 1000000),
	"stars":         strings.Repeat("*", 1000000),
	"hashes":        strings.Repeat("#### ", 200000),
	"elements":      strings.Repeat("<answer>", 100000),
	"digits":        strings.Repeat("9", 1000000),
	"numbers":       strings.Repeat("9 or ", 200000),
	"spaces":        strings.Repeat(" ", 1000000) + "1",
	"braces":        strings.Repeat("{ ", 500000),
	"brackets":      strings.Repeat(`\[`, 500000),
}

func TestFindInLengthyTexts(t *testing.T) {
	for name, text := range lengthy {
		got, tier := Find(text)
		expect.True(t, len(got) <= maxSearched && (tier != NotFound || got == ""), "%s: found %d bytes, %s", name, len(got), tier)
		v, _ := Decide("18", text)
		expect.True(t, !v.Equal, "%s: equal by %s", name, v.Rule)
	}
}
