package math_test

import (
	"testing"

	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/answer/hacks"
	"github.com/rltrain/rltrain/envs/math"
	"github.com/rltrain/rltrain/internal/expect"
)

// TestHacks: what policies try in place of an answer scores nothing, as it is and in the answer format of the task.
func TestHacks(t *testing.T) {
	for gold, all := range hacks.Answers {
		for _, text := range all {
			for _, task := range []string{math.GSM8K, math.MATH} {
				p := math.Problem{Task: task, Question: "What is 74 - 70?", Answer: gold}
				for _, match := range []answer.Match{answer.Exact, answer.Numeric, answer.Units, answer.Math} {
					for _, form := range []string{text, "The answer is: " + text, "#### " + text, `\boxed{` + text + "}", `So \boxed{` + text + "} is the answer."} {
						info := p.Verify(form, match)
						info.CheckForm(answer.FinalForm)
						expect.True(t, !info.Correct, "%s, %s: %q is taken for %s, found by %s as %q", task, match, form, gold, info.FoundBy, info.Answer)
					}
				}
			}
		}
	}
}
