package dataset

import (
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

// nearest returns the name closest to want by edit distance without regard to
// case, or "" where none is within a third of want's length: further away a
// hint misleads.
func nearest(want string, names []string) string {
	best, bestDistance := "", max(1, len(want)/3)+1
	for _, name := range names {
		if len(name) > 2*len(want)+2 {
			continue
		}
		if d := distance(strings.ToLower(want), strings.ToLower(name)); d < bestDistance {
			best, bestDistance = name, d
		}
	}
	return best
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substituted := diagonal
			if a[i] != b[j] {
				substituted++
			}
			diagonal = row[j+1]
			row[j+1] = min(substituted, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
