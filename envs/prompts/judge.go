package prompts

import (
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
)

// announced are the tiers of an answer that a text announces.
var announced = map[answer.FoundBy]bool{answer.ByTag: true, answer.ByPhrase: true, answer.ByHash: true, answer.ByBoxed: true}

// maxWhole is how many bytes a text has at most that counts as an answer as a whole.
const maxWhole = 200

// right is the right answer of a row, which may be a solution that announces one.
func right(text string) string {
	if found, tier := answer.Find(text); announced[tier] {
		return found
	}
	return strings.TrimSpace(text)
}

// judge compares what a text says with the right answer. A text that announces no answer may be one as a whole.
func judge(text, gold string, match answer.Match) *envs.Info {
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
	}
	if tier == answer.ByWhole && !info.Correct && (whole == "" || len(whole) > maxWhole) {
		found, tier = "", answer.NotFound
	}
	info.Answer, info.FoundBy, info.FormatOK = found, string(tier), announced[tier]
	return info
}
