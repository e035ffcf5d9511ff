package answer

import (
	"math/big"
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

// found is what a function must find in a text, and where.
type found struct {
	text, want string
	tier       FoundBy
}

func finds(t *testing.T, find func(string) (string, FoundBy), rows []found) {
	t.Helper()
	for _, test := range rows {
		got, tier := find(test.text)
		expect.True(t, got == test.want && tier == test.tier, "%q has %q, %s, want %q, %s", test.text, got, tier, test.want, test.tier)
	}
}

func TestFind(t *testing.T) {
	finds(t, Find, []found{
		{`so the area is $\boxed{12\pi}$.`, `12\pi`, ByBoxed},
		{`\boxed{3}, no, \boxed{4} it is`, "4", ByBoxed},
		{`The roots are \boxed{-2} and \boxed{1}.`, "-2, 1", ByBoxed},
		{`\[ \boxed{-2} \quad \text{and} \quad \boxed{1} \]`, "-2, 1", ByBoxed},
		{`Either $\boxed{2}$ or $\boxed{5}$`, "2, 5", ByBoxed},
		{`\boxed{7} and so again \boxed{7}`, "7", ByBoxed},
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
	})
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
		v, tier := Decide(test.gold, test.text)
		expect.True(t, v.Equal == test.equal && tier == test.tier, "Decide(%q, %q) = %t by %q from %s, want %t from %s", test.gold, test.text, v.Equal, v.Rule, tier, test.equal, test.tier)
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
		v, _ := Decide(text, text)
		expect.Require(t, strings.TrimSpace(text) == "" || v.Equal || tier != ByWhole, "%q differs from itself: %s", text, v.Rule)
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

func rat(t *testing.T, s string) *big.Rat {
	t.Helper()
	value, ok := new(big.Rat).SetString(s)
	expect.Require(t, ok, "%q is not a number", s)
	return value
}

func TestExtract(t *testing.T) {
	for _, test := range []struct {
		name, text, value string
		tier              FoundBy
	}{
		{"the form asked for", "+1=1 +2=3 [ANSWER] 28", "28", ByTag},
		{"no space", "[ANSWER]28", "28", ByTag},
		{"next line", "[ANSWER]\n28", "28", ByTag},
		{"negative", "[ANSWER] -28", "-28", ByTag},
		{"mathematical minus", "[ANSWER] −28", "-28", ByTag},
		{"the last of several", "[ANSWER] 3 no, [ANSWER] 28", "28", ByTag},
		{"an empty tag behind", "[ANSWER] 28 is my [ANSWER]", "28", ByTag},
		{"a tag without a number, then the phrase", "[ANSWER] none. The answer is 28", "28", ByPhrase},
		{"angle brackets", "[ANSWER] <28>", "28", ByTag},
		{"emphasis", "[ANSWER] **28**", "28", ByTag},
		{"emphasis around the tag", "**[ANSWER]** 28", "28", ByTag},
		{"emphasis alone is no announcement", "**28**", "28", ByLastNumber},
		{"colon", "[ANSWER]: 28.", "28", ByTag},
		{"box", `[ANSWER] $\boxed{28}$`, "28", ByTag},
		{"thousands", "[ANSWER] 1,234", "1234", ByTag},
		{"more thousands", "[ANSWER] 1,234,567.5", "1234567.5", ByTag},
		{"no thousands: the first number", "[ANSWER] 1,23", "1", ByTag},
		{"no thousands: the first number", "[ANSWER] 1234,567", "1234", ByTag},
		{"leading zeros", "[ANSWER] 007", "7", ByTag},
		{"decimal", "[ANSWER] 28.50", "57/2", ByTag},
		{"whole decimal", "[ANSWER] 28.0", "28", ByTag},
		{"fraction", "[ANSWER] 3/4", "3/4", ByTag},
		{"fraction by zero", "[ANSWER] 3/0", "3", ByTag},
		{"exponent", "[ANSWER] 1.5e3", "1500", ByTag},
		{"no exponent", "[ANSWER] 3eggs", "3", ByTag},
		{"unit", "[ANSWER] 28 apples", "28", ByTag},
		{"currency", "[ANSWER] -$28", "-28", ByTag},
		{"sum with result", "[ANSWER] 3 + 4 × 2 = 11", "11", ByTag},
		{"equality with the answer first", "[ANSWER] 11 = 3 + 8", "11", ByTag},
		{"sum without result", "[ANSWER] 3 + 4", "3", ByTag},
		{"tag in other letters", "[answer] 9 so 3", "9", ByPhrase},
		{"phrase", "so the answer is 28, I think", "28", ByPhrase},
		{"phrase with colon", "The answer is: 28", "28", ByPhrase},
		{"short phrase", "Final answer: 28\n", "28", ByPhrase},
		{"phrase with emphasis", "**Answer:** 28", "28", ByPhrase},
		{"last phrase", "the answer is 3. Wait: the answer is 28", "28", ByPhrase},
		{"phrase without a number behind it", "the answer is not 5 but 6", "6", ByLastNumber},
		{"phrase before equation", "the answer is 28 as 20+8=29", "28", ByPhrase},
		{"equation at the end", "20 + 8 = 28.", "28", ByPhrase},
		{"equation before The answer", "20 + 8 = 28. The answer you wanted", "28", ByPhrase},
		{"equation in the middle", "20 + 8 = 28 and 3 more", "3", ByLastNumber},
		{"two equations", "1+1=2, 2+2=4", "4", ByPhrase},
		{"running sum cut off", "+1=1 +2=3 +5", "5", ByLastNumber},
		{"last number", "first 3 then 28 of them", "28", ByLastNumber},
		{"hyphen", "ten-12", "12", ByLastNumber},
		{"range", "3-5", "5", ByLastNumber},
		{"dash and space", "total - 5", "5", ByLastNumber},
		{"sign", "it is -5", "-5", ByLastNumber},
		{"rule of dashes", "---5", "5", ByLastNumber},
		{"last number has no denominator", "on 8/2", "2", ByLastNumber},
		{"leading point", "about .5", "1/2", ByLastNumber},
		{"a version is read as it comes", "1.2.3", "3/10", ByLastNumber},
		{"digits of other scripts are letters", "٢٨", "", NotFound},
		{"no number", "[ANSWER] twenty-eight", "", NotFound},
		{"empty", "", "", NotFound},
		{"too long for a number", "5 " + strings.Repeat("9", maxDigits+1), "5", ByLastNumber},
		{"invalid UTF-8", "\xff[ANSWER]\xfe 28", "28", ByLastNumber},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Extract(test.text)
			expect.Same(t, test.tier, got.FoundBy, "Extract(%q) has tier", test.text)
			switch {
			case test.value == "":
				expect.True(t, got.Value == nil, "Extract(%q) = %s, want none", test.text, got.Value)
			case got.Value == nil || got.Value.Cmp(rat(t, test.value)) != 0:
				t.Errorf("Extract(%q) = %v, want %s", test.text, got.Value, test.value)
			}
		})
	}
}

