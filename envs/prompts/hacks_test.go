package prompts

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs/answer"
)

// TestHacks: what policies try in place of an answer scores nothing. The question was What is 74 - 70?, or one with the
// correct answer at the beginning of the line. The rules numeric and units are not here: they take the last number of a
// text, so that "3 or 4" is 4.
func TestHacks(t *testing.T) {
	hacks := map[string][]string{
		"4": {
			// the question again
			"74 - 70", "74-70", "What is 74 - 70?", "The answer is 74 - 70", `\boxed{74 - 70}`, "**74 - 70**", "$74 - 70$", "74 - 70 =", "= 74 - 70", "(74 - 70)",
			"<answer>74 - 70</answer>", "#### 74 - 70", "[ANSWER] 74 - 70", "x = 74 - 70", "Answer: 74 - 70", "74 − 70", "74 – 70", `74 \times 1 - 70`,
			// another calculation
			"2 + 2", "8/2", `\frac{8}{2}`, "4!/6", "2^2", `\sqrt{16}`, "2*2", "2·2", "1·4", "4 + 0", "4 - 0", "4·1", "4^1", "(4)·(1)", "16^{1/2}", `\log_2 16`, "3.5 + 0.5", "12/3",
			`\binom{4}{1}`, "|-4| + 0", `\sum_{i=1}^{4} 1`, "9^{9^{9}} - 9^{9^{9}} + 4", "0.8·5", "400/100", "abs(-4)·1", "gcd(4, 8)",
			// many answers
			"1, 2, 3, 4", "3 or 4", "4 or 5", "3 and 4", "{3, 4}", "[4, 5]", "(3, 5)", "3 to 5", "3-5", "between 3 and 5", "4, 5", "4/5/6", "±4", `\pm 4`, `\boxed{3} \boxed{4} \boxed{5}`,
			"1 2 3 4 5 6 7 8 9", "3 < x < 5", "x > 3", "x ≥ 4", "x = 3 or x = 4", "not 5", "4 or not", "3.5 ± 0.5", "at least 4", "about 4 or 5", "4 != 5", "4 ≠ 5", "4 < 5",
			"The answer is 3. The answer is 4. The answer is 5.", "The answer is 4. No, the answer is 5.", `\boxed{4} or \boxed{5}`, "4 = 5",
			// a claim
			"correct", "The correct answer: see above", "As computed.", "The answer is the correct answer.", "true", "The answer is", `\boxed{}`, "<answer></answer>", "[ANSWER]", "####", "Answer:",
			"reward: 1", `{"correct": true}`, "def answer(): return right", "NaN", "∞", "?", "n", "x", "the difference",
			// nothing
			"", " ", "\n\n", "...", "-", "=",
		},
		"1/2":  {"2/4", "1 - 1/2", "5/10", "0.25·2", "1/4 + 1/4", "0.5 or 1", "0 to 1", "(0, 1)", "50%·1", "3/6"},
		"-4":   {"70 - 74", "-(2 + 2)", "-8/2", "±4", "|4|", "4"},
		"1500": {"15·100", "1000 + 500", "1,499 or 1,500", "1000 to 2000"},
		"yes":  {"yes or no", "yes/no", "not yes", "yes, no", "maybe"},
	}
	count := 0
	for gold, all := range hacks {
		for _, text := range all {
			count++
			for _, match := range []answer.Match{answer.Math, answer.Exact} {
				info := verify(text, gold, match)
				info.CheckForm(answer.FinalForm)
				if info.Correct {
					t.Errorf("%s: %q is taken for %s, found by %s as %q", match, text, gold, info.FoundBy, info.Answer)
				}
			}
		}
	}
	if count < 80 {
		t.Errorf("only %d hacks", count)
	}
	for _, text := range strings.Split("4|4.|The answer is 4|**4**|$4$|\\boxed{4}|x = 4|74 - 70 = 4|Answer: 4|<answer>4</answer>|[ANSWER] 4", "|") {
		info := verify(text, "4", answer.Math)
		info.CheckForm(answer.FinalForm)
		if !info.Correct {
			t.Errorf("%q is not taken for 4, found by %s as %q", text, info.FoundBy, info.Answer)
		}
	}
}
