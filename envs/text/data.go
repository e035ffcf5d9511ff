package text

import (
	_ "embed"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
)

//go:embed data/positive.txt
var positive string

//go:embed data/negative.txt
var negative string

// Builtin returns the built-in sentences about things and people, 155 positive and 155 negative. Row.Line is the line in
// the label's file. dataset.Rank splits each label's sentences.
func Builtin() []dataset.Row {
	var rows []dataset.Row
	for class, part := range []struct{ label, file, text string }{
		{"negative", "data/negative.txt", negative}, {"positive", "data/positive.txt", positive},
	} {
		from := len(rows)
		for i, line := range strings.Split(strings.TrimSpace(part.text), "\n") {
			rows = append(rows, dataset.Row{Text: line, Label: part.label, File: part.file, Line: i + 1})
		}
		dataset.Rank(rows[from:], class)
	}
	return rows
}
