package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/digits"
	"github.com/rltrain/rltrain/internal/outfile"
)

// ownPair is a pair of completions by the model itself, a correct one and a wrong one. Each is sampled from the model's
// correct or wrong completions at their natural frequency, so that the first gradient of a pair loss points where RL's
// would. Pairs of only distinct completions, or sampled at a lower temperature, would also reduce the probability of steps
// that both share.
type ownPair struct {
	Prompt   string `json:"prompt"`
	Chosen   string `json:"chosen"`
	Rejected string `json:"rejected"`
}

const (
	promptsAsked = 6000 // problems whose completions become pairs for a reward model
	promptsFew   = 3000 // the subset for policies
	promptsHeld  = 300  // other problems, for held-out pairs
	answersEach  = 8
	pairsEach    = 4 // at most, per problem
)

// writeOwnPairs samples completions from the model in base, and writes the pairs to train.jsonl and validation.jsonl in
// dir/many (for a reward model) and dir/pairs (for policies). No problem is in both files.
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
	if err := writeObjects(prompts, shown); err != nil {
		return err
	}
	if _, _, err := command(ctx, e.program, "generate", "--model", base, "--input", prompts, "--output", answers, "-n", strconv.Itoa(answersEach),
		"--max-new-tokens", "40", "--threads", "1", "--seed", strconv.Itoa(seed)); err != nil {
		return err
	}
	pairs, few, err := readOwnPairs(ctx, task, answers)
	if err != nil {
		return err
	}
	held := pairs[1]
	for folder, learnt := range map[string][]any{"many": pairs[0], "pairs": pairs[0][:few]} {
		folder = filepath.Join(dir, folder)
		if err := errors.Join(os.MkdirAll(folder, 0o755), writeObjects(filepath.Join(folder, "train.jsonl"), learnt), writeObjects(filepath.Join(folder, "validation.jsonl"), held)); err != nil {
			return err
		}
	}
	return nil
}

// readOwnPairs verifies the completions and pairs those of each problem: pairs to learn from (the first few for policies)
// and held-out pairs.
func readOwnPairs(ctx context.Context, task *digits.Task, path string) (pairs [2][]any, few int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return pairs, 0, err
	}
	defer f.Close()
	prompts, right, wrong := map[int]string{}, map[int][]string{}, map[int][]string{}
	for d := json.NewDecoder(f); ; {
		var row struct {
			Prompt, Completion string
			Exercise           int
			Stop               envs.StopReason `json:"finish_reason"`
		}
		if err := d.Decode(&row); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return pairs, 0, fmt.Errorf("%s: %w", path, err)
		}
		episode, err := task.Episode(envs.Train, row.Exercise)
		if err != nil {
			return pairs, 0, err
		}
		step, err := episode.Step(ctx, envs.Action{Text: row.Completion, Stop: row.Stop})
		if err != nil {
			return pairs, 0, err
		}
		prompts[row.Exercise] = row.Prompt
		switch {
		case step.Info.Correct && row.Stop == envs.StopEnd:
			right[row.Exercise] = append(right[row.Exercise], row.Completion)
		default:
			wrong[row.Exercise] = append(wrong[row.Exercise], row.Completion)
		}
	}
	for exercise := range promptsAsked + promptsHeld {
		part := 0
		if exercise >= promptsAsked {
			part = 1
		}
		if exercise == promptsFew {
			few = len(pairs[0])
		}
		for i := range min(pairsEach, len(right[exercise]), len(wrong[exercise])) {
			pairs[part] = append(pairs[part], ownPair{prompts[exercise], right[exercise][i], wrong[exercise][i]})
		}
	}
	return pairs, few, nil
}

// writeObjects writes rows as JSON Lines.
func writeObjects(path string, rows []any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	for _, row := range rows {
		if err := encoder.Encode(row); err != nil {
			return err
		}
	}
	return outfile.Write(path, b.Bytes(), 0o644)
}
