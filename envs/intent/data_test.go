package intent

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestBuiltin(t *testing.T) {
	rows := Builtin()
	labels := must.Get(dataset.Labels(rows))(t)
	expect.Equal(t, Labels(), labels, "labels")
	seen := map[string]dataset.Row{}
	for _, r := range rows {
		expect.True(t, strings.TrimSpace(r.Text) == r.Text && r.Text != "" && utf8.ValidString(r.Text) && !strings.ContainsAny(r.Text, "\x00\n\t"), "%s:%d: text %q", r.File, r.Line, r.Text)
		key := strings.Join(words(r.Text), " ")
		first, ok := seen[key]
		expect.True(t, !ok, "%s:%d repeats %s:%d: %s", r.File, r.Line, first.File, first.Line, r.Text)
		seen[key] = r
	}
}

// The embedded files contain only questions: encoding/json would ignore a misspelt key.
func TestBuiltinFiles(t *testing.T) {
	entries := must.Get(files.ReadDir("data"))(t)
	expect.Same(t, len(Labels()), len(entries), "%d files, want one for each of %d labels", len(entries), len(Labels()))
	for _, e := range entries {
		content := must.Get(files.ReadFile("data/" + e.Name()))(t)
		for i, line := range strings.Split(strings.TrimSuffix(string(content), "\n"), "\n") {
			var object map[string]string
			err := json.Unmarshal([]byte(line), &object)
			expect.True(t, err == nil && len(object) == 1 && object["text"] != "", "%s:%d: %s (%v), want an object with only a text", e.Name(), i+1, line, err)
		}
	}
}

func TestBuiltinSplit(t *testing.T) {
	counts := map[string]map[string]int{}
	for _, r := range Builtin() {
		if counts[r.Label] == nil {
			counts[r.Label] = map[string]int{}
		}
		counts[r.Label][r.Split]++
	}
	for i, label := range Labels() {
		c := counts[label]
		n := c[dataset.Train] + c[dataset.Val] + c[dataset.Test]
		expect.True(t, n >= 60, "%s: %d questions, want at least 60", label, n)
		train, val, test := dataset.Counts(n, i)
		expect.Equal(t, map[string]int{dataset.Train: train, dataset.Val: val, dataset.Test: test}, c, label)
	}
}

// A classifier that saw texts of only one length would learn it.
func TestBuiltinLengths(t *testing.T) {
	var all []int
	of := map[string][]int{}
	for _, r := range Builtin() {
		n := len(words(r.Text))
		all = append(all, n)
		of[r.Label] = append(of[r.Label], n)
	}
	slices.Sort(all)
	p10, p50, p90, last := all[len(all)/10], all[len(all)/2], all[len(all)*9/10], all[len(all)-1]
	t.Logf("words: %d to %d, deciles %d and %d, median %d", all[0], last, p10, p90, p50)
	expect.True(t, all[0] >= 3 && p10 <= 10 && p50 >= 12 && p50 <= 20 && p90 >= 28 && last <= 80,
		"want 3 or more words, a tenth of at most 10, a median of 12 to 20, a tenth of at least 28, none over 80")
	for label, n := range of {
		slices.Sort(n)
		expect.True(t, n[0] <= 8 && n[len(n)-5] >= 30, "%s: shortest %d words, fifth longest %d, want at most 8 and at least 30", label, n[0], n[len(n)-5])
	}
}

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
