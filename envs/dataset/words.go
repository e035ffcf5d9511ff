package dataset

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	maxListed = 20 // names an error lists
	maxQuoted = 60 // runes of a value an error quotes
)

// quote returns s in quotes on one line, cut where it is long.
func quote(s string) string {
	n := 0
	for i := range s {
		if n == maxQuoted {
			return strconv.Quote(s[:i]) + "…"
		}
		n++
	}
	return strconv.Quote(s)
}

// list returns names in quotes with commas, cut where they are many.
func list(names []string) string {
	shown := make([]string, 0, min(len(names), maxListed))
	for _, name := range names[:min(len(names), maxListed)] {
		shown = append(shown, quote(name))
	}
	out := strings.Join(shown, ", ")
	if more := len(names) - len(shown); more > 0 {
		out += fmt.Sprintf(" and %d more", more)
	}
	return out
}
