// Package words formats names and values from user files for one-line errors.
package words

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

const (
	maxListed = 20 // names per list
	maxQuoted = 60 // runes per quoted value
)

// Quote quotes s on one line, truncated to 60 characters.
func Quote(s string) string { return QuoteTo(s, maxQuoted) }

// QuoteTo quotes s on one line, truncated to most characters.
func QuoteTo(s string, most int) string {
	n := 0
	for i := range s {
		if n == most {
			return strconv.Quote(s[:i]) + "…"
		}
		n++
	}
	return strconv.Quote(s)
}

// List quotes and joins the names, at most 20.
func List(names []string) string {
	shown := make([]string, 0, min(len(names), maxListed))
	for _, name := range names[:min(len(names), maxListed)] {
		shown = append(shown, Quote(name))
	}
	out := strings.Join(shown, ", ")
	if more := len(names) - len(shown); more > 0 {
		out += fmt.Sprintf(" and %d more", more)
	}
	return out
}

// Printable quotes the characters of s that a terminal would obey, such as line feeds.
func Printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}
