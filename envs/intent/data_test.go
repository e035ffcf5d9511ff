package intent

import (
	"encoding/json"
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
	expect.Equal(t, Labels(), must.Get(dataset.Labels(rows))(t), "labels")
	seen := map[string]dataset.Row{}
	for _, r := range rows {
		expect.True(t, strings.TrimSpace(r.Text) == r.Text && r.Text != "" && utf8.ValidString(r.Text) && !strings.ContainsAny(r.Text, "\x00\n\t"), "%s:%d: text %q", r.File, r.Line, r.Text)
		// No question is another one, nor another one with a word exchanged, added or left out.
		w := words(r.Text)
		for i := range len(w) + 1 {
			key := strings.Join(slices.Delete(slices.Clone(w), i, min(i+1, len(w))), " ")
			first, ok := seen[key]
			expect.True(t, !ok || first.File == r.File && first.Line == r.Line, "%s:%d repeats %s:%d: %s", r.File, r.Line, first.File, first.Line, r.Text)
			seen[key] = r
		}
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

// words returns the words of a text in lower case without punctuation.
func words(text string) []string {
	return strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '\''
	})
}
