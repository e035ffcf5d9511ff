// Package nearest finds the name that a user probably meant.
package nearest

import "strings"

// Name returns the candidate with the smallest edit distance to name (insertion, deletion, substitution, transposition),
// or "" if none is close: about one edit per four letters, because wrong hints mislead. A candidate that starts with name
// is also close. Case and dashes against underscores do not count.
func Name(name string, candidates []string) string {
	name = fold(name)
	best, distance := "", (len(name)+2)/4+1
	for _, c := range candidates {
		if len(c) > 3*len(name)+3 && !strings.HasPrefix(fold(c), name) {
			continue // too far apart; labels can be long texts
		}
		d := editDistance(name, fold(c))
		if d > 1 && len(name) > 2 && strings.HasPrefix(fold(c), name) {
			d = 1
		}
		if d < distance {
			best, distance = c, d
		}
	}
	return best
}

// Hint is the end of a message about an unknown name: "; did you mean NAME?", or "" if none is close. format renders the name;
// nil leaves it as it is.
func Hint(name string, candidates []string, format func(string) string) string {
	near := Name(name, candidates)
	if near == "" {
		return ""
	}
	if format != nil {
		near = format(near)
	}
	return "; did you mean " + near + "?"
}

func fold(name string) string { return strings.ToLower(strings.ReplaceAll(name, "-", "_")) }

// editDistance is the optimal string alignment distance, in bytes.
func editDistance(a, b string) int {
	var before []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
