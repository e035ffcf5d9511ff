package prompts

import (
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
)

// announced are the ways of finding an answer that count as the answer format.
var announced = map[answer.FoundBy]bool{answer.ByTag: true, answer.ByPhrase: true, answer.ByHash: true, answer.ByBoxed: true}

// maxWhole is the maximum length in bytes of a text that counts as an answer in full.
const maxWhole = 200

// right is the correct answer of a row, which may be a solution that announces one.
func right(text string) string {
	if found, tier := answer.Find(text); announced[tier] {
		return found
	}
	return strings.TrimSpace(text)
}

// verify compares a response with the correct answer. A short response without an announced answer counts as the answer.
func verify(text, gold string, match answer.Match) *envs.Info {
	info := &envs.Info{Truth: gold}
	found, tier := answer.Find(text)
	whole := strings.TrimSpace(text)
	switch match {
	case answer.Math:
		var verdict answer.Verdict
		if verdict, tier = answer.Decide(gold, text); tier == answer.ByWhole {
			found = whole
		}
		info.Correct = verdict.Equal
	case answer.Exact:
		if !announced[tier] {
			found, tier = whole, answer.ByWhole
		}
		info.Correct = match.Same(found, gold)
	default:
		if found, tier = answer.Final(text); tier == answer.NotFound {
			found, tier = whole, answer.ByWhole
		}
		info.Correct = match.Same(found, gold)
		info.Doubted = tier == answer.ByLastNumber && !answer.Certain(gold, text)
	}
	if tier == answer.ByWhole && !info.Correct && (whole == "" || len(whole) > maxWhole) {
		found, tier = "", answer.NotFound
	}
	info.Answer, info.FoundBy, info.FormatOK = found, string(tier), announced[tier]
	info.FreeForm = true
	return info
}
