package dataset

import "strconv"

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
