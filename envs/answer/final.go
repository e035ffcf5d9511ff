package answer

import "strings"

// Markers of the final answer in solutions.
const (
	phrase  = "the answer is"
	hash    = "####"
	endTurn = "<|eot_id|>" // end of a turn in Llama 3
)

// Phrase returns the text after the last "the answer is", in any case, normalised for an equality test: lower case, no
// colons, dollar signs, commas or surrounding space, one trailing full stop removed, unwrapped from \boxed{}. It extends to
// the end of the text, so a solution that continues has no comparable answer. ok is false if the phrase is missing.
func Phrase(text string) (answer string, ok bool) {
	_, tail, ok := lastCut(strings.ToLower(strings.ReplaceAll(text, endTurn, "")), phrase)
	if !ok {
		return "", false
	}
	return normalize(tail), true
}

var phraseMarks = strings.NewReplacer(":", "", "$", "")

func normalize(s string) string {
	s = strings.TrimSpace(phraseMarks.Replace(s))
	s = strings.TrimSuffix(s, ".")
	if inner, ok := unbox(s); ok {
		s = inner
	}
	return strings.ReplaceAll(s, ",", "")
}

// LastLine returns the last non-blank line, trimmed; "" if there is none.
func LastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// GSM8K returns the text after the last "####" on its line, trimmed and without commas: the answer format of the GSM8K data
// set.
func GSM8K(text string) (answer string, ok bool) {
	_, tail, ok := lastCut(text, hash)
	if !ok {
		return "", false
	}
	return strings.ReplaceAll(firstLine(tail), ",", ""), true
}

// Boxed returns the content of the last \boxed{…} or \fbox{…} with balanced braces. Escaped braces, \{, do not count. ok is
// false if there is none.
func Boxed(text string) (inside string, ok bool) {
	var open []int // unclosed braces
	from, to := -1, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '{':
			open = append(open, i)
		case '}':
			if len(open) == 0 {
				continue
			}
			brace := open[len(open)-1]
			open = open[:len(open)-1]
			before := strings.TrimRight(text[:brace], " ")
			if brace > from && (strings.HasSuffix(before, `\boxed`) || strings.HasSuffix(before, `\fbox`)) {
				from, to = brace, i
			}
		}
	}
	if from < 0 {
		return "", false
	}
	return text[from+1 : to], true
}

// unbox unwraps an answer that consists of one box.
func unbox(s string) (string, bool) {
	if !strings.HasPrefix(s, `\boxed`) && !strings.HasPrefix(s, `\fbox`) {
		return "", false
	}
	s = strings.TrimLeft(strings.TrimPrefix(strings.TrimPrefix(s, `\boxed`), `\fbox`), " ")
	inside, rest, ok := group(s)
	return inside, ok && rest == ""
}

// group splits s after its leading brace group.
func group(s string) (inside, rest string, ok bool) {
	if !strings.HasPrefix(s, "{") {
		return "", s, false
	}
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return s[1:i], s[i+1:], true
			}
		}
	}
	return "", s, false
}

// Final finds the answer of a solution: after the last "the answer is", else after the last "####", else in the last
// \boxed{}, else the last number. The text is the rest of the line without a trailing full stop, or the content of the box;
// it is meant for the matches Numeric and Units.
func Final(text string) (answer string, tier FoundBy) {
	text = strings.ReplaceAll(text, endTurn, "")
	if at := lastFold(text, phrase); at >= 0 {
		tail := strings.TrimLeft(text[at+len(phrase):], ": \t*")
		if line := firstLine(tail); line != "" {
			if inside, ok := Boxed(line); ok {
				line = inside
			}
			return strings.TrimRight(strings.TrimSuffix(line, "."), " *"), ByPhrase
		}
	}
	if answer, ok := GSM8K(text); ok && answer != "" {
		return answer, ByHash
	}
	if answer, ok := Boxed(text); ok {
		return answer, ByBoxed
	}
	if answer, ok := lastNumber(text); ok {
		return answer, ByLastNumber
	}
	return "", NotFound
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}

// lastFold is strings.LastIndex for an ASCII word, ignoring case.
func lastFold(s, word string) int {
	for i := len(s) - len(word); i >= 0; i-- {
		if strings.EqualFold(s[i:i+len(word)], word) {
			return i
		}
	}
	return -1
}

func lastCut(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
