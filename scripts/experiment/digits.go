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

	"rltrain/rl"
	"rltrain/rl/report"
)

// digitsExperiment is the tasks sum_digits and reverse_digits on the tiny model: worked solutions until half of
// the held-out exercises are right, then reinforcement learning, beside as many updates on further solutions.
type digitsExperiment struct {
	program, work, out string
	seeds              int
	results            digitsResults
}

// digitsResults is the content of the results file.
type digitsResults struct {
	Runs []digitsRun `json:"runs"`
}

// digitsRun is one training run, judged on held-out exercises with greedy answers.
type digitsRun struct {
	Setting    string          `json:"setting"`
	Seed       int             `json:"seed"`
	Options    []string        `json:"options"`
	CPUSeconds float64         `json:"cpu_seconds"`
	Updates    int             `json:"updates"`
	Test       rl.AnswerScores `json:"test"`
}

// A digitsStart is a policy that arms go on from, and the settings of its task.
type digitsStart struct {
	name    string
	options []string
	arms    []digitsArm
}

type digitsArm struct {
	name    string
	rl      bool
	options []string
}

// rlUpdates and rlRows are the updates of an RL arm and the answers in each, which the continued arms have too.
const (
	rlUpdates = 30
	rlRows    = 256
)

// further are the arms that go on with worked solutions, at the warm-up's rate and at a quarter of it.
var further = []digitsArm{
	{"supervised continued, lr 2e-3", false, []string{"--learning-rate", "2e-3"}},
	{"supervised continued, lr 5e-4", false, []string{"--learning-rate", "5e-4"}},
}

var digitsStarts = []digitsStart{
	{"sum_digits", []string{"--task", "sum_digits"}, slices.Concat([]digitsArm{{"reinforce", true, nil}}, further)},
	{"reverse_digits", []string{"--task", "reverse_digits"}, slices.Concat([]digitsArm{{"reinforce", true, nil}}, further)},
	{"sum_digits, two integers below 100", []string{"--task", "sum_digits", "--digits-count", "2", "--digits-max", "99"}, []digitsArm{
		{"rloo", true, []string{"--algorithm", "rloo"}},
		{"grpo", true, []string{"--algorithm", "grpo"}},
		{"ppo", true, []string{"--algorithm", "ppo"}},
	}},
}

func (e *digitsExperiment) run(ctx context.Context) error {
	if err := rl.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for seed := range e.seeds {
		for _, start := range digitsStarts {
			if err := e.arms(ctx, start, seed); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *digitsExperiment) arms(ctx context.Context, start digitsStart, seed int) error {
	task := start.options[1]
	warm := start.name + ": warm-up"
	err := e.train(ctx, warm, seed, slices.Concat(start.options, []string{"--mode", "supervised"}), task+"_supervised")
	if err != nil {
		return err
	}
	from := slices.Concat(start.options, []string{"--pretrained-model", filepath.Join(e.folder(warm, seed), task+"_supervised")})
	for _, arm := range start.arms {
		options, stage := slices.Concat(from, []string{"--mode", "rl_only", "--num-steps", strconv.Itoa(rlUpdates)}), task+"_rl"
		if !arm.rl {
			// The check that ends a warm-up comes after the last update.
			options, stage = slices.Concat(from, []string{"--mode", "supervised", "--max-steps", strconv.Itoa(rlUpdates), "--batch-size", strconv.Itoa(rlRows),
				"--warmup-check-every", strconv.Itoa(rlUpdates)}), task+"_supervised"
		}
		if err := e.train(ctx, start.name+": "+arm.name, seed, slices.Concat(options, arm.options), stage); err != nil {
			return err
		}
	}
	return nil
}

func (e *digitsExperiment) folder(setting string, seed int) string {
	return filepath.Join(e.work, strings.NewReplacer(" ", "_", ",", "", ":", "").Replace(setting)+"-"+strconv.Itoa(seed))
}

// train runs the program for one (setting, seed), unless the results have it already.
func (e *digitsExperiment) train(ctx context.Context, setting string, seed int, options []string, stage string) error {
	if slices.ContainsFunc(e.results.Runs, func(r digitsRun) bool { return r.Setting == setting && r.Seed == seed }) {
		return nil
	}
	dir := e.folder(setting, seed)
	options = slices.Concat(options, []string{"--seed", strconv.Itoa(seed)})
	cpu, _, err := command(ctx, e.program, slices.Concat(options, []string{"--output-dir", dir})...)
	if err != nil {
		return fmt.Errorf("%s, seed %d: %w", setting, seed, err)
	}
	r := digitsRun{Setting: setting, Seed: seed, Options: portable(options, e.work), CPUSeconds: cpu}
	logs := filepath.Join(dir, stage, "logs")
	var scores struct {
		rl.AnswerScores
		After *rl.AnswerScores `json:"after"` // of an RL stage
	}
	if err := rl.LoadJSON(filepath.Join(logs, "eval_results.json"), &scores); err != nil {
		return err
	}
	r.Test = scores.AnswerScores
	if scores.After != nil {
		r.Test = *scores.After
	}
	rows, err := report.ReadMetrics(filepath.Join(logs, "metrics.jsonl"))
	if err != nil {
		return err
	}
	r.Updates = updatesIn(rows)
	fmt.Printf("%-64s seed %d  accuracy %.3f  format %.3f  %4d updates  %5.0f s of processor time\n",
		r.Setting, r.Seed, r.Test.Accuracy, r.Test.FormatRate, r.Updates, r.CPUSeconds)
	e.results.Runs = append(e.results.Runs, r)
	return save(e.out, e.results)
}

// markdown is the experiment's table.
func (r digitsResults) markdown() string {
	var settings []string
	for _, run := range r.Runs {
		if !slices.Contains(settings, run.Setting) {
			settings = append(settings, run.Setting)
		}
	}
	var rows [][]string
	n := 0
	for _, start := range digitsStarts {
		for _, setting := range settings {
			if !strings.HasPrefix(setting, start.name+":") {
				continue
			}
			var accuracy, least, format, updates, cpu []float64
			for _, run := range r.Runs {
				if run.Setting == setting {
					n = run.Test.N
					accuracy, format = append(accuracy, 100*run.Test.Accuracy), append(format, 100*run.Test.FormatRate)
					least, updates, cpu = append(least, 100*run.Test.Interval[0]), append(updates, float64(run.Updates)), append(cpu, run.CPUSeconds)
				}
			}
			rows = append(rows, []string{setting, fmt.Sprint(len(accuracy)), fmt.Sprintf("%.0f", mean(updates)), spread(accuracy, 1),
				fmt.Sprintf("%.1f", slices.Min(accuracy)), fmt.Sprintf("%.1f", slices.Min(least)), spread(format, 1), fmt.Sprintf("%.0f", slices.Min(cpu))})
		}
	}
	text := fmt.Sprintf("%d held-out exercises, answered greedily; mean ± standard deviation over seeds. An update has %d answers or solutions, of a warm-up 16.\n\n", n, rlRows)
	return text + report.MarkdownTable([]string{"run", "seeds", "updates", "accuracy %", "least", "its 95 % interval from", "format %", "CPU s, least"}, rows)
}
