package answer

import (
	"regexp"
	"strings"
)

var (
	exclaimed = regexp.MustCompile(`!+[ *_"”]*$`)
	// signed are signs in words before a number.
	signed = regexp.MustCompile(`(?i)^(?:negative|minus)\s+((?:[$£€¥]|\\\$)?[\d.\\($])`)
	// coded are currency codes before a number.
	coded = regexp.MustCompile(`^(USD|EUR|GBP|CAD|AUD|INR|JPY|CNY|CHF|US\$)\s?(-?\d[\d.,]*)$`)
	// nearly are words before a number that leave it as it is.
	nearly = regexp.MustCompile(`(?i)^(?:(?:about|approximately|approx\.?|roughly|around|exactly|equal to|simply|just)\s+|\\approx(?:eq)?\s*|\\sim(?:eq)?\s*|[≈~∼]\s*)`)
	// remarked are remarks on how a number was written.
	remarked = regexp.MustCompile(`(?i)\s*\((?:rounded|approx|to the nearest|nearest)[^()]*\)$`)
	// before are announcements after the answer: B is correct, 72 is the answer.
	before = regexp.MustCompile(`(?:^|\s)[*_"(]*([A-Z]|[-$£€]?\d[\d.,/]*%?)[*_")]*\s+is\s+(?i:(?:the\s+|my\s+|our\s+)?(?:(?:final|correct|right|best)\s+)*(?:answer|option|choice)|(?:correct|right))\b`)
	doubts = regexp.MustCompile(`(?i)\b(?:if|whether|not|neither|nor|or|and|unless|why)\W*(?:option|choice|answer)?\W*$`)
	option = regexp.MustCompile(`^(?i:the )?(?i:option|choice|letter|answer)\s*:?\s*\(?([A-Z])\)?(?:$|[).:,]\s*|\s*[-–]\s)`)
)

// spoken reads an answer as a sentence says it, where words stand for signs: negative 5, USD 5, option B, about 5, 5 (rounded).
// The exclamation mark of a sentence is no factorial; that one has a full stop behind it, or dollar signs around it.
func spoken(s string) string {
	if at := lastFold(s, "</answer>"); at >= 0 {
		s = s[:at]
	}
	s = exclaimed.ReplaceAllString(strings.TrimSpace(s), "")
	s = strings.TrimRight(strings.TrimSpace(s), " .*_\"”")
	s = emphasised(s)
	s = remarked.ReplaceAllString(s, "")
	if found := option.FindStringSubmatch(s); found != nil {
		return found[1]
	}
	if rest := nearly.ReplaceAllString(s, ""); rest != "" {
		s = rest
	}
	s = signed.ReplaceAllString(s, "-$1")
	return coded.ReplaceAllString(s, "$2 $1")
}

// emphasised returns what is bold at the start of a sentence, if it is a formula and the rest changes nothing.
func emphasised(s string) string {
	head, rest, found := strings.Cut(s, "**")
	if !found || strings.Count(s, "**")%2 == 0 || !isFormula(head) || changing.MatchString(rest) || strings.ContainsAny(rest, "0123456789\\$") {
		return s
	}
	return strings.TrimSpace(head)
}

// announcedBefore finds the last answer that stands before its announcement, unless a word before it puts it in doubt.
func announcedBefore(text string) (answer string, tier FoundBy) {
	places := before.FindAllStringSubmatchIndex(text, -1)
	if len(places) == 0 {
		return "", NotFound
	}
	last := places[len(places)-1]
	if doubts.MatchString(text[:last[2]]) {
		return "", NotFound
	}
	return text[last[2]:last[3]], ByPhrase
}
