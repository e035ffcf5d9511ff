package dataset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/rltrain/rltrain/internal/words"
)

// LabelCount is a label, its rows and the first of them.
type LabelCount struct {
	Label string
	Rows  int
	First Row
}

// Review is what a look at labelled rows finds.
type Review struct {
	Labels []LabelCount // the most frequent first
	// Alike are groups of labels that differ only in case or spaces, which are hardly different classes.
	Alike [][]LabelCount
	// Doubts are remarks on labels: punctuation that alone tells two of them apart, spaces around one, names for a missing
	// label.
	Doubts map[string]string
	// Contradictions are pairs of rows that have equal texts and different labels, one for each such text.
	Contradictions [][2]Row
	Repeated       int // rows whose text and label an earlier row has
}

// missingLabels are names, without case and punctuation, that stand for a missing label.
var missingLabels = []string{"na", "nan", "null", "none", "nil", "missing", "unlabeled", "unlabelled", "undefined"}

// ReviewRows looks at rows before they are learnt from.
func ReviewRows(rows []Row) Review {
	v := Review{Doubts: map[string]string{}}
	places, texts := map[string]int{}, map[string]Row{}
	contradicted := map[string]bool{}
	for _, r := range rows {
		at, known := places[r.Label]
		if !known {
			at = len(v.Labels)
			places[r.Label] = at
			v.Labels = append(v.Labels, LabelCount{Label: r.Label, First: r})
		}
		v.Labels[at].Rows++
		switch first, met := texts[r.Text]; {
		case !met:
			texts[r.Text] = r
		case first.Label == r.Label:
			v.Repeated++
		case !contradicted[r.Text]:
			contradicted[r.Text] = true
			v.Contradictions = append(v.Contradictions, [2]Row{first, r})
		}
	}
	slices.SortStableFunc(v.Labels, func(a, b LabelCount) int { return cmp.Compare(b.Rows, a.Rows) })
	v.compare()
	return v
}

// compare finds labels that look like others, or like none.
func (v *Review) compare() {
	spaced, bare := map[string][]LabelCount{}, map[string][]LabelCount{}
	var order []string
	for _, l := range v.Labels {
		key := foldSpaces(l.Label)
		if spaced[key] == nil {
			order = append(order, key)
			bare[foldPunctuation(key)] = append(bare[foldPunctuation(key)], l)
		}
		spaced[key] = append(spaced[key], l)
		if strings.TrimSpace(l.Label) != l.Label {
			v.Doubts[l.Label] = "has spaces around it"
		}
		if slices.Contains(missingLabels, foldPunctuation(key)) {
			v.Doubts[l.Label] = "looks like a missing label"
		}
	}
	for _, key := range order {
		if len(spaced[key]) > 1 {
			v.Alike = append(v.Alike, spaced[key])
		}
	}
	for key, group := range bare {
		for _, l := range group {
			if key != "" && len(group) > 1 && l.Label != group[0].Label {
				v.Doubts[l.Label] = "differs from " + words.Quote(group[0].Label) + " only in punctuation"
			}
		}
	}
}

// foldSpaces is a label without case and with single spaces. Underscores are spaces.
func foldSpaces(label string) string {
	return strings.Join(strings.Fields(strings.ToLower(strings.ReplaceAll(label, "_", " "))), " ")
}

// foldPunctuation drops punctuation and spaces, but for what makes names such as C# and -1 different.
func foldPunctuation(label string) string {
	var b strings.Builder
	all := []rune(label)
	for i, r := range all {
		sign := r == '-' && i+1 < len(all) && unicode.IsDigit(all[i+1])
		if sign || strings.ContainsRune("#&%*@", r) || !unicode.IsPunct(r) && !unicode.IsSpace(r) {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Distinct drops the rows whose label differs from a more frequent one only in case or spaces. They are faults, too; the
// error is that of all faults.
func Distinct(rows []Row, faults *Faults) ([]Row, error) {
	usual := map[string]LabelCount{}
	for _, group := range ReviewRows(rows).Alike {
		for _, l := range group[1:] {
			usual[l.Label] = group[0]
		}
	}
	if len(usual) == 0 {
		return rows, faults.Err()
	}
	var kept []Row
	told := map[string]bool{}
	for _, r := range rows {
		other, rare := usual[r.Label]
		if !rare {
			kept = append(kept, r)
			continue
		}
		if faults.Skip || !told[r.Label] {
			told[r.Label] = true
			if err := faults.Add(fmt.Errorf("%s: labels %s (%d rows) and %s differ only in case or spaces; spell them the same", r.place(), words.Quote(other.Label), other.Rows, words.Quote(r.Label))); err != nil {
				return nil, err
			}
		}
	}
	return kept, faults.Err()
}

// place is the row's position, file:line.
func (r Row) place() string { return place{path: r.File, line: r.Line}.String() }

// Warnings are the findings that leave all rows usable, a line each.
func (v Review) Warnings() []string {
	var lines []string
	if n := len(v.Contradictions); n > 0 {
		first := v.Contradictions[0]
		lines = append(lines, fmt.Sprintf("warning: correct the labels: %d texts have different ones in different rows (first: %s has %s, %s has %s)",
			n, first[0].place(), words.Quote(first[0].Label), first[1].place(), words.Quote(first[1].Label)))
	}
	for _, l := range v.Labels {
		if doubt := v.Doubts[l.Label]; doubt != "" {
			lines = append(lines, fmt.Sprintf("warning: check label %s, which %s (%d rows, first: %s)", words.Quote(l.Label), doubt, l.Rows, l.First.place()))
		}
	}
	if v.Repeated > 0 {
		lines = append(lines, fmt.Sprintf("note: rows that repeat the text and label of an earlier row: %d", v.Repeated))
	}
	return lines
}
