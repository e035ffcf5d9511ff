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

// numbers of the different pairs of words of a text, and of its groups of four characters, are sorted. ids has the numbers so far.
func numbers(text string, ids map[string]int) (pairs, grams []int) {
	number := func(piece string) int {
		if _, ok := ids[piece]; !ok {
			ids[piece] = len(ids)
		}
		return ids[piece]
	}
	w := slices.Concat([]string{"^"}, words(text), []string{"$"})
	for i := range len(w) - 1 {
		pairs = append(pairs, number(w[i]+" "+w[i+1]))
	}
	runes := []rune(" " + strings.Join(words(text), " ") + " ")
	for i := range len(runes) - 3 {
		grams = append(grams, number(string(runes[i:i+4])))
	}
	slices.Sort(pairs)
	slices.Sort(grams)
	return slices.Compact(pairs), slices.Compact(grams)
}

// shared is how many numbers two sorted lists have in common.
func shared(a, b []int) (n float64) {
	for len(a) > 0 && len(b) > 0 {
		c := a[0] - b[0]
		if c == 0 {
			n++
		}
		if c <= 0 {
			a = a[1:]
		}
		if c >= 0 {
			b = b[1:]
		}
	}
	return n
}

func TestNoNearDuplicates(t *testing.T) {
	rows := Builtin()
	ids := map[string]int{}
	var pairs, grams [][]int
	for i, r := range rows {
		p, g := numbers(r.Text, ids)
		pairs, grams = append(pairs, p), append(grams, g)
		for j := range i {
			same := shared(p, pairs[j])
			overlap := same / (float64(len(p)+len(pairs[j])) - same)
			cosine := shared(g, grams[j]) / math.Sqrt(float64(len(g)*len(grams[j])))
			if overlap >= minPairs || cosine >= minGrams {
				t.Errorf("near-duplicates (word pairs %.2f, characters %.2f):\n%s:%d: %s\n%s:%d: %s",
					overlap, cosine, r.File, r.Line, r.Text, rows[j].File, rows[j].Line, rows[j].Text)
			}
		}
	}
}
