package answer

import (
	"regexp"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/answer/formula"
)

// More ways to find an answer, used by [Find].
const (
	ByBold    FoundBy = "bold"    // the last part in **bold**
	ByFormula FoundBy = "formula" // the last formula between dollar signs or \( \), \[ \]
	ByWhole   FoundBy = "whole"   // the text consists of the answer
)

const (
	maxSearched      = 1 << 14 // bytes at the end of a text that are searched
	maxAnnouncements = 16      // phrases to try, from the last
	maxSentence      = 1 << 11 // bytes after a phrase
)

var (
	announcement = regexp.MustCompile(`(?i)\b(?:answers?|(?:correct|right|best) (?:option|choice))\s*[*_]*\s*(?:is|are|:|=)[\s:*_]*|\[answer\][\s:]*|####`)
	between      = regexp.MustCompile(`^(?:\$? ?[A-Za-z]{2,12}(?: [A-Za-z]{2,12})? and )?(?:[\s$,;&]|\\[\[\]()]|\\quad|\\qquad|\\text\{ ?(?:and|or) ?\}|\\\\|\band\b|\bor\b)*$`)
	ends         = strings.NewReplacer(`\"`, `"`, endTurn, "", "<|im_end|>", "", "</s>", "", "<|endoftext|>", "")
	// because starts an explanation of the answer.
	because = regexp.MustCompile(`(?i),? (?:because|since|which|so that|as (?:we|it|the))\b`)
)

// Find finds the answer that a text ends in, for the match Math. The last marker applies: "the answer is", "Answer:",
// "####", <answer> or \boxed{}. Boxes separated only by a comma, "and" or "or" form one list. Without a marker, the answer
// is the text itself if it is only mathematics, else the last bold part, the last formula, or the last number.
func Find(text string) (answer string, tier FoundBy) {
	text = strings.TrimSpace(ends.Replace(tail(text)))
	text = strings.TrimSpace(strings.TrimSuffix(text, thought))
	if _, said, found := lastCut(text, thought); found {
		text = strings.TrimSpace(said)
	}
	if said, _, found := strings.Cut(text, nextTurn); found && strings.TrimSpace(said) != "" {
		text = strings.TrimSpace(said)
	}
	text = strings.TrimSpace(strings.TrimSuffix(text, "I hope it is correct."))
	if answer, tier = announcedAnswer(text); tier != NotFound {
		return answer, tier
	}
	if isFormula(text) {
		return text, ByWhole
	}
	if inside := bold(text); isFormula(inside) {
		return inside, ByBold
	}
	if inside, _, to := lastFormula(text); isFormula(inside) {
		if said := lastSentence(text[to:]); concluding.MatchString(said) && onlyNumber(said) != "" {
			return onlyNumber(said), ByLastNumber
		}
		return inside, ByFormula
	}
	if answer := stated(lastSentence(text)); answer != "" {
		return answer, ByLastNumber
	}
	if answer, ok := lastNumber(text); ok && !hedged(text, answer) {
		return answer, ByLastNumber
	}
	return "", NotFound
}

var (
	concluding = regexp.MustCompile(`(?i)^\W*(?:therefore|thus|hence|so|consequently|in total|altogether|in conclusion)\b`)
	figures    = regexp.MustCompile(`(?:[-−$£€¥] ?)?\d(?:[\d,]*\d)?(?:\.\d+)?%?`)
	// changing are words that change the number in a sentence.
	changing = regexp.MustCompile(`(?i)\b(?:not|never|no|cannot|wrong|or|and|if|unless|except|maybe|perhaps|than|least|most|more|less|fewer|between|over|under|above|below|negative|minus|plus|times|twice|double|triple|half|halves|third|thirds|quarter|quarters|square|squared|squares|cube|cubed|root|power|sum|product|difference|factorial|dozen|dozens|hundred|thousand|million|billion)\b|n't\b`)
)

