package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
)

// arithmeticRow is a problem of arithmetic; no problem is in both files.
type arithmeticRow struct {
	Prompt string `json:"prompt"`
	Answer int    `json:"answer"`
	// Completion is a demonstration of the answer.
	Completion string `json:"completion,omitempty"`
}

const (
	arithmeticTrain = 3000
	arithmeticTest  = 300
)

// writeArithmetic writes problems to train.jsonl and test.jsonl of a folder.
func writeArithmetic(dir string, sample func(rng *rand.Rand) arithmeticRow) error {
	rng, seen := rand.New(rand.NewPCG(39, 1)), map[string]bool{}
	var rows []any
	for len(rows) < arithmeticTrain+arithmeticTest {
		if row := sample(rng); !seen[row.Prompt] {
			seen[row.Prompt] = true
			rows = append(rows, row)
		}
	}
	return errors.Join(writeObjects(filepath.Join(dir, "train.jsonl"), rows[:arithmeticTrain]), writeObjects(filepath.Join(dir, "test.jsonl"), rows[arithmeticTrain:]))
}

// sums writes sums and differences of two numbers with the given number of digits.
func sums(digits int) func(e *realExperiment, dir string) error {
	return func(_ *realExperiment, dir string) error { return writeArithmetic(dir, sampleSum(digits)) }
}

// sampleSum samples a sum or difference of two numbers with the given number of digits; no difference is negative.
func sampleSum(digits int) func(rng *rand.Rand) arithmeticRow {
	low := 1
	for range digits - 1 {
		low *= 10
	}
	return func(rng *rand.Rand) arithmeticRow {
		a, b, sign, result := low+rng.IntN(9*low), low+rng.IntN(9*low), "+", 0
		if result = a + b; rng.IntN(2) == 0 {
			a, b, sign = max(a, b), min(a, b), "-"
			result = a - b
		}
		return arithmeticRow{Prompt: fmt.Sprintf("What is %d %s %d? Answer with the number only.", a, sign, b), Answer: result}
	}
}

// wordProblems writes problems with two steps.
func wordProblems(_ *realExperiment, dir string) error {
	names := []string{"Tom", "Ana", "Mia", "Ben", "Eva", "Sam", "Leo", "Zoe"}
	things := []string{"apples", "books", "pens", "coins", "stamps", "eggs", "cards", "balls"}
	return writeArithmetic(dir, func(rng *rand.Rand) arithmeticRow {
		name, thing := names[rng.IntN(len(names))], things[rng.IntN(len(things))]
		a, b := 10+rng.IntN(40), 2+rng.IntN(20)
		c := 1 + rng.IntN(a+b-1)
		text, result := fmt.Sprintf("%s has %d %s, gets %d more and gives %d away.", name, a, thing, b, c), a+b-c
		if rng.IntN(2) == 0 {
			bags, each := 2+rng.IntN(8), 2+rng.IntN(9)
			text, result = fmt.Sprintf("%s has %d bags with %d %s each and finds %d more.", name, bags, each, thing, b), bags*each+b
		}
		return arithmeticRow{Prompt: text + fmt.Sprintf(" How many %s does %s have now? Answer with the number only.", thing, name), Answer: result}
	})
}

// source is a file or folder of the data sets.
func (e *realExperiment) source(parts ...string) (string, error) {
	if e.data == "" {
		return "", errors.New("name the folder of the data sets with --data")
	}
	return filepath.Join(append([]string{e.data}, parts...)...), nil
}

// clincDomains writes CLINC150 by domain.
func clincDomains(e *realExperiment, dir string) error { return clinc(e, dir, "domains", 1000) }

// clincIntents writes CLINC150 by intent, of which there are 150; no text is out of scope.
func clincIntents(e *realExperiment, dir string) error { return clinc(e, dir, "intents", 5000) }

// clinc writes CLINC150 by domain or intent: rows to learn from, 100 to choose by, 300 to measure on.
func clinc(e *realExperiment, dir, labels string, train int) error {
	folder, err := e.source("clinc150")
	if err != nil {
		return err
	}
	text := &textExperiment{experiment: &experiment{work: dir}, clinc: folder}
	if err := text.clincRows(); err != nil {
		return err
	}
	rows, err := dataset.Read(text.file(labels), dataset.Columns{Text: "text", Label: "label", Split: "split"})
	if err != nil {
		return err
	}
	for i := range rows {
		rows[i].Label = strings.ReplaceAll(rows[i].Label, "_", " ")
	}
	return writeLines(filepath.Join(dir, "rows.jsonl"), few(rows, train, 100, 300))
}

