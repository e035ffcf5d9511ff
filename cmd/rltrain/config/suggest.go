package config

import "strings"

// Suggest returns the candidate nearest to name by edit distance (insertion, deletion, substitution, and swapping two
// neighbours), or "" where none is near: at most one edit for every three letters. A candidate that name begins is near too.
func Suggest(name string, candidates []string) string {
	name = canonical(name)
	best, distance := "", (len(name)+2)/3+1
	for _, c := range candidates {
		d := editDistance(name, canonical(c))
		if d > 1 && len(name) > 2 && strings.HasPrefix(canonical(c), name) {
			d = 1
		}
		if d < distance {
			best, distance = c, d
		}
	}
	return best
}

// editDistance is the optimal string alignment distance in bytes.
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

// didYouMean is the tail of a message about an unknown name; format renders the suggestion.
func didYouMean(name string, candidates []string, format func(string) string) string {
	if s := Suggest(name, candidates); s != "" {
		return "; did you mean " + format(s) + "?"
	}
	return ""
}

func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }
