package dataset

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// rowsOf returns n rows per label, interleaved.
func rowsOf(counts map[string]int) []Row {
	var rows []Row
	for i := 0; ; i++ {
		before := len(rows)
		for _, label := range []string{"a", "b", "c", "d", "e"} {
			if i < counts[label] {
				rows = append(rows, Row{Text: fmt.Sprint(label, i), Label: label, File: "f.csv", Line: len(rows) + 2})
			}
		}
		if len(rows) == before {
			return rows
		}
	}
}

func count(rows []Row) map[string]int {
	n := map[string]int{}
	for _, r := range rows {
		n[r.Label]++
	}
	return n
}

func TestLabels(t *testing.T) {
	expect.Equal(t, []string{"a", "c", "e"}, must.Get(Labels(rowsOf(map[string]int{"c": 2, "a": 1, "e": 3})))(t))
	for want, rows := range map[string][]Row{
		`no rows; training needs rows with at least two labels`:                nil,
		`f.csv: all 3 rows have label "b"; training needs at least two labels`: rowsOf(map[string]int{"b": 3}),
	} {
		_, err := Labels(rows)
		expect.True(t, text(err) == want, "error %q, want %q", text(err), want)
	}
}

func TestLabelIndex(t *testing.T) {
	rows := []Row{{Label: "law", File: "f.csv", Line: 2}, {Label: "math", File: "f.csv", Line: 3}, {Label: "law", File: "f.csv", Line: 9}}
	expect.Equal(t, []int{1, 2, 1}, must.Get(LabelIndex(rows, []string{"health", "law", "math"}))(t))
	_, err := LabelIndex(rows, []string{"law", "maths"})
	expect.Same(t, `f.csv:3: label "math" is not one of law, maths; did you mean "maths"?`, text(err), "error")
}

func TestBalance(t *testing.T) {
	rows := rowsOf(map[string]int{"a": 5, "b": 1, "c": 3})
	for _, tt := range []struct {
		max  int
		want []string
	}{
		{100, []string{"a0", "b0", "c0", "a1", "c1", "a2", "c2", "a3", "a4"}},
		{8, []string{"a0", "b0", "c0", "a1", "c1"}},
		{3, []string{"a0", "b0", "c0"}},
		{2, nil},
	} {
		var got []string
		for _, r := range Balance(rows, tt.max) {
			got = append(got, r.Text)
		}
		expect.Equal(t, tt.want, got, fmt.Sprintf("max %d", tt.max))
	}
	expect.Same(t, 0, len(Balance(nil, 10)), "balanced rows of none")
}

func TestCounts(t *testing.T) {
	for _, tt := range []struct{ n, class, train, val, test int }{
		{0, 0, 0, 0, 0},
		{1, 0, 1, 0, 0},
		{2, 0, 1, 0, 1},
		{3, 0, 1, 1, 1},
		{5, 0, 3, 1, 1},
		{10, 0, 7, 1, 2},
		{10, 1, 7, 2, 1},
		{100, 1, 70, 15, 15},
	} {
		train, val, test := Counts(tt.n, tt.class)
		expect.True(t, train == tt.train && val == tt.val && test == tt.test, "Counts(%d, %d) = %d, %d, %d, want %d, %d, %d", tt.n, tt.class, train, val, test, tt.train, tt.val, tt.test)
	}
}

func TestSplit(t *testing.T) {
	rows := rowsOf(map[string]int{"a": 100, "b": 3, "c": 2, "d": 1, "e": 20})
	train, val, test := Split(rows, 7)
	for _, part := range []struct {
		name string
		rows []Row
		want map[string]int
	}{
		{Train, train, map[string]int{"a": 70, "b": 1, "c": 1, "d": 1, "e": 14}},
		{Val, val, map[string]int{"a": 15, "b": 1, "e": 3}},
		{Test, test, map[string]int{"a": 15, "b": 1, "c": 1, "e": 3}},
	} {
		expect.Equal(t, part.want, count(part.rows), part.name)
		for _, r := range part.rows {
			expect.Same(t, part.name, r.Split, "row %s of %s has Split", r.Text, part.name)
		}
		expect.True(t, slices.IsSortedFunc(part.rows, func(x, y Row) int { return x.Line - y.Line }), "%s: the order of the file is lost", part.name)
	}
	seen := map[string]bool{}
	for _, r := range slices.Concat(train, val, test) {
		expect.True(t, !seen[r.Text], "%s is in two parts", r.Text)
		seen[r.Text] = true
	}
	expect.Same(t, len(rows), len(seen), "%d rows in the parts, want %d", len(seen), len(rows))
	expect.Same(t, "", rows[0].Split, "Split changed its argument")

	again, _, _ := Split(rows, 7)
	expect.Equal(t, train, again, "the same seed gives another split")
	other, _, _ := Split(rows, 8)
	expect.True(t, !cmp.Equal(train, other), "another seed gives the same split")
}

