package text

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// match is how a generated label is found.
type match string

const (
	named match = "named"
	exact match = "exact"

	byLabel   = "label"   // the line is the label
	byMention = "mention" // the line names the label
)

// find returns the label that a response gives, "" if none, and how it was found. The first line that is a label, or that
// names one, decides. A line that names several labels, or denies one, gives none: listing all labels must not be rewarded.
func (m match) find(response string, labels []string) (label, by string) {
	for line := range strings.Lines(strings.TrimSpace(response)) {
		line = normal(line)
		bare := strings.TrimFunc(line, func(r rune) bool { return unicode.IsPunct(r) || unicode.IsSpace(r) })
		for _, label := range labels {
			if line == normal(label) || m != exact && bare == normal(label) {
				return label, byLabel
			}
		}
		if m == exact {
			return "", ""
		}
		if all := mentions(line, labels); len(all) == 1 {
			return all[0], byMention
		} else if len(all) > 1 {
			return "", ""
		}
	}
	return "", ""
}

// denial matches the end of a text that denies the label after it.
var denial = regexp.MustCompile(`(^|\W)(not|no|never|neither|isn't|isn’t)\W+((a|an|the|really)\W+)?$`)

// mentions returns the labels that a line names as whole words, in lower case. Of labels at the same place the longest
// counts: "art history" is not "art". A label that is denied makes the line name all of them.
func mentions(line string, labels []string) (found []string) {
	longest := slices.SortedStableFunc(slices.Values(labels), func(a, b string) int { return len(b) - len(a) })
	rest := line
	for _, label := range longest {
		word := normal(label)
		for at := 0; ; {
			i := strings.Index(rest[at:], word)
			if i < 0 {
				break
			}
			from, to := at+i, at+i+len(word)
			at = to
			before, _ := utf8.DecodeLastRuneInString(rest[:from])
			after, _ := utf8.DecodeRuneInString(rest[to:])
			if wordRune(before) || wordRune(after) {
				continue
			}
			if denial.MatchString(rest[:from]) {
				return labels
			}
			if !slices.Contains(found, label) {
				found = append(found, label)
			}
			rest = rest[:from] + strings.Repeat("\x00", to-from) + rest[to:]
		}
	}
	return found
}

func wordRune(r rune) bool { return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r)) }