// onlyNumber returns the number of a sentence with exactly one number and no formula, or "" if the sentence may mean another
// number.
func onlyNumber(sentence string) string {
	found := figures.FindAllStringIndex(sentence, -1)
	if len(found) != 1 || strings.ContainsAny(sentence, `\^_=<>+*/`) || changing.MatchString(sentence) {
		return ""
	}
	from, to := found[0][0], found[0][1]
	if from > 0 && strings.IndexByte(" \t(", sentence[from-1]) < 0 || to < len(sentence) && strings.IndexByte(" \t).,;!?", sentence[to]) < 0 {
		return ""
	}
	return sentence[from:to]
}

// thought ends a model's reasoning.
const thought = "</think>"

// nextTurn starts text that a model generates after its turn.
const nextTurn = "<|im_start|>"

// verb precedes what a sentence states.
var verb = regexp.MustCompile(`(?i)^.*(?:\b(?:is|are|equals|was|be|by|get|gives|yields|than)\b|=|≈)`)

// stated returns the formula at the end of a sentence, after its last verb, or "" if there is none or the sentence denies
// something.
func stated(sentence string) string {
	to := verb.FindStringIndex(sentence)
	if to == nil || denied.MatchString(sentence) || strings.HasSuffix(strings.ToLower(sentence[:to[1]]), "than") {
		return ""
	}
	rest := spoken(strings.TrimLeft(sentence[to[1]:], " .:*"))
	if !isFormula(rest) {
		return ""
	}
	return rest
}

// lastSentence returns the last sentence of the last line.
func lastSentence(text string) string {
	line := LastLine(text)
	if len(line) > maxSentence {
		line = strings.ToValidUTF8(line[len(line)-maxSentence:], "")
	}
	if !strings.HasSuffix(line, "!.") { // a factorial
		line = strings.TrimRight(line, " .")
	}
	return line[strings.LastIndex(line, ". ")+1:]
}

// hedged reports whether the last number of a text is one of several, is denied, belongs to a calculation without a result,
// or is in a truncated box.
func hedged(text, number string) bool {
	before := text[:strings.LastIndex(text, number)]
	if strings.Contains(before, `\boxed`) {
		return true
	}
	words := strings.Fields(before)
	if len(words) == 0 {
		return false
	}
	if strings.ContainsAny(words[len(words)-1][len(words[len(words)-1])-1:], "*/+^") {
		return true
	}
	switch strings.ToLower(strings.Trim(words[len(words)-1], "(*_,")) {
	case "or", "and", "not", "to", "than", "except":
		return true
	}
	return false
}

// proseWords is the number of words from which a text is prose that ends in an answer.
const proseWords = 6

var denied = regexp.MustCompile(`(?i)\b(?:not|never|no|cannot|wrong)\b|n't\b`)

// Decide compares a text with the correct answer by the match Math: the text itself, else the result of [Find]. Short texts
// without a marker are compared only as they are. The correct answer may be a solution with a marked answer. FoundBy says
// what was compared.
func Decide(gold, text string) (Verdict, FoundBy) {
	if announced, tier := announcedAnswer(strings.TrimSpace(tail(gold))); tier != NotFound {
		gold = announced
	}
	v := Math.Compare(gold, text)
	found, tier := Find(text)
	switch {
	case v.Equal, tier == NotFound, tier == ByWhole:
		return v, ByWhole
	case tier == ByLastNumber && (len(strings.Fields(text)) < proseWords || denied.MatchString(text)):
		return v, ByWhole
	case tier == ByFormula && (denied.MatchString(text) || !closingFormula(text)):
		return v, ByWhole
	}
	v = Math.Compare(gold, found)
	if !v.Equal {
		if second, ok := again(gold, text, found); ok {
			return second, tier
		}
	}
	return v, tier
}

// again compares other readings of a text: the boxes of its last line as one list, if the correct answer is a list too, or
// the only number of a sentence with a marker.
func again(gold, text, found string) (v Verdict, equal bool) {
	if list := boxedLine(text); list != "" && isList(gold) {
		v = Math.Compare(gold, list)
	}
	if !v.Equal && !isFormula(found) {
		if number := onlyNumber(found); number != "" {
			v = Math.Compare(gold, number)
		}
	}
	return v, v.Equal
}

