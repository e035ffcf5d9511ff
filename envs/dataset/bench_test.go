package dataset

import (
	"fmt"
	"strings"
	"testing"
)

// Rows as in question data sets: 120 bytes of text, and a column that training does not read.
func BenchmarkRead(b *testing.B) {
	const n = 20_000
	question := strings.Repeat("why do long questions ", 6)
	var csv, lines, array strings.Builder
	csv.WriteString("text,options,label\n")
	array.WriteString("[")
	for i := range n {
		object := fmt.Sprintf(`{"text": "%s%d?", "options": ["one", "two", "three", "four"], "label": "class %d"}`, question, i, i%14)
		fmt.Fprintf(&csv, "\"%s%d?\",\"one, two, three, four\",class %d\n", question, i, i%14)
		lines.WriteString(object + "\n")
		if i > 0 {
			array.WriteString(",\n")
		}
		array.WriteString(object)
	}
	array.WriteString("]")
	for name, content := range map[string]string{"a.csv": csv.String(), "a.jsonl": lines.String(), "a.json": array.String()} {
		b.Run(name[2:], func(b *testing.B) {
			b.SetBytes(int64(len(content)))
			b.ReportAllocs()
			for b.Loop() {
				rows, err := readFrom(strings.NewReader(content), name, Columns{})
				if err != nil || len(rows) != n {
					b.Fatal(len(rows), err)
				}
			}
		})
	}
}