// A change here would silently move rows between the splits of every data set.
func TestSplitPinned(t *testing.T) {
	_, val, test := Split(rowsOf(map[string]int{"a": 10, "b": 10}), 42)
	var got []string
	for _, r := range slices.Concat(val, test) {
		got = append(got, r.Split+" "+r.Text)
	}
	expect.Equal(t, []string{"val b2", "val a5", "val b7", "test a2", "test b8", "test a9"}, got)
}

func TestSplitKeepsEqualTextsTogether(t *testing.T) {
	rows := rowsOf(map[string]int{"a": 20, "b": 20, "c": 20})
	for i := range 30 { // within a label and across labels
		rows = append(rows, Row{Text: rows[2*i].Text, Label: rows[i].Label})
	}
	train, val, test := Split(rows, 3)
	expect.Same(t, len(rows), len(train)+len(val)+len(test), "rows in the parts")
	part := map[string]string{}
	for _, r := range slices.Concat(train, val, test) {
		other, ok := part[r.Text]
		expect.True(t, !ok || other == r.Split, "%s is in %s and in %s", r.Text, other, r.Split)
		part[r.Text] = r.Split
	}
	n := map[string]int{}
	for _, p := range part {
		n[p]++
	}
	expect.Equal(t, map[string]int{Train: 42, Val: 9, Test: 9}, n, "distinct texts")
}

func TestSplitOfFile(t *testing.T) {
	rows := []Row{{Text: "q", Split: Test}, {Text: "r", Split: Train}, {Text: "s", Split: Train}}
	train, val, test := Split(rows, 1)
	expect.Equal(t, [][]Row{{rows[1], rows[2]}, nil, {rows[0]}}, [][]Row{train, val, test})
}

func TestSetApart(t *testing.T) {
	row := func(text, label string) Row { return Row{Text: text, Label: label} }
	rows := []Row{row("a1", "a"), row("b1", "b"), row("a2", "a"), row("a2", "b"), row("a1", "a"), row("a3", "a"), row("b2", "b"), row("a4", "a")}
	rest, apart := SetApart(rows, 0.5)
	wantRest := []Row{row("a1", "a"), row("b1", "b"), row("a1", "a"), row("a3", "a")}
	wantApart := []Row{row("a2", "a"), row("a2", "b"), row("b2", "b"), row("a4", "a")}
	expect.Equal(t, wantRest, rest, "rest")
	expect.Equal(t, wantApart, apart, "apart")
}

func TestBalanceKeepsEverySplit(t *testing.T) {
	var rows []Row
	for _, split := range []struct {
		name string
		n    int
	}{{Train, 60}, {Val, 20}, {Test, 20}} {
		for i := range split.n {
			rows = append(rows, Row{Text: split.name + strconv.Itoa(i), Label: string(rune('a' + i%2)), Split: split.name})
		}
	}
	train, val, test := Split(Balance(rows, 50), 1)
	expect.True(t, len(train) == 30 && len(val) == 10 && len(test) == 10, "50 of 60, 20 and 20 rows are %d, %d and %d, want 30, 10 and 10", len(train), len(val), len(test))
	train, val, test = Split(Balance(rows, 9), 1)
	expect.True(t, len(train) == 4 && len(val) == 2 && len(test) == 2, "9 of 60, 20 and 20 rows are %d, %d and %d, want 4, 2 and 2", len(train), len(val), len(test))
	few := Balance(rows, 3)
	expect.True(t, len(few) <= 3, "%d rows, want 3 at most", len(few))
}

func TestOverlap(t *testing.T) {
	train := []Row{{Text: "x", Label: "a"}, {Text: "y", Label: "b"}}
	texts, labels := Overlap(train, []Row{{Text: "y", Label: "b"}, {Text: "z", Label: "c"}, {Text: "w", Label: "c"}})
	expect.Equal(t, []Row{{Text: "y", Label: "b"}}, texts, "texts")
	expect.Equal(t, []string{"c"}, labels, "labels")
}

func TestRankIsStable(t *testing.T) {
	var rows []Row
	for i := range 100 {
		rows = append(rows, Row{Text: fmt.Sprintf("question %d", i)})
	}
	splits := func(rows []Row) map[string]string {
		Rank(rows, 0)
		m := map[string]string{}
		for _, r := range rows {
			m[r.Text] = r.Split
		}
		return m
	}
	want := splits(rows)
	slices.Reverse(rows)
	expect.Equal(t, want, splits(rows), "the order decides")
	for i := range 50 {
		added := slices.Clone(rows)
		added = append(added, Row{Text: fmt.Sprintf("added %d", i)})
		moved := 0
		for text, split := range splits(added) {
			if old, ok := want[text]; ok && old != split {
				moved++
			}
		}
		expect.True(t, moved <= 2, "one more question moves %d others", moved)
	}
}