func isList(text string) bool {
	n, err := formula.Parse(text)
	return err == nil && (n.Kind == formula.List || n.Kind == formula.Set)
}

// closingFormula reports whether the last formula is the statement of a text: no word is joined to it, as in "the
// $x$-axis", and it ends the text or is part of a sentence.
func closingFormula(text string) bool {
	_, from, to := lastFormula(text)
	rest := text[to:]
	if rest != "" && strings.IndexByte(" .,;!\n\r\t", rest[0]) < 0 {
		return false
	}
	return strings.Trim(rest, " .,;!\n\r\t") == "" || len(strings.Fields(text[:from])) > 0
}

// tail is the searched end of a text.
func tail(text string) string {
	if len(text) <= maxSearched {
		return text
	}
	return strings.ToValidUTF8(text[len(text)-maxSearched:], "")
}

// isFormula reports whether a text is only mathematics.
func isFormula(text string) bool {
	if len(text) > formula.MaxLength || strings.Contains(text, "\n\n") {
		return false
	}
	n, err := formula.Parse(text)
	return err == nil && n.Kind != formula.Text
}

func announcedAnswer(text string) (answer string, tier FoundBy) {
	at := -1
	tier = NotFound
	if inside, from, ok := boxes(text); ok {
		answer, tier, at = nearly.ReplaceAllString(inside, ""), ByBoxed, from
	}
	shut := -1
	if inside, from := element(text); from > at {
		answer, tier, at, shut = spoken(inside), ByTag, from, lastFold(text, "</answer>")
	}
	places := announcement.FindAllStringIndex(text, -1)
	for i := len(places) - 1; i >= max(0, len(places)-maxAnnouncements) && places[i][0] > at; i-- {
		said := sentence(text[places[i][1]:])
		if said == "" || !telling(said) {
			continue
		}
		switch {
		case text[places[i][0]] == '#':
			return said, ByHash
		case text[places[i][0]] == '[', at >= 0 && tier == ByTag && places[i][0] < shut:
			return said, ByTag
		}
		return said, ByPhrase
	}
	if tier == NotFound {
		return announcedBefore(text)
	}
	return answer, tier
}

// element returns the content of the last <answer>…</answer> and its position, -1 if there is none.
func element(text string) (inside string, from int) {
	const open, shut = "<answer>", "</answer>"
	end := lastFold(text, shut)
	if end < 0 {
		return "", -1
	}
	if from = lastFold(text[:end], open); from < 0 {
		return "", -1
	}
	return strings.TrimSpace(text[from+len(open) : end]), from
}

// bold returns the content of the last **…** on one line.
func bold(text string) string {
	end := strings.LastIndex(text, "**")
	if end < 0 {
		return ""
	}
	from := strings.LastIndex(text[:end], "**")
	if from < 0 || strings.Contains(text[from:end], "\n") {
		return ""
	}
	return strings.Trim(text[from+2:end], " .:*")
}

// lastFormula returns the last delimited formula, and where its delimiters start and end.
func lastFormula(text string) (inside string, from, to int) {
	missing := map[string]bool{} // delimiters that do not occur again
	for i := 0; i < len(text); {
		open, shut := "", ""
		for _, pair := range [][2]string{{"$$", "$$"}, {"$", "$"}, {`\(`, `\)`}, {`\[`, `\]`}} {
			if strings.HasPrefix(text[i:], `\$`) {
				break
			}
			if strings.HasPrefix(text[i:], pair[0]) {
				open, shut = pair[0], pair[1]
				break
			}
		}
		if open == "" || missing[shut] {
			i += max(1, len(open))
			if open == "" && strings.HasPrefix(text[i-1:], `\$`) {
				i++
			}
			continue
		}
		start := i + len(open)
		end := unescaped(text[start:], shut)
		switch {
		case end < 0:
			missing[shut] = true
		case end > 0 && !((open == "$" || open == `\(`) && strings.Contains(text[start:start+end], "\n")):
			inside, from, to = strings.TrimSpace(text[start:start+end]), i, start+end+len(shut)
			i = to
			continue
		}
		i = start
	}
	return inside, from, to
}

