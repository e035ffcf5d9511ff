package intent

import (
	"math"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/rltrain/rltrain/internal/expect"
)

// Two questions are near-duplicates if either measure reaches its bound.
//
// Of m words, m-1 of the m+1 word pairs (both ends of the text included)
// survive when one word is replaced, so the two versions overlap by
// (m-1)/(m+3): at least 1/3 from three words upwards. That bound therefore
// catches every question that is another with one word exchanged. Questions of
// the set that merely begin alike stay below it.
//
// Misspellings, inflection and reordered clauses destroy word pairs but leave
// most groups of four characters, so those catch what the first measure lets
// pass. Texts with nothing in common but function words stay below 0.6.
const (
	minPairs = 1.0 / 3
	minGrams = 0.6
)

// words returns the words of a text in lower case without punctuation.
func words(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '\''
	})
}

func wordPairs(text string) []string {
	w := slices.Concat([]string{"^"}, words(text), []string{"$"})
	var pairs []string
	for i := range len(w) - 1 {
		pairs = append(pairs, w[i]+" "+w[i+1])
	}
	return distinct(pairs)
}

func charGrams(text string) []string {
	runes := []rune(" " + strings.Join(words(text), " ") + " ")
	var grams []string
	for i := range len(runes) - 3 {
		grams = append(grams, string(runes[i:i+4]))
	}
	return distinct(grams)
}

func distinct(pieces []string) []string {
	slices.Sort(pieces)
	return slices.Compact(pieces)
}

func jaccard(shared, a, b float64) float64 { return shared / (a + b - shared) }
func cosine(shared, a, b float64) float64  { return shared / math.Sqrt(a*b) }

// similarity of the questions i > j
type similarity struct {
	i, j         int
	pairs, grams float64
}

func (s similarity) near() bool { return s.pairs >= minPairs || s.grams >= minGrams }

// compare calls yield for every two texts that share a piece.
func compare(texts []string, yield func(similarity)) {
	pairs := overlaps(texts, wordPairs, jaccard)
	grams := overlaps(texts, charGrams, cosine)
	for i := range texts {
		for j := range i {
			if s := (similarity{i, j, pairs[i][j], grams[i][j]}); s.pairs > 0 || s.grams > 0 {
				yield(s)
			}
		}
	}
}

// overlaps returns measure(shared pieces, pieces of i, pieces of j) at [i][j]
// for j < i. An index from piece to texts makes the work linear in the matches.
func overlaps(texts []string, pieces func(string) []string, measure func(shared, a, b float64) float64) [][]float64 {
	index := map[string][]int{}
	size := make([]float64, len(texts))
	out := make([][]float64, len(texts))
	for i, text := range texts {
		out[i] = make([]float64, i)
		own := pieces(text)
		size[i] = float64(len(own))
		for _, piece := range own {
			for _, j := range index[piece] {
				out[i][j]++
			}
			index[piece] = append(index[piece], i)
		}
		for j := range i {
			out[i][j] = measure(out[i][j], size[i], size[j])
		}
	}
	return out
}

func TestNoNearDuplicates(t *testing.T) {
	rows := Builtin()
	var texts []string
	for _, r := range rows {
		texts = append(texts, r.Text)
	}
	var pairs, grams similarity // the closest across splits
	compare(texts, func(s similarity) {
		a, b := rows[s.i], rows[s.j]
		expect.True(t, !s.near(), "near-duplicates (word pairs %.2f, characters %.2f):\n%s:%d: %s\n%s:%d: %s", s.pairs, s.grams, a.File, a.Line, a.Text, b.File, b.Line, b.Text)
		if a.Split != b.Split {
			if s.pairs > pairs.pairs {
				pairs = s
			}
			if s.grams > grams.grams {
				grams = s
			}
		}
	})
	t.Logf("closest across splits by word pairs, %.3f: %q, %q", pairs.pairs, rows[pairs.i].Text, rows[pairs.j].Text)
	t.Logf("closest across splits by characters, %.3f: %q, %q", grams.grams, rows[grams.i].Text, rows[grams.j].Text)
}
