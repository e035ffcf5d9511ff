package answer

import (
	"math/big"
	"regexp"
	"strings"
)

// Tag marks the answer in the format of the digit tasks.
const Tag = "[ANSWER]"

// FoundBy says how an answer was found.
type FoundBy string

// The ways to find an answer, most certain first. [Extract] uses ByTag, ByPhrase and ByLastNumber; [Final] uses ByPhrase,
// ByHash, ByBoxed and ByLastNumber.
const (
	ByTag        FoundBy = "tag"         // after [ANSWER]
	ByPhrase     FoundBy = "phrase"      // after "the answer is" and similar phrases
	ByHash       FoundBy = "hash"        // after ####
	ByBoxed      FoundBy = "boxed"       // inside \boxed{}
	ByLastNumber FoundBy = "last_number" // the last number of the text
	NotFound     FoundBy = "none"        // no answer
)

// Number is the answer found by [Extract].
type Number struct {
	Text    string   // as written, "" if none
	Value   *big.Rat // the exact value, nil if none
	FoundBy FoundBy
}

var (
	tagPattern    = regexp.MustCompile(`\[ANSWER\]`)
	phrasePattern = regexp.MustCompile(`(?i)answer is|answer:|\[answer\]`)
	equalsPattern = regexp.MustCompile(`=`)
	theAnswer     = regexp.MustCompile(`(?i)^the answer`)
)

// Extract finds the number that a text gives as its answer:
//
//  1. after the last [ANSWER], in capitals, followed by a number: ByTag;
//  2. after the last "the answer is", "answer is", "answer:" or [answer], in any case, followed by a number: ByPhrase;
//  3. after the last "=" whose number ends the text or precedes "The answer": ByPhrase;
//  4. the last number of the text: ByLastNumber.
//
// Between the phrase and the number there may be white space, quotes, opening brackets, emphasis (* _ `), a colon, an equals
// sign, $ and \boxed{. Numbers may have a sign, thousands separators, decimals, an exponent and, in 1 to 3, a denominator
// (3/4). After a phrase, a sum is read to its result: "3 + 4 = 7" is 7. A minus after a letter or digit is a hyphen: the
// last number of "ten-12" is 12.
func Extract(text string) Number {
	if n, ok := announced(text, tagPattern); ok {
		n.FoundBy = ByTag
		return n
	}
	if n, ok := announced(text, phrasePattern); ok {
		n.FoundBy = ByPhrase
		return n
	}
	if n, ok := closing(text); ok {
		n.FoundBy = ByPhrase
		return n
	}
	if last, ok := lastNumber(text); ok {
		if value := number(last); value != nil {
			return Number{Text: last, Value: value, FoundBy: ByLastNumber}
		}
	}
	return Number{FoundBy: NotFound}
}

// Tagged reports whether a text has the answer format: [ANSWER] in capitals.
func Tagged(text string) bool { return strings.Contains(text, Tag) }

func announced(text string, announcement *regexp.Regexp) (Number, bool) {
	places := announcement.FindAllStringIndex(text, -1)
	for i := len(places) - 1; i >= 0; i-- {
		rest := text[places[i][1]:]
		if i+1 < len(places) {
			rest = text[places[i][1]:places[i+1][0]]
		}
		if n, end, ok := leading(rest); ok {
			if result, ok := result(rest[end:]); ok {
				n = result
			}
			return n, true
		}
	}
	return Number{}, false
}

// closing finds the last "= n" that ends the text or precedes "The answer".
func closing(text string) (Number, bool) {
	places := equalsPattern.FindAllStringIndex(text, -1)
	for i := len(places) - 1; i >= 0; i-- {
		rest := text[places[i][1]:]
		if i+1 < len(places) {
			rest = text[places[i][1]:places[i+1][0]]
		}
		n, end, ok := leading(rest)
		if !ok {
			continue
		}
		rest = strings.TrimLeft(text[places[i][1]+end:], " \t\r\n*_`>)]}$.\"'")
		if rest == "" || theAnswer.MatchString(rest) {
			return n, true
		}
	}
	return Number{}, false
}

// leading reads the number at the start of s, after decoration.
func leading(s string) (n Number, end int, ok bool) {
	i := 0
	for i < len(s) {
		switch {
		case strings.IndexByte(" \t\r\n*_`<([{:=$\"'", s[i]) >= 0:
			i++
		case strings.HasPrefix(s[i:], `\boxed`):
			i += len(`\boxed`)
		case strings.HasPrefix(s[i:], `\(`), strings.HasPrefix(s[i:], `\[`), strings.HasPrefix(s[i:], `\$`):
			i += 2
		default:
			return fraction(s, i)
		}
	}
	return Number{}, 0, false
}

func fraction(s string, i int) (n Number, end int, ok bool) {
	end = scanNumber(s, i)
	if end == i {
		return Number{}, 0, false
	}
	n = Number{Text: s[i:end], Value: number(s[i:end])}
	if end+1 < len(s) && s[end] == '/' && isDigit(s[end+1]) {
		if below := scanNumber(s, end+1); below > end+1 {
			if divisor := number(s[end+1 : below]); divisor != nil && divisor.Sign() != 0 && n.Value != nil {
				n.Text, n.Value = s[i:below], n.Value.Quo(n.Value, divisor)
				end = below
			}
		}
	}
	return n, end, n.Value != nil
}

// result reads what follows the first number of a sum: at least one operator with a number, an equals sign, and the result.
func result(s string) (n Number, ok bool) {
	for terms := 0; ; terms++ {
		s = strings.TrimLeft(s, " \t)$")
		if after, equals := strings.CutPrefix(s, "="); equals && terms > 0 {
			n, _, ok = leading(after)
			return n, ok
		}
		operator := operatorLength(s)
		if operator == 0 {
			return Number{}, false
		}
		s = strings.TrimLeft(s[operator:], " \t($")
		end := scanNumber(s, 0)
		if end == 0 {
			return Number{}, false
		}
		s = s[end:]
	}
}

func operatorLength(s string) int {
	for _, operator := range []string{"+", "-", minus, "*", "×", "x", "/", "÷"} {
		if strings.HasPrefix(s, operator) {
			return len(operator)
		}
	}
	return 0
}