// unescaped returns the position of a delimiter without a backslash before it, or -1.
func unescaped(text, shut string) int {
	for from := 0; ; {
		at := strings.Index(text[from:], shut)
		if at < 0 {
			return -1
		}
		at += from
		if shut[0] != '$' || at == 0 || text[at-1] != '\\' {
			return at
		}
		from = at + len(shut)
	}
}

// telling reports whether the text after a marker can be an answer: a formula, a few words, or something with a digit.
func telling(said string) bool {
	return strings.ContainsAny(said, "0123456789$\\") || len(strings.Fields(said)) <= 6
}

// boxedLine returns the boxes of the last line that has any, as a list; "" for fewer than two.
func boxedLine(text string) string {
	found := allBoxes(tail(text))
	if len(found) == 0 {
		return ""
	}
	text = tail(text)
	line := strings.LastIndexByte(text[:found[len(found)-1].from], '\n')
	first := slices.IndexFunc(found, func(b box) bool { return b.from > line })
	if len(found)-first < 2 {
		return ""
	}
	return joined(text, found[first:])
}

// box is a \boxed{} or \fbox{}: where it starts, where its content starts, and where it ends.
type box struct{ from, to, open int }

// allBoxes returns the boxes of a text; of nested ones the outer.
func allBoxes(text string) (found []box) {
	var open []int
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
			for _, command := range []string{`\boxed`, `\fbox`} {
				if strings.HasSuffix(before, command) {
					b := box{len(before) - len(command), i + 1, brace + 1}
					for len(found) > 0 && found[len(found)-1].from > b.from { // nested
						found = found[:len(found)-1]
					}
					found = append(found, b)
				}
			}
		}
	}
	return found
}

// boxes returns the content of the last \boxed{} or \fbox{}, with the previous ones of the same list, and where the last one
// starts.
func boxes(text string) (inside string, from int, ok bool) {
	found := allBoxes(text)
	if len(found) == 0 {
		return "", 0, false
	}
	last := len(found) - 1
	first := last
	for first > 0 && between.MatchString(text[found[first-1].to:found[first].from]) {
		first--
	}
	return joined(text, found[first:]), found[last].from, true
}

// joined lists the contents of boxes, without consecutive duplicates.
func joined(text string, found []box) string {
	var parts []string
	for _, b := range found {
		part := strings.TrimSpace(text[b.open : b.to-1])
		if len(parts) == 0 || part != parts[len(parts)-1] {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ", ")
}

// sentence returns the first line up to the end of its sentence; if a displayed formula follows, that formula.
func sentence(s string) string {
	s = strings.TrimLeft(s, " \t\r\n:*_\"“")
	for _, fence := range [][2]string{{"$$", "$$"}, {`\[`, `\]`}} {
		if rest, found := strings.CutPrefix(s, fence[0]); found {
			if inside, _, found := strings.Cut(rest, fence[1]); found {
				return strings.TrimSpace(inside)
			}
		}
	}
	if len(s) > maxSentence {
		s = strings.ToValidUTF8(s[:maxSentence], "")
	}
	s, _, _ = strings.Cut(s, "\n")
	dollars := 0
	for i := 0; i < len(s); i++ {
		if s[i] == '$' && (i == 0 || s[i-1] != '\\') {
			dollars++
		}
		if s[i] == '.' && i+1 < len(s) && s[i+1] == ' ' && (dollars%2 == 0 || !strings.Contains(s[i:], "$")) {
			s = s[:i]
		}
	}
	s = spoken(s)
	if isFormula(s) {
		return s
	}
	if at := because.FindStringIndex(s); at != nil && at[0] > 0 && isFormula(s[:at[0]]) {
		return s[:at[0]]
	}
	if value := stated(s); value != "" { // Final answer: the largest n is 34
		return value
	}
	return s
}
