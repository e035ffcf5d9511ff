package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// digitsExperiment is the tasks sum_digits and reverse_digits with default options: SFT on demonstrations until every kind
// of problem is sometimes solved, then RL.
type digitsExperiment struct {
	*experiment
	results digitsResults
}

// digitsResults is the content of the results file.
type digitsResults struct {
	Runs []digitsRun `json:"runs"`
}

// digitsRun is a training run according to its logs/eval_results.json: greedy held-out accuracy before RL, at the best step
// (which it selects) and after the last step, and accuracy on unseen test problems.
type digitsRun struct {
	Task       string          `json:"task"`
	Seed       int             `json:"seed"`
	CPUSeconds float64         `json:"cpu_seconds"`
	WarmUp     int             `json:"warm_up_updates"`
	Before     rl.AnswerScores `json:"before"`
	After      rl.AnswerScores `json:"after"`
	Last       rl.AnswerScores `json:"last"`
	Fresh      rl.AnswerScores `json:"fresh"`
}

var digitsTasks = []string{"sum_digits", "reverse_digits"}

func (e *digitsExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, seed := range e.eachSeed() {
		for _, task := range digitsTasks {
			if slices.ContainsFunc(e.results.Runs, func(r digitsRun) bool { return r.Task == task && r.Seed == seed }) {
				continue
			}
			r, err := e.train(ctx, task, seed)
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", task, seed, err)
			}
			fmt.Printf("%-14s seed %d  before %.3f  after %.3f  last %.3f  fresh %.3f  %5.0f s of processor time\n",
				task, seed, r.Before.Accuracy, r.After.Accuracy, r.Last.Accuracy, r.Fresh.Accuracy, r.CPUSeconds)
			e.results.Runs = append(e.results.Runs, r)
			if err := save(e.out, e.results); err != nil {
				return err
			}
		}
	}
	return nil
}

// train runs rltrain once.
func (e *digitsExperiment) train(ctx context.Context, task string, seed int) (digitsRun, error) {
	r := digitsRun{Task: task, Seed: seed}
	dir := filepath.Join(e.work, task+"-"+strconv.Itoa(seed))
	var err error
	if r.CPUSeconds, _, err = command(ctx, e.program, "--task", task, "--seed", strconv.Itoa(seed), "--output-dir", dir); err != nil {
		return r, err
	}
	var scores struct{ Before, After, Last, Fresh rl.AnswerScores }
	if err := readJSON(filepath.Join(dir, task+"_rl", "logs", "eval_results.json"), &scores); err != nil {
		return r, err
	}
	r.Before, r.After, r.Last, r.Fresh = scores.Before, scores.After, scores.Last, scores.Fresh
	rows, err := report.ReadMetrics(filepath.Join(dir, task+"_supervised", "logs", "metrics.jsonl"))
	r.WarmUp = updatesIn(rows)
	return r, err
}

// markdown is the experiment's table.
func (r digitsResults) markdown() string {
	var rows [][]string
	percent := func(s rl.AnswerScores) string { return fmt.Sprintf("%.1f", 100*s.Accuracy) }
	for _, task := range digitsTasks {
		var fresh, cpu []float64
		for _, run := range r.Runs {
			if run.Task != task {
				continue
			}
			f := run.Fresh
			rows = append(rows, []string{task, fmt.Sprint(run.Seed), fmt.Sprint(run.WarmUp), percent(run.Before), percent(run.After), percent(run.Last),
				fmt.Sprintf("%s [%.1f, %.1f]", percent(f), 100*f.Interval[0], 100*f.Interval[1]), fmt.Sprintf("%.0f", run.CPUSeconds)})
			fresh, cpu = append(fresh, 100*f.Accuracy), append(cpu, run.CPUSeconds)
		}
		if len(fresh) > 0 {
			rows = append(rows, []string{"**" + task + "**", "all", "", "", "", "", spread(fresh, 1) + ", lowest " + strings.TrimSpace(fmt.Sprintf("%.1f", slices.Min(fresh))), spread(cpu, 0)})
		}
	}
	text := "Greedy accuracy, %. Before, best and last: on the held-out problems by which a run picks its best step. Unseen: on problems used for nothing else, with a " +
		"95 % interval.\n\n"
	return text + report.MarkdownTable([]string{"task", "seed", "SFT updates", "before RL", "best", "last", "unseen", "CPU s"}, rows)
}
