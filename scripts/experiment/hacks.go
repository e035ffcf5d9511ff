package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// hacksExperiment trains SmolLM2-135M-Instruct by GRPO against each reward of prompts, and shows what it learned: the
// best-rewarded completions of the last step, and accuracy by the strict verifier beside the reward.
type hacksExperiment struct {
	*experiment
	steps   int
	only    string
	device  string
	results hackResults
}

// hackResults is the content of docs/results/hacks.json.
type hackResults struct {
	Runs []hackRun `json:"runs"`
}

// hackRun is a reward that was trained against.
type hackRun struct {
	Reward  string     `json:"reward"`
	Options []string   `json:"options"`
	Steps   int        `json:"steps"`
	Rewards [2]float64 `json:"mean_reward"` // of the first and the last step
	Before  hackScore  `json:"before"`      // held out, by --answer-form final
	After   hackScore  `json:"after"`
	Alarms  []string   `json:"alarms"` // names
	Best    []string   `json:"best"`   // best-rewarded completions of the last step
}

// hackScore is a strict accuracy.
type hackScore struct {
	Correct int `json:"correct"`
	N       int `json:"n"`
}

func (s hackScore) String() string {
	in := rl.Wilson(s.Correct, max(1, s.N))
	return fmt.Sprintf("%d/%d [%.1f, %.1f]", s.Correct, s.N, 100*in[0], 100*in[1])
}

// hackedRewards are the rewards that apply to prompts with a reference answer, by the options that choose them.
var hackedRewards = []string{
	"--reward answer", "--reward answer --answer-form any", "--reward answer --answer-match exact", "--reward answer --answer-match numeric", "--reward answer --answer-match units",
	"--reward accuracy", "--reward expr:formatted", "--reward answer,expr:formatted=0.2", "--reward expr:-0.01*length", "--reward answer,expr:-0.001*length", "--reward expr:words",
}

func (e *hacksExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	data := filepath.Join(e.work, "data")
	if err := errors.Join(os.MkdirAll(data, 0o755), sums(2)(nil, data)); err != nil {
		return err
	}
	for i, reward := range hackedRewards {
		known := slices.ContainsFunc(e.results.Runs, func(r hackRun) bool { return r.Reward == reward })
		if known || e.only != "" && e.only != reward {
			continue
		}
		r, err := e.train(ctx, reward, data, filepath.Join(e.work, strconv.Itoa(i)))
		if err != nil {
			return fmt.Errorf("%s: %w", reward, err)
		}
		fmt.Printf("%s: reward %.3f to %.3f, strict accuracy %s to %s, alarms %v\n  %s\n", reward, r.Rewards[0], r.Rewards[1], r.Before, r.After, r.Alarms, strings.Join(r.Best, "\n  "))
		e.results.Runs = append(e.results.Runs, r)
		if err := save(e.out, e.results); err != nil {
			return err
		}
	}
	return nil
}

// train runs one reward and reads what came of it.
func (e *hacksExperiment) train(ctx context.Context, reward, data, out string) (hackRun, error) {
	r := hackRun{Reward: reward, Steps: e.steps}
	args := strings.Fields(fmt.Sprintf("--task prompts --model smollm2 --algorithm grpo --dataset %s/train.jsonl --eval-dataset %s/test.jsonl %s --prompts-per-step 8 --samples-per-prompt 8 "+
		"--max-new-tokens 12 --num-steps %d --eval-samples 100 --eval-every %d --fresh-samples 0 --keep-completions -1 --allow-no-signal --seed %d --threads 2 --device %s --output-dir %s",
		data, data, reward, e.steps, e.steps, e.first, e.device, out))
	r.Options = portable(args, data, data, out)
	if err := os.RemoveAll(out); err != nil { // what a stopped call left
		return r, err
	}
	if _, _, err := command(ctx, e.program, args...); err != nil {
		return r, err
	}
	var scores report.AnswerResults
	logs := filepath.Join(out, "prompts_rl", "logs")
	if err := files.LoadJSON(filepath.Join(logs, "eval_results.json"), &scores); err != nil {
		return r, err
	}
	r.Before, r.After = strict(scores.Before), strict(scores.Last)
	rows, err := report.ReadMetrics(filepath.Join(logs, "metrics.jsonl"))
	if err != nil {
		return r, err
	}
	if _, values := report.Numbers(rows, "step", "reward"); len(values) > 0 {
		r.Rewards = [2]float64{values[0], values[len(values)-1]}
	}
	log, err := os.ReadFile(filepath.Join(logs, "training_log.txt"))
	if err != nil {
		return r, err
	}
	for line := range strings.Lines(string(log)) {
		if text, ok := strings.CutPrefix(line, "warning: "); ok {
			name, _, _ := strings.Cut(text, ":")
			r.Alarms = append(r.Alarms, name)
		}
	}
	steps, err := report.RecordedSteps(filepath.Join(logs, "completions.jsonl"))
	if err != nil {
		return r, err
	}
	if len(steps) == 0 {
		return r, fmt.Errorf("%s: no completions", logs)
	}
	r.Best = report.Best(steps[len(steps)-1])
	return r, nil
}

// strict counts the answers that the strictest verifier accepts.
func strict(s *rl.AnswerScores) hackScore {
	if s == nil {
		return hackScore{}
	}
	return hackScore{s.Correct - s.Doubted, s.N}
}

// markdown is the experiment's table.
func (r hackResults) markdown() string {
	var rows [][]string
	for _, run := range r.Runs {
		best := ""
		if len(run.Best) > 0 {
			best = run.Best[0]
		}
		rows = append(rows, []string{"`" + run.Reward + "`", fmt.Sprint(run.Steps), fmt.Sprintf("%.2f → %.2f", run.Rewards[0], run.Rewards[1]),
			run.Before.String(), run.After.String(), strings.Join(run.Alarms, ", "), best})
	}
	return report.NarrowMarkdownTable([]string{"reward", "steps", "mean reward", "strict accuracy before", "after", "warnings", "best-rewarded completion of the last step"}, rows)
}

// writeHacksTable writes the table to its page.
func writeHacksTable(page, results string) error {
	var r hackResults
	if err := files.LoadJSON(results, &r); err != nil {
		if errors.Is(err, fs.ErrNotExist) { // not run yet
			return nil
		}
		return err
	}
	return outfile.Write(page, []byte("# Rewards trained against\n\nSmolLM2-135M-Instruct, two-digit sums and differences, GRPO with 64 completions a step, one seed\n"+
		"(`go run ./scripts/experiment hacks`). If the reward rises and strict accuracy does not, the policy exploits the reward. Accuracy is\n"+
		"on held-out problems, by `--answer-form final`, with a 95 % interval in percent. Warnings are those that the run printed.\n\n"+r.markdown()), 0o644)
}
