package main

import (
	"fmt"
	"os"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/report"
)

// mutantResults is the content of docs/results/mutants.json, which scripts/mutants writes.
type mutantResults struct {
	Learning, Core *mutantSample
}

// mutantSample are the faults of one kind.
type mutantSample struct {
	Seed      uint64 `json:"seed"`
	Operators []struct {
		Name             string
		Mutants, Noticed int
	} `json:"operators"`
	Mutants, Equivalent, Noticed int
	Survivors                    []struct {
		File     string
		Line     int
		Operator string
	} `json:"survivors"`
}

// writeMutantsTable writes the table into the page.
func writeMutantsTable(page, results string) error {
	var r mutantResults
	if err := readJSON(results, &r); err != nil {
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	out, err := replaceBlock(string(text), "mutants", r.markdown())
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return outfile.Write(page, []byte(out), 0o644)
}

func (r mutantResults) markdown() string {
	var rows [][]string
	add := func(name string, n, noticed int) {
		rows = append(rows, []string{name, fmt.Sprint(n), fmt.Sprint(noticed), fmt.Sprintf("%.0f %%", 100*float64(noticed)/float64(max(1, n)))})
	}
	if s := r.Learning; s != nil {
		for _, o := range s.Operators {
			add(o.Name, o.Mutants, o.Noticed)
		}
		add(fmt.Sprintf("**learning code** (seed %d)", s.Seed), s.Mutants-s.Equivalent, s.Noticed)
	}
	if s := r.Core; s != nil {
		add("**native core**", s.Mutants-s.Equivalent, s.Noticed)
	}
	return report.MarkdownTable([]string{"fault", "tried", "noticed", "fraction"}, rows)
}
