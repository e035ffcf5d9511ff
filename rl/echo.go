package rl

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Outcome is a completion as the echo alarm sees it.
type Outcome struct {
	Prompt, Text string
	Answer       string // as the verifier found it, "" if there is none
	Truth        string // the reference answer, "" if there is none
	Reward       float64
}

// Rewarded counts the rewarded completions of a step, and those among them that answer nothing.
type Rewarded struct {
	N       int    `json:"n"`
	Echoes  int    `json:"echoes"`            // they stand in their prompt, and are longer than the reference answer
	Same    int    `json:"same"`              // the most frequent text, if it is for manyTruths reference answers or more
	Echo    string `json:"echo,omitempty"`    // an example
	Repeats string `json:"repeats,omitempty"` // the most frequent text
}

const (
	manyTruths = 4 // reference answers, or prompts without one, that one text cannot all answer
	fewWords   = 3 // without a reference answer, shorter texts may be labels: many prompts name or share them
)

// CountRewarded counts completions with a reward of at least the mean, and above it or above 0. An echo does not contain
// the reference answer: "B) a dog" does answer "A) a cat or B) a dog?".
func CountRewarded(all []Outcome) (r Rewarded) {
	mean := 0.0
	for _, x := range all {
		mean += x.Reward / float64(len(all))
	}
	counts, truths, texts := map[string]int{}, map[string]map[string]bool{}, map[string]string{}
	for _, x := range all {
		const rounding = 1e-9
		if x.Reward < mean-rounding || x.Reward <= mean+rounding && x.Reward <= 0 {
			continue
		}
		r.N++
		short := x.Truth == "" && len(strings.Fields(x.Text)) < fewWords
		for _, text := range []string{x.Text, x.Answer} {
			if said := squeeze(text); !short && said != "" && len(said) > len(squeeze(x.Truth)) && strings.Contains(squeeze(x.Prompt), said) && !hasWord(text, x.Truth) {
				r.Echoes++
				r.Echo = cmp.Or(r.Echo, strings.TrimSpace(text))
				break
			}
		}
		if said := squeeze(x.Text); said != "" && !short {
			counts[said]++
			texts[said] = strings.TrimSpace(x.Text)
			if truths[said] == nil {
				truths[said] = map[string]bool{}
			}
			truths[said][squeeze(cmp.Or(x.Truth, x.Prompt))] = true
		}
	}
	for _, said := range slices.Sorted(maps.Keys(counts)) {
		if len(truths[said]) >= manyTruths && counts[said] > r.Same {
			r.Same, r.Repeats = counts[said], texts[said]
		}
	}
	return r
}

// squeeze drops space and case, and punctuation at the ends.
func squeeze(text string) string {
	text = strings.Join(strings.Fields(strings.ToLower(text)), "")
	return strings.TrimFunc(text, func(r rune) bool { return unicode.IsPunct(r) && r != '-' || strings.ContainsRune("$=`", r) })
}

// hasWord reports whether a text contains a word, in any case.
func hasWord(text, word string) bool {
	text, word = strings.ToLower(text), strings.ToLower(strings.TrimSpace(word))
	inside := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	for at := 0; word != "" && at < len(text); {
		i := strings.Index(text[at:], word)
		if i < 0 {
			return false
		}
		from := at + i
		before, _ := utf8.DecodeLastRuneInString(text[:from])
		after, _ := utf8.DecodeRuneInString(text[from+len(word):])
		if !inside(before) && !inside(after) {
			return true
		}
		at = from + 1
	}
	return false
}