func TestTagged(t *testing.T) {
	for text, want := range map[string]bool{"[ANSWER] 1": true, "[ANSWER]": true, "[answer] 1": false, "ANSWER 1": false} {
		expect.Same(t, want, Tagged(text), "Tagged(%q) = %t", text, !want)
	}
}

func FuzzExtract(f *testing.F) {
	for _, seed := range []string{"[ANSWER] <28>", "the answer is: **1,234.5e-3**", "3 + 4 = 7. The answer", "ten-12 −3 .5 1,2,345", "[answer] 3/4 \\boxed{5", "\xff9" + minus} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Extract(text)
		expect.Require(t, (got.Value == nil) == (got.FoundBy == NotFound) && (got.Text == "") == (got.FoundBy == NotFound), "Extract(%q) = %+v", text, got)
		expect.Require(t, strings.Contains(text, got.Text), "Extract(%q) found %q, which is not in the text", text, got.Text)
		expect.Require(t, got.FoundBy != ByTag || Tagged(text), "Extract(%q) has tier tag", text)
		if got.Value != nil {
			again := Extract("[ANSWER] " + got.Text)
			expect.Require(t, again.Value != nil && again.FoundBy == ByTag && again.Value.Cmp(got.Value) == 0,
				"Extract(%q) found %q = %s, which reads as %v after a tag", text, got.Text, got.Value, again)
		}
	})
}

