package intent

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"rltrain/envs/dataset"
)

// One file a subject, one object {"text": …} a line.
//
//go:embed data/*.jsonl
var files embed.FS

// Builtin returns the built-in questions, subject by subject in the order of
// Labels, each subject in the order of its file. Row.File is the file's path in
// the package and Row.Line the question's line.
//
// Every subject is divided 70/15/15 as dataset.Counts rounds. The questions of
// a subject are ranked by the SHA-256 of their text; the first are test
// questions, the next validation. So the division depends on no seed and no
// order, and a question added later moves at most two others.
func Builtin() []dataset.Row {
	var rows []dataset.Row
	for i, label := range Labels() {
		path := "data/" + strings.ReplaceAll(label, " ", "_") + ".jsonl"
		subject, err := readQuestions(path, label)
		if err != nil {
			panic(fmt.Sprintf("intent: built-in data: %v", err)) // excluded by the package's tests
		}
		divide(subject, i)
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

// divide fills in the Split of one subject's rows.
func divide(rows []dataset.Row, class int) {
	rank := make([]int, len(rows))
	sums := make([][sha256.Size]byte, len(rows))
	for i, r := range rows {
		rank[i] = i
		sums[i] = sha256.Sum256([]byte(r.Text))
	}
	slices.SortFunc(rank, func(i, j int) int { return bytes.Compare(sums[i][:], sums[j][:]) })
	_, val, test := dataset.Counts(len(rows), class)
	for place, i := range rank {
		switch {
		case place < test:
			rows[i].Split = dataset.Test
		case place < test+val:
			rows[i].Split = dataset.Val
		default:
			rows[i].Split = dataset.Train
		}
	}
}
