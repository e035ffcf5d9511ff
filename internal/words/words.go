// Package words puts names and values of users' files into errors of one line.
package words

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	maxListed = 20 // names an error lists
	maxQuoted = 60 // runes of a value an error quotes
)

// Quote returns s in quotes on one line, cut behind 60 characters.
func Quote(s string) string {
	n := 0
	for i := range s {
		if n == maxQuoted {
			return strconv.Quote(s[:i]) + "…"
		}
		n++
	}
	return strconv.Quote(s)
}

// List returns the names in quotes with commas, cut behind 20.
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