// TestForms finds an answer after a phrase, in a box and in GSM8K's form.
func TestForms(t *testing.T) {
	for i, test := range []struct {
		find       func(string) (string, bool)
		text, want string
		ok         bool
	}{
		{Phrase, "So 9*2=18.\nThe answer is: 18", "18", true},
		{Phrase, "The answer is: $18.", "18", true},
		{Phrase, "the answer is 18", "18", true}, // the colon may be missing
		{Phrase, "The answer is: 1,800", "1800", true},
		{Phrase, "The answer is: 3 bolts.", "3 bolts", true},
		{Phrase, `The answer is: \boxed{18}.`, "18", true},
		{Phrase, "The answer is: 18<|eot_id|>", "18", true},
		{Phrase, "The answer is: 3\nThe answer is: 4", "4", true},
		{Phrase, "The answer is: 3\nand so on", "3\nand so on", true},
		{Phrase, "#### 18", "", false},
		{Phrase, "THE ANSWER IS: 18", "18", true},
		{Boxed, `\boxed{1} then \boxed{2}`, "2", true},
		{Boxed, `\boxed{\frac{1}{2}} done`, `\frac{1}{2}`, true},
		{Boxed, `\boxed{a{b{c}}}}`, "a{b{c}}", true},
		{Boxed, `\boxed{\{1,2\}}`, `\{1,2\}`, true},
		{Boxed, `\fbox{7}`, "7", true},
		{Boxed, `\boxed {7}`, "7", true},
		{Boxed, `\boxed{7} and \boxed{8`, "7", true},
		{Boxed, `\boxed{\boxed{5}}`, "5", true},
		{Boxed, `\boxed{}`, "", true},
		{Boxed, `\boxed 7`, "", false},
		{Boxed, `boxed{7}`, "", false},
		{GSM8K, "a\n#### 18", "18", true},
		{GSM8K, "#### 1,800\nmore", "1800", true},
		{GSM8K, "#### 1 #### 2", "2", true},
		{GSM8K, "The answer is: 18", "", false},
	} {
		got, ok := test.find(test.text)
		expect.True(t, got == test.want && ok == test.ok, "row %d: %q has %q, %t, want %q, %t", i, test.text, got, ok, test.want, test.ok)
	}
}

func TestFinal(t *testing.T) {
	finds(t, Final, []found{
		{"The answer is: **18**", "18", ByPhrase},
		{"The answer is: 3 bolts.\nThank you!", "3 bolts", ByPhrase},
		{`The answer is: $\boxed{\frac{1}{2}}$.`, `\frac{1}{2}`, ByPhrase},
		{"The answer is: 3<|eot_id|>", "3", ByPhrase},
		{"9*2=<<9*2=18>>18\n#### 1,018\n", "1018", ByHash},
		{`so $x = \boxed{\frac{3}{4}}$ as claimed`, `\frac{3}{4}`, ByBoxed},
		{"it is 17 or 18.", "18", ByLastNumber},
		{"the answer is:", "", NotFound},
		{"I do not know", "", NotFound},
	})
}

func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{"a\nb": "b", "a\nb\n \n": "b", "a": "a", "": "", " \n": ""} {
		expect.Same(t, want, LastLine(text), "LastLine(%q)", text)
	}
}

func FuzzFinal(f *testing.F) {
	for _, seed := range []string{"The answer is: $\\boxed{1}$.", "#### 1,234", "\\boxed{\\boxed{", "tHe AnSwEr Is<|eot_id|> 3", "\\fbox {\\}}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		answer, tier := Final(text)
		expect.Require(t, tier != NotFound || answer == "", "Final(%q) = %q, %s", text, answer, tier)
		expect.Require(t, !strings.ContainsAny(answer, "\n") || tier == ByBoxed || tier == ByPhrase, "Final(%q) = %q, %s: more than a line", text, answer, tier)
		if inside, ok := Boxed(text); ok && strings.Count(inside, "{") != strings.Count(inside, "}") && !strings.Contains(inside, `\`) {
			t.Fatalf("Boxed(%q) = %q is not balanced", text, inside)
		}
		if answer, ok := Phrase(text); ok && strings.ContainsAny(answer, ",:$") {
			t.Fatalf("Phrase(%q) = %q", text, answer)
		}
	})
}