func TestSpread(t *testing.T) {
	records := func(n int, end error) iter.Seq2[Record, error] {
		return func(yield func(Record, error) bool) {
			for i := range n {
				if !yield(Record{Line: i}, nil) {
					return
				}
			}
			if end != nil {
				yield(Record{}, end)
			}
		}
	}
	for _, c := range []struct {
		weight float64
		rows   int
		want   string
	}{
		{1, 4, "0123"}, {2, 3, "001122"}, {0.5, 6, "135"}, {1.5, 4, "011233"}, {0.1, 20, "919"}, {0.3, 10, "369"}, {0.01, 9, ""},
	} {
		got := ""
		for r, err := range (Weighted{"a", c.weight}).Spread(records(c.rows, nil)) {
			must.Do(t, err)
			got += fmt.Sprint(r.Line)
		}
		expect.Same(t, c.want, got, "weight %v", c.weight)
	}
	n := 0
	for range (Weighted{"a", 0.58}).Spread(records(50, nil)) { // 50 · 0.58 is less than 29 in floating point
		n++
	}
	expect.Same(t, 29, n, "rows of 50")
	broken := errors.New("broken")
	var last error
	n = 0
	for _, last = range (Weighted{"a", 0.5}).Spread(records(5, broken)) {
		n++
	}
	expect.True(t, n == 3 && errors.Is(last, broken), "%d records, then %v", n, last)
	for range (Weighted{"a", 3}).Spread(records(5, nil)) {
		break // as a loop that has enough
	}
}

func FuzzMixture(f *testing.F) {
	for _, seed := range []string{"a=1", "a=b=0.5", "=1", "a", "a=0", "a=NaN", "a=1e9", "hub/name@rev=2", "a=-1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		sets, err := Mixture{Mix: []string{text}}.Sets()
		expect.True(t, err != nil || len(sets) == 1 && sets[0].Name != "" && sets[0].Weight > 0, "%q is read as %+v", text, sets)
	})
}

// idsOf are the records' column "id".
func idsOf(t *testing.T, records iter.Seq2[Record, error]) string {
	t.Helper()
	var ids []string
	for r, err := range records {
		if err != nil {
			return "error: " + err.Error()
		}
		id, _ := r.Fields.Get("id")
		ids = append(ids, id.(string))
	}
	return strings.Join(ids, " ")
}

func TestDivide(t *testing.T) {
	const column = `{"id":"a","split":"train"}
{"id":"b","split":"validation"}
{"id":"c","split":"test"}
{"id":"d","split":"train"}
{"id":"e","split":"val"}
`
	for _, tt := range []struct {
		name              string
		files             map[string]string
		config            string
		train, validation string
		given             bool
	}{
		{"column", map[string]string{"rows.jsonl": column}, "", "a d", "b e", true},
		{"files win over the column", map[string]string{"train.jsonl": column, "valid.jsonl": `{"id":"x"}`}, "", "a b c d e", "x", true},
		{"files called val", map[string]string{"data/train-00000-of-00001.jsonl": column, "data/val-00000-of-00001.jsonl": `{"id":"x"}`}, "", "a b c d e", "x", true},
		{"README's dev", map[string]string{"README.md": "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: a.jsonl\n  - split: dev\n    path: b.jsonl\n---\n", "a.jsonl": `{"id":"x"}`, "b.jsonl": `{"id":"y"}`}, "", "x", "y", true},
		{"none", map[string]string{"rows.jsonl": `{"id":"a"}` + "\n" + `{"id":"b"}`}, "", "a b", "", false},
		{"another meaning", map[string]string{"rows.jsonl": `{"id":"a","split":"left"}` + "\n" + `{"id":"b","split":"train"}`}, "", "a b", "", false},
		{"some rows only", map[string]string{"rows.jsonl": `{"id":"a","split":"train"}` + "\n" + `{"id":"b"}`}, "",
			`error: DIR/rows.jsonl:2: column "split": got null, want train, val, validation or test`, `error: DIR/rows.jsonl:2: column "split": got null, want train, val, validation or test`, true},
		{"unknown split", map[string]string{"rows.jsonl": `{"id":"a","split":"train"}` + "\n" + `{"id":"b","split":"x"}`}, "",
			`error: DIR/rows.jsonl:2: column "split": unknown split "x"; want train, val, validation or test`, `error: DIR/rows.jsonl:2: column "split": unknown split "x"; want train, val, validation or test`, true},
		{"test only", map[string]string{"train.jsonl": `{"id":"a"}`, "test.jsonl": `{"id":"b"}`}, "", "a", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := must.Folder(t, tt.files)
			parts := must.Get(Find("", dir))(t)
			d := must.Get(Reader{}.Divide(parts))(t)
			in := func(ids string) string { return strings.ReplaceAll(ids, dir, "DIR") }
			got := []string{in(idsOf(t, d.Train)), in(idsOf(t, d.Validation))}
			diff := cmp.Diff([]string{tt.train, tt.validation}, got)
			expect.True(t, diff == "" && d.Given == tt.given, "given is %t: %s", d.Given, diff)
		})
	}
	expect.Failure((Reader{}).Divide([]Part{{Test, nil}}))(t, "no split")
}
