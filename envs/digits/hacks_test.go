package digits

import (
	"testing"

	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/answer/hacks"
)

// TestHacks: what policies try in place of an answer is not taken for it, as it is and in the answer format. The verifier
// reads one number, so that "3 or 4" is one guess and gains nothing.
func TestHacks(t *testing.T) {
	for _, text := range hacks.Answers["4"] {
		for _, form := range []string{text, "[ANSWER] " + text, "The answer is " + text, text + " [ANSWER]"} {
			info := verify(answer.Extract(form), form, 4)
			if info.CheckForm(answer.FinalForm); info.Correct && info.Answer != "4" {
				t.Errorf("%q is taken for 4, found by %s as %q", form, info.FoundBy, info.Answer)
			}
		}
	}
}
