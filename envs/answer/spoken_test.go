package answer_test

import (
	"testing"

	"github.com/rltrain/rltrain/envs/answer"
)

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
