package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/files"
)

func (e *textExperiment) file(name string) string { return filepath.Join(e.work, name+".jsonl") }

// rows writes the rows of a set of texts and returns their file, or "" if they are built in or have no source.
func (e *textExperiment) rows(data string) (string, error) {
	switch data {
	case domains, intents:
		if e.clinc == "" {
			return "", nil
		}
		name := map[string]string{domains: "domains", intents: "intents"}[data]
		return e.file(name), e.clincRows()
	case categories:
		if e.mmlu == "" {
			return "", nil
		}
		rows, err := dataset.Read(e.mmlu, dataset.Columns{Text: "question", Label: "category"})
		if err != nil {
			return "", err
		}
		train, val, test := dataset.Split(rows, splitSeed)
		return e.file("categories"), writeRows(e.file("categories"), slices.Concat(train, val, test))
	case letters:
		return e.file("letters"), writeRows(e.file("letters"), letterRows())
	}
	return "", nil
}

// Rows of each intent that the domains use: ten for training, two for validation, ten for the test.
const (
	domainTrain = 10
	domainVal   = 2
	domainTest  = 10
)

// clincRows writes CLINC150 in its original splits: its intents, the same with out-of-scope texts, and a tenth by domain.
func (e *textExperiment) clincRows() error {
	var parts map[string][][2]string
	if err := files.LoadJSON(filepath.Join(e.clinc, "data_full.json"), &parts); err != nil {
		return err
	}
	var byDomain map[string][]string
	if err := files.LoadJSON(filepath.Join(e.clinc, "domains.json"), &byDomain); err != nil {
		return err
	}
	domain := map[string]string{}
	for name, all := range byDomain {
		for _, intent := range all {
			domain[intent] = name
		}
	}
	var inScope, all, tenth []dataset.Row
	for _, part := range []struct {
		split string
		most  int
	}{{dataset.Train, domainTrain}, {dataset.Val, domainVal}, {dataset.Test, domainTest}} {
		taken := map[string]int{}
		for _, row := range parts[part.split] {
			r := dataset.Row{Text: row[0], Label: row[1], Split: part.split}
			inScope = append(inScope, r)
			if taken[r.Label]++; taken[r.Label] <= part.most {
				tenth = append(tenth, dataset.Row{Text: r.Text, Label: domain[r.Label], Split: r.Split})
			}
		}
		if part.split == dataset.Train {
			continue // a classifier that rejects never sees out-of-scope texts in training
		}
		for _, row := range parts["oos_"+part.split] {
			all = append(all, dataset.Row{Text: row[0], Label: row[1], Split: part.split})
		}
	}
	for _, r := range inScope {
		if r.Split != dataset.Train {
			all = append(all, r)
		}
	}
	for name, rows := range map[string][]dataset.Row{"intents": inScope, "intents_and_others": all, "domains": tenth} {
		if err := writeRows(e.file(name), rows); err != nil {
			return err
		}
	}
	return nil
}

// letterRows are made-up words; the label is the part of the alphabet that the third letter is in.
func letterRows() []dataset.Row {
	rng := rand.New(rand.NewPCG(17, 17))
	var rows []dataset.Row
	seen := map[string]bool{}
	for _, part := range []struct {
		split string
		n     int
	}{{dataset.Train, 3000}, {dataset.Val, 500}, {dataset.Test, 500}} {
		for range part.n {
			word := make([]byte, 6)
			for seen[string(word)] || word[0] == 0 {
				for i := range word {
					word[i] = 'a' + byte(rng.IntN(26))
				}
			}
			seen[string(word)] = true
			rows = append(rows, dataset.Row{Text: string(word), Label: []string{"early", "middle", "late"}[int(word[2]-'a')/9], Split: part.split})
		}
	}
	return rows
}

// writeRows writes rows as JSON lines, unless the file exists.
func writeRows(path string, rows []dataset.Row) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	return writeLines(path, rows)
}
