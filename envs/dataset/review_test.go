package dataset

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/parquet-go/parquet-go"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// labelledAs are rows with these labels; the texts are distinct.
func labelledAs(labels ...string) []Row {
	var rows []Row
	for i, label := range labels {
		rows = append(rows, Row{Text: fmt.Sprint("text ", i), Label: label, File: "f", Line: i + 1})
	}
	return rows
}

// Labels that are hardly different classes are found, and those that look alike but are not stay.
func TestReviewOfLabels(t *testing.T) {
	for _, c := range []struct {
		labels []string
		alike  string // of groups, the usual label first
		doubts map[string]string
	}{
		{labels: []string{"a", "b", "a"}},
		{labels: []string{"billing", "billing", "Billing", " billing", "other"}, alike: `["billing" "Billing" " billing"]`, doubts: map[string]string{" billing": "has spaces around it"}},
		{labels: []string{"credit card", "credit_card", "credit  card", "x"}, alike: `["credit card" "credit_card" "credit  card"]`},
		{labels: []string{"e-mail", "e-mail", "email"}, doubts: map[string]string{"email": `differs from "e-mail" only in punctuation`}},
		{labels: []string{"C", "C#", "C++"}},
		{labels: []string{"-1", "0", "1"}},
		{labels: []string{"?", "!"}},
		{labels: []string{"N/A", "x"}, doubts: map[string]string{"N/A": "looks like a missing label"}},
		{labels: []string{"None", "national"}, doubts: map[string]string{"None": "looks like a missing label"}},
		{labels: []string{"account ", "x"}, doubts: map[string]string{"account ": "has spaces around it"}},
	} {
		v := ReviewRows(labelledAs(c.labels...))
		var groups []string
		for _, group := range v.Alike {
			var names []string
			for _, l := range group {
				names = append(names, l.Label)
			}
			groups = append(groups, fmt.Sprintf("%q", names))
		}
		expect.Same(t, c.alike, strings.Join(groups, " "), "%q: alike", c.labels)
		if c.doubts == nil {
			c.doubts = map[string]string{}
		}
		expect.Equal(t, c.doubts, v.Doubts, fmt.Sprintf("%q: doubts", c.labels))
	}
}

// Rare spellings are errors, all at once with what else is wrong, or dropped.
func TestDistinct(t *testing.T) {
	rows := labelledAs("a", "a", "A", "b", "B", "b", "A ")
	for _, skip := range []bool{false, true} {
		faults := &Faults{Skip: skip}
		must.Do(t, faults.Add(fmt.Errorf("f:0: empty")))
		kept, err := Distinct(rows, faults)
		if skip {
			n, _ := faults.Skipped()
			expect.True(t, err == nil && len(kept) == 4 && n == 4, "%d rows stay, %d skipped, %v", len(kept), n, err)
			continue
		}
		for _, want := range []string{"4 rows", "f:0: empty", `f:3: labels "a" (2 rows) and "A"`, `f:5: labels "b"`, `f:7: labels "a"`} {
			expect.Error(t, err, want)
		}
	}
}

func TestContradictions(t *testing.T) {
	rows := labelledAs("a", "b", "a", "a", "b")
	rows[1].Text, rows[2].Text, rows[4].Text = rows[0].Text, rows[0].Text, rows[0].Text
	v := ReviewRows(rows)
	expect.True(t, len(v.Contradictions) == 1 && v.Contradictions[0][1].Line == 2 && v.Repeated == 1, "%+v", v)
	lines := v.Warnings()
	expect.True(t, len(lines) == 2 && strings.Contains(lines[0], `f:1 has "a", f:2 has "b"`), "%q", lines)
}

func TestOrderOfLabels(t *testing.T) {
	for _, c := range []struct{ labels, want []string }{
		{[]string{"10", "9", "-1", "2"}, []string{"-1", "2", "9", "10"}},
		{[]string{"10", "9", "x"}, []string{"10", "9", "x"}},
		{[]string{"true", "false"}, []string{"false", "true"}},
	} {
		got, err := Labels(labelledAs(c.labels...))
		expect.True(t, err == nil && slices.Equal(got, c.want), "%q, %v; want %q", got, err, c.want)
	}
}

// TestClassNames reads numbers of classes as their names, in the order of the numbers.
func TestClassNames(t *testing.T) {
	const features = `{"info":{"features":{"text":{"dtype":"string","_type":"Value"},"label":{"names":["positive","negative"],"_type":"ClassLabel"}}}}`
	type row struct {
		Text  string `parquet:"text"`
		Label int64  `parquet:"label"`
	}
	dir := t.TempDir()
	write := func(name, key string, labels ...int64) string {
		path := filepath.Join(dir, name)
		f := must.Get(os.Create(path))(t)
		defer f.Close()
		if filepath.Ext(name) == ".parquet" {
			w := parquet.NewGenericWriter[row](f, parquet.KeyValueMetadata(key, features))
			for i, label := range labels {
				must.Get(w.Write([]row{{fmt.Sprint("text ", i), label}}))(t)
			}
			must.Do(t, w.Close())
			return path
		}
		metadata := arrow.NewMetadata([]string{key}, []string{features})
		schema := arrow.NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String}, {Name: "label", Type: arrow.PrimitiveTypes.Int64}}, &metadata)
		b := array.NewRecordBuilder(memory.NewGoAllocator(), schema)
		for i, label := range labels {
			b.Field(0).(*array.StringBuilder).Append(fmt.Sprint("text ", i))
			b.Field(1).(*array.Int64Builder).Append(label)
		}
		w := ipc.NewWriter(f, ipc.WithSchema(schema))
		batch := b.NewRecordBatch()
		for at := range batch.NumRows() {
			must.Do(t, w.Write(batch.NewSlice(at, at+1)))
		}
		must.Do(t, w.Close())
		return path
	}
	for _, c := range []struct {
		name, key string
		labels    []int64
		want      []string
		wantErr   string
	}{
		{"a.parquet", featuresKey, []int64{1, 0, 1}, []string{"positive", "negative"}, ""},
		{"a.arrow", featuresKey, slices.Repeat([]int64{1, 0, 1}, 9), []string{"positive", "negative"}, ""},
		{"b.parquet", "other", []int64{1, 0, 1}, []string{"0", "1"}, ""},
		{"c.parquet", featuresKey, []int64{1, 0, -1}, nil, "c.parquet:3: column \"label\": the row has no label"},
		{"d.arrow", featuresKey, []int64{1, 0, 2}, nil, "d.arrow:3: column \"label\": 2 is the number of none of the 2 classes"},
	} {
		rows, err := Read(write(c.name, c.key, c.labels...), Columns{})
		if c.wantErr != "" {
			expect.Error(t, err, c.wantErr)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		labels, err := Labels(rows)
		expect.True(t, err == nil && slices.Equal(labels, c.want) && rows[0].Label == c.want[1], "%s: %q, %v; want %q", c.name, labels, err, c.want)
	}
}