// mmluSubjects writes MMLU-Pro by subject, questions of at most 300 characters.
func mmluSubjects(e *realExperiment, dir string) error {
	path, err := e.source("mmlu_pro", "test.jsonl")
	if err != nil {
		return err
	}
	all, err := dataset.Read(path, dataset.Columns{Text: "question", Label: "category"})
	if err != nil {
		return err
	}
	var rows []dataset.Row
	for _, row := range all {
		if len(row.Text) <= 300 {
			rows = append(rows, row)
		}
	}
	train, val, test := dataset.Split(rows, splitSeed)
	for part, of := range map[string][]dataset.Row{dataset.Train: train, dataset.Val: val, dataset.Test: test} {
		for i := range of {
			of[i].Split = part
		}
	}
	return writeLines(filepath.Join(dir, "rows.jsonl"), few(append(append(train, val...), test...), 1000, 100, 300))
}

// few keeps a limited number of shuffled rows of each part.
func few(rows []dataset.Row, train, val, test int) (kept []dataset.Row) {
	left := map[string]int{dataset.Train: train, dataset.Val: val, dataset.Test: test}
	rng := rand.New(rand.NewPCG(splitSeed, 1))
	rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	for _, row := range rows {
		if left[row.Split]--; left[row.Split] >= 0 {
			kept = append(kept, row)
		}
	}
	return kept
}

// demoPairs writes the pairs of LLaMA-Factory's demonstration that have at most 4,000 characters.
func demoPairs(e *realExperiment, dir string) error {
	path, err := e.source("llamafactory_demo", "dpo_en_demo.json")
	if err != nil {
		return err
	}
	var all []json.RawMessage
	if err := files.LoadJSON(path, &all); err != nil {
		return err
	}
	var rows []json.RawMessage
	for _, row := range all {
		if len(row) <= 4000 {
			rows = append(rows, row)
		}
	}
	return writePairs(dir, rows, func(row json.RawMessage) ([]any, error) {
		var pair struct{ Conversations []struct{ Value string } }
		err := json.Unmarshal(row, &pair)
		if err != nil || len(pair.Conversations) != 1 {
			return nil, err
		}
		return []any{map[string]string{"prompt": pair.Conversations[0].Value}}, nil
	})
}

// orcaPairs writes the pairs of orca_dpo that have 2,500 to 4,000 characters. Settings were chosen with shorter ones.
func orcaPairs(e *realExperiment, dir string) error {
	path, err := e.source("orca_dpo", "validation.jsonl")
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var rows []json.RawMessage
	for line := range strings.Lines(string(data)) {
		if len(line) > 2500 && len(line) <= 4000 {
			rows = append(rows, json.RawMessage(line))
		}
	}
	return writePairs(dir, rows, func(row json.RawMessage) ([]any, error) {
		var pair struct {
			Input struct{ Messages json.RawMessage }
		}
		err := json.Unmarshal(row, &pair)
		return []any{map[string]any{"messages": pair.Input.Messages}}, err
	})
}

// writePairs writes pairs to the folder pairs, the last 60 held out, and 30 of the prompts of those that asked gives.
func writePairs(dir string, rows []json.RawMessage, asked func(row json.RawMessage) ([]any, error)) error {
	if len(rows) < 120 {
		return fmt.Errorf("%d pairs are short enough; at least 120 are needed", len(rows))
	}
	var parts [2][]any
	var prompts []any
	cut, pairs := len(rows)-60, filepath.Join(dir, "pairs")
	for i, row := range rows {
		if i < cut {
			parts[0] = append(parts[0], row)
			continue
		}
		parts[1] = append(parts[1], row)
		more, err := asked(row)
		if err != nil {
			return err
		}
		prompts = append(prompts, more...)
	}
	return errors.Join(os.MkdirAll(pairs, 0o755), writeObjects(filepath.Join(pairs, "train.jsonl"), parts[0]),
		writeObjects(filepath.Join(pairs, "validation.jsonl"), parts[1]), writeObjects(filepath.Join(dir, "asked.jsonl"), prompts[:min(30, len(prompts))]))
}

// schoolFiles writes GSM8K: its test set, and its training problems, of which 200 are held out to choose by.
func schoolFiles(e *realExperiment, dir string) error {
	read := func(name string) ([]string, error) {
		path, err := e.source("gsm8k", name)
		if err != nil {
			return nil, err
		}
		data, err := os.ReadFile(path)
		return strings.Split(strings.TrimSpace(string(data)), "\n"), err
	}
	train, err := read("train.jsonl")
	if err != nil {
		return err
	}
	test, err := read("test.jsonl")
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(splitSeed, 1))
	rng.Shuffle(len(train), func(i, j int) { train[i], train[j] = train[j], train[i] })
	write := func(name string, lines []string) error {
		return outfile.Write(filepath.Join(dir, name), []byte(strings.Join(lines, "\n")+"\n"), 0o644)
	}
	return errors.Join(write("held.jsonl", train[:200]), write("train.jsonl", train[200:]), write("test.jsonl", test))
}
