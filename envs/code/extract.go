package code

import (
	"regexp"
	"strings"
)

var (
	fence   = regexp.MustCompile("(?s)```[ \t]*([A-Za-z0-9_+-]*)[ \t]*\n(.*?)(?:\n[ \t]*```|\\z)")
	answers = []*regexp.Regexp{
		regexp.MustCompile(`(?is)<answer>(.*?)</answer>`),
		regexp.MustCompile(`(?is)\b(?:answer:|the answer is)\s*(.*)\z`),
	}
)

// Extract finds the program in a response: in <answer> if reasoning is set, else in a fenced block, preferably of the
// language, else the full text. formatted reports whether the response has the answer format: with reasoning an <answer>,
// else anything.
func Extract(text, language string, reasoning bool) (program string, formatted bool) {
	formatted = !reasoning
	for i, pattern := range answers {
		if i > 0 && !reasoning {
			break // a program may contain such a line itself
		}
		if found := pattern.FindAllStringSubmatch(text, -1); found != nil {
			text = found[len(found)-1][1]
			formatted = formatted || i == 0
			break
		}
	}
	blocks := fence.FindAllStringSubmatch(text, -1)
	if blocks == nil {
		return strings.Trim(text, "\r\n"), formatted && strings.TrimSpace(text) != ""
	}
	chosen := blocks[0]
	for _, block := range blocks {
		if strings.EqualFold(block[1], language) || language == "python" && strings.EqualFold(block[1], "py") || language == "node" && strings.Contains(strings.ToLower(block[1]), "js") {
			chosen = block
			break
		}
	}
	return chosen[2], formatted
}

// fenced reports whether a response has a fenced block.
func fenced(text string) bool { return strings.Contains(text, "```") }
