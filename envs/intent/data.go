package intent

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
)

// One file per subject, one object {"text": …} per line.
//
//go:embed data/*.jsonl
var files embed.FS

// Builtin returns the built-in questions, sorted by subject in the order of Labels. Row.File is the path in the package,
// Row.Line the line.
//
// dataset.Rank splits every subject 70/15/15.
func Builtin() []dataset.Row {
	var rows []dataset.Row
	for i, label := range Labels() {
		path := "data/" + strings.ReplaceAll(label, " ", "_") + ".jsonl"
		subject, err := readQuestions(path, label)
		if err != nil {
			panic(fmt.Sprintf("intent: built-in data: %v", err)) // excluded by the package's tests
		}
		dataset.Rank(subject, i)
		rows = append(rows, subject...)
	}
	return rows
}

func readQuestions(path, label string) ([]dataset.Row, error) {
	content, err := files.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var rows []dataset.Row
	for line := range bytes.Lines(content) {
		var question struct {
			Text string `json:"text"`
		}
		if err := json.Unmarshal(line, &question); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, len(rows)+1, err)
		}
		rows = append(rows, dataset.Row{Text: question.Text, Label: label, File: path, Line: len(rows) + 1})
	}
	return rows, nil
}
