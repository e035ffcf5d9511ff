package text

import (
	_ "embed"
	"strings"

	"rltrain/envs/dataset"
)

//go:embed data/positive.txt
var positive string

//go:embed data/negative.txt
var negative string

// Builtin returns the built-in sentences about things and people, 155 that praise and 155 that complain. Row.Line is the
// line in the file of the label. They carry no split.
func Builtin() []dataset.Row {
	var rows []dataset.Row
	for _, part := range []struct{ label, file, text string }{
		{"negative", "data/negative.txt", negative}, {"positive", "data/positive.txt", positive},
	} {
		for i, line := range strings.Split(strings.TrimSpace(part.text), "\n") {
			rows = append(rows, dataset.Row{Text: line, Label: part.label, File: part.file, Line: i + 1})
		}
	}
	return rows
}
