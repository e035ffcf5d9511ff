package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"rltrain/envs"
	"rltrain/envs/digits"
)

// ownPair is a row of preferences: of two answers that the model itself wrote one with every step right, and one whose
// sum is wrong. What comes to the right sum by wrong steps is neither: a model that learns to prefer such answers, which
// are luck, gets worse at the steps.
type ownPair struct {
	Prompt   string `json:"prompt"`
	Chosen   string `json:"chosen"`
	Rejected string `json:"rejected"`
}

const (
	promptsAsked = 1000 // exercises whose answers become pairs to learn from
	promptsHeld  = 250  // others, whose pairs are held out
	answersEach  = 8
	pairsEach    = 3 // of an exercise at most
)

// writeOwnPairs has the model in base answer exercises, and writes the pairs to train.jsonl and validation.jsonl in the
// folder pairs of dir. No exercise is in both.
func (e *preferenceExperiment) writeOwnPairs(ctx context.Context, dir, base string, seed int) error {
	task, err := digits.New(digits.Sum, uint64(1000+seed), digits.Options{Count: 2, Max: 99, Short: true})
	if err != nil {
		return err
	}
	prompts, answers := filepath.Join(dir, "prompts.jsonl"), filepath.Join(dir, "answers.jsonl")
	var shown []any
	for i := range promptsAsked + promptsHeld {
		episode, err := task.Episode(envs.Train, i)
		if err != nil {
			return err
		}
		first, err := episode.Reset(ctx)
		if err != nil {
			return err
		}
		shown = append(shown, map[string]any{"prompt": first.Text, "exercise": i})
	}
	if err := writeLines(prompts, shown); err != nil {
		return err
	}
	if _, _, err := command(ctx, e.program, "generate", "--model", base, "--input", prompts, "--output", answers, "-n", strconv.Itoa(answersEach),
		"--max-new-tokens", "40", "--temperature", "0.5", "--threads", "1", "--seed", strconv.Itoa(seed)); err != nil {
		return err
	}
	pairs, err := readOwnPairs(ctx, task, answers)
	if err != nil {
		return err
	}
	folder := filepath.Join(dir, "pairs")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return errors.Join(writeLines(filepath.Join(folder, "train.jsonl"), pairs[0]), writeLines(filepath.Join(folder, "validation.jsonl"), pairs[1]))
}

// readOwnPairs judges the answers, and pairs those to each exercise: to learn from, and held out.
func readOwnPairs(ctx context.Context, task *digits.Task, path string) (pairs [2][]any, err error) {
	f, err := os.Open(path)
	if err != nil {
		return pairs, err
	}
	defer f.Close()
	prompts, right, wrong := map[int]string{}, map[int]string{}, map[int][]string{}
	for d := json.NewDecoder(f); ; {
		var row struct {
			Prompt, Completion string
			Exercise           int
			Stop               envs.StopReason `json:"finish_reason"`
		}
		if err := d.Decode(&row); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return pairs, fmt.Errorf("%s: %w", path, err)
		}
		episode, err := task.Episode(envs.Train, row.Exercise)
		if err != nil {
			return pairs, err
		}
		step, err := episode.Step(ctx, envs.Action{Text: row.Completion, Stop: row.Stop})
		if err != nil {
			return pairs, err
		}
		prompts[row.Exercise] = row.Prompt
		switch {
		case row.Completion == episode.(envs.Worked).Solution() && row.Stop == envs.StopEnd:
			right[row.Exercise] = row.Completion
		case !step.Info.Correct && !slices.Contains(wrong[row.Exercise], row.Completion):
			wrong[row.Exercise] = append(wrong[row.Exercise], row.Completion)
		}
	}
	for exercise := range promptsAsked + promptsHeld {
		part := 0
		if exercise >= promptsAsked {
			part = 1
		}
		if right[exercise] == "" {
			continue
		}
		for _, text := range wrong[exercise][:min(pairsEach, len(wrong[exercise]))] {
			pairs[part] = append(pairs[part], ownPair{prompts[exercise], right[exercise], text})
		}
	}
	return pairs, nil
}

// writeLines writes rows as JSON Lines.
func writeLines(path string, rows []any) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	encoder := json.NewEncoder(w)
	for _, row := range rows {
		if err := encoder.Encode(row); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return errors.Join(w.Flush(), f.Close())
}
