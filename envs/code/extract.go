package code

import (
	"regexp"
	"slices"
	"strings"
)

var (
	opening = regexp.MustCompile("(`{3,}|~{3,})[ \t]*([^\\s`{]*)[^\n`]*\n")
	answers = []*regexp.Regexp{
		regexp.MustCompile(`(?is)<answer>(.*?)</answer>`),
		regexp.MustCompile(`(?is)\b(?:answer:|the answer is)\s*(.*)\z`),
	}
)

// thought ends a model's reasoning.
const thought = "</think>"

// aliases are other words for a language in the line that opens a fence, in lower case.
var aliases = map[string][]string{
	"python": {"python", "python3", "py", "python2", "py3"},
	"node":   {"node", "javascript", "js", "nodejs", "mjs", "cjs"},
}

// block is a fenced block.
type block struct {
	language string // lower case
	text     string
	closed   bool
}

// Extract finds the program in a response, after </think> if there is one: in <answer> if reasoning is set, else in a fenced
// block, else the full text. Of several blocks it takes the one that defines most of names, then one in the language, then a
// closed one, then the last. formatted reports whether the response has the answer format: with reasoning an <answer>,
// else anything.
func Extract(text, language string, reasoning bool, names ...string) (program string, formatted bool) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	if at := strings.LastIndex(text, thought); at >= 0 {
		text = text[at+len(thought):]
	}
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
	all := blocks(text)
	if all == nil {
		return strings.Trim(text, "\r\n"), formatted && strings.TrimSpace(text) != ""
	}
	best, most := all[0], -1
	for _, b := range all {
		if points := b.points(language, names); points >= most {
			best, most = b, points
		}
	}
	return best.text, formatted
}

// points are more for a better candidate.
func (b block) points(language string, names []string) int {
	n := 0
	for _, name := range names {
		if defines(b.text, name) {
			n += 8
		}
	}
	known := aliases[language]
	if known == nil {
		known = []string{language}
	}
	switch {
	case slices.Contains(known, b.language):
		n += 4
	case b.language == "":
		n += 2
	}
	if b.closed {
		n++
	}
	return n
}

// defines reports whether a Python program defines a name at its top.
func defines(program, name string) bool {
	if name == "" {
		return false
	}
	for line := range strings.Lines(program) {
		for _, word := range []string{"async def ", "def ", "class "} {
			rest, is := strings.CutPrefix(line, word)
			rest, same := strings.CutPrefix(strings.TrimLeft(rest, " \t"), name)
			if is && same && strings.IndexByte("(:[ \t", (rest + " ")[0]) >= 0 {
				return true
			}
		}
	}
	return false
}

// blocks returns the fenced blocks of a text, which may be indented. The last one may be open.
func blocks(text string) (all []block) {
	for {
		at := opening.FindStringSubmatchIndex(text)
		if at == nil {
			return all
		}
		fence, b := text[at[2]:at[3]], block{language: strings.ToLower(text[at[4]:at[5]])}
		text = text[at[1]:]
		end, rest := closing(text, fence)
		b.text, b.closed = text[:end], rest >= 0
		all = append(all, b)
		if rest < 0 {
			return all
		}
		text = text[rest:]
	}
}

// closing returns where a block ends and where the text goes on behind its fence, -1 if the block is open.
func closing(text, fence string) (end, rest int) {
	for at := 0; at < len(text); {
		line := strings.TrimLeft(text[at:], " \t")
		if strings.HasPrefix(line, fence) {
			rest = len(text) - len(strings.TrimLeft(line, fence[:1]))
			return max(0, at-1), rest
		}
		next := strings.IndexByte(text[at:], '\n')
		if next < 0 {
			break
		}
		at += next + 1
	}
	return len(text), -1
}
