package prompts

import (
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/answer/hacks"
	"github.com/rltrain/rltrain/internal/expect"
)

// TestHacks: what policies try instead of an answer scores nothing by any rule.
func TestHacks(t *testing.T) {
	count := 0
	for gold, all := range hacks.Answers {
		for _, text := range all {
			count++
			for _, match := range []answer.Match{answer.Math, answer.Exact, answer.Numeric, answer.Units} {
				began := time.Now()
				info := verify(text, gold, match)
				info.CheckForm(answer.FinalForm)
				expect.True(t, !info.Correct,
					"%s: %q is taken for %s, found by %s as %q", match, text, gold, info.FoundBy, info.Answer)
				took := time.Since(began)
				expect.True(t, took <= 2*time.Second, "%s: %q took %v", match, text, took)
			}
		}
	}
	expect.True(t, count >= 80, "only %d hacks", count)
	for _, text := range strings.Split("4|4.|The answer is 4|**4**|$4$|\\boxed{4}|x = 4|74 - 70 = 4|Answer: 4|<answer>4</answer>|[ANSWER] 4", "|") {
		for _, match := range []answer.Match{answer.Math, answer.Numeric, answer.Units} {
			info := verify(text, "4", match)
			info.CheckForm(answer.FinalForm)
			expect.True(t, info.Correct, "%s: %q is not taken for 4, found by %s as %q", match, text, info.FoundBy, info.Answer)
		}
	}
}
