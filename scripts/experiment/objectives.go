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
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// objectivesExperiment trains the same small model on sums with each objective and each correction of old completions.
type objectivesExperiment struct {
	*experiment
	only    string
	results objectiveResults
}

// objectiveResults is the content of docs/results/objectives.json.
type objectiveResults struct {
	Runs []objectiveRun `json:"runs"`
}

// objectiveRun is a setting with a seed.
type objectiveRun struct {
	Setting    string   `json:"setting"`
	Seed       int      `json:"seed"`
	Options    []string `json:"options"`
	CPUSeconds float64  `json:"cpu_seconds"`
	Before     [2]int   `json:"before"` // correct of held-out problems
	After      [2]int   `json:"after"`  // after the last step
}

// objectiveSteps is the number of RL steps of a run, each of 256 completions in four updates.
const objectiveSteps = 30

// objectives are the settings. All begin with the same supervised model of a seed, with the same learning rate.
var objectives = []struct{ name, options string }{
	{"grpo", "--algorithm grpo"},
	{"dr_grpo", "--algorithm grpo --advantage-scale none --reduction dr_grpo"},
	{"dapo", "--algorithm grpo --clip-high 0.28 --dynamic-sampling"},
	{"gspo", "--algorithm gspo"},
	{"cispo", "--algorithm cispo"},
	{"sapo", "--algorithm sapo"},
	{"gmpo", "--algorithm gmpo"},
	{"dppo", "--algorithm dppo"},
	{"vespo", "--algorithm vespo"},
	{"maxrl", "--algorithm grpo --advantage-scale mean"},
	{"reinforce++", "--algorithm reinforce++"},
	{"rloo", "--algorithm rloo"},
	{"ppo", "--algorithm ppo"},
	{"grpo, 1 old, none", old(1, "none")}, {"grpo, 1 old, token_truncate", old(1, "token_truncate")}, {"grpo, 1 old, token_mask", old(1, "token_mask")},
	{"grpo, 1 old, sequence_mask", old(1, "sequence_mask")}, {"grpo, 1 old, geometric_mask", old(1, "geometric_mask")},
	{"grpo, 4 old, none", old(4, "none")}, {"grpo, 4 old, token_truncate", old(4, "token_truncate")}, {"grpo, 4 old, token_mask", old(4, "token_mask")},
	{"grpo, 4 old, sequence_mask", old(4, "sequence_mask")}, {"grpo, 4 old, geometric_mask", old(4, "geometric_mask")},
	{"grpo, 8 old, none", old(8, "none")}, {"grpo, 8 old, token_truncate", old(8, "token_truncate")}, {"grpo, 8 old, token_mask", old(8, "token_mask")},
	{"grpo, 8 old, sequence_mask", old(8, "sequence_mask")}, {"grpo, 8 old, geometric_mask", old(8, "geometric_mask")},
}

// old are the options of asynchronous rollouts with a correction, with the bounds that are usual for it.
func old(steps int, correction string) string {
	options := fmt.Sprintf("--algorithm grpo --async --max-staleness %d --importance-sampling %s", steps, correction)
	switch correction {
	case "token_mask", "sequence_mask":
		return options + " --importance-sampling-min 0.5 --importance-sampling-max 5"
	case "geometric_mask":
		return options + " --importance-sampling-min 0.98 --importance-sampling-max 1.02"
	}
	return options
}

func (e *objectivesExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, seed := range e.eachSeed() {
		for _, o := range objectives {
			known := slices.ContainsFunc(e.results.Runs, func(r objectiveRun) bool { return r.Setting == o.name && r.Seed == seed })
			if known || e.only != "" && e.only != o.name {
				continue
			}
			r, err := e.train(ctx, o.name, o.options, seed)
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", o.name, seed, err)
			}
			fmt.Printf("%s, seed %d: %d → %d of %d in %.0f CPU s\n", o.name, seed, r.Before[0], r.After[0], r.After[1], r.CPUSeconds)
			e.results.Runs = append(e.results.Runs, r)
			if err := save(e.out, e.results); err != nil {
				return err
			}
		}
	}
	return nil
}

// train runs a setting from the supervised model of its seed, which it makes first if it is missing.
func (e *objectivesExperiment) train(ctx context.Context, name, options string, seed int) (objectiveRun, error) {
	r := objectiveRun{Setting: name, Seed: seed}
	start := filepath.Join(e.work, strconv.Itoa(seed), "start")
	if _, err := os.Stat(filepath.Join(start, "sum_digits_supervised", "run.json")); err != nil {
		args := strings.Fields(fmt.Sprintf("--task sum_digits --mode supervised --warmup-until 0.2 --warmup-check-every 25 --threads 1 --device cpu --seed %d --output-dir %s", seed, start))
		if _, _, err := command(ctx, e.program, args...); err != nil {
			return r, err
		}
	}
	out := filepath.Join(e.work, strconv.Itoa(seed), folderOf(name))
	args := strings.Fields(fmt.Sprintf("--task sum_digits --mode rl_only --pretrained-model %s/sum_digits_supervised %s --reward accuracy --num-steps %d --rl-lr-scheduler-type constant "+
		"--eval-samples 500 --eval-every %d --fresh-samples 0 --keep last --threads 1 --device cpu --seed %d --output-dir %s", start, options, objectiveSteps, objectiveSteps, seed, out))
	args = append(args, "--minibatches", "4")
	r.Options = portable(args, start, out)
	if err := os.RemoveAll(out); err != nil { // what a stopped call left
		return r, err
	}
	var err error
	if r.CPUSeconds, _, err = command(ctx, e.program, args...); err != nil {
		return r, err
	}
	var scores report.AnswerResults
	if err := files.LoadJSON(filepath.Join(out, "sum_digits_rl", "logs", "eval_results.json"), &scores); err != nil {
		return r, err
	}
	r.Before, r.After = [2]int{scores.Before.Correct, scores.Before.N}, [2]int{scores.Last.Correct, scores.Last.N}
	return r, nil
}

// markdown is the experiment's table: the seeds of a setting together.
func (r objectiveResults) markdown() string {
	var rows [][]string
	for _, o := range objectives {
		var before, after [2]int
		seeds, cpu := 0, 0.0
		for _, run := range r.Runs {
			if run.Setting == o.name {
				seeds, cpu = seeds+1, cpu+run.CPUSeconds
				for i := range 2 {
					before[i], after[i] = before[i]+run.Before[i], after[i]+run.After[i]
				}
			}
		}
		if seeds > 0 {
			rows = append(rows, []string{o.name, "`" + o.options + "`", strconv.Itoa(seeds), interval(before), interval(after), fmt.Sprintf("%.0f", cpu/float64(seeds))})
		}
	}
	return report.NarrowMarkdownTable([]string{"setting", "options", "seeds", "start, %", "after 30 steps, %", "CPU s a run"}, rows)
}

func interval(counts [2]int) string {
	return percent(float64(counts[0])/float64(counts[1]), rl.Wilson(counts[0], counts[1]))
}

// writeObjectivesTable writes the table to its page.
func writeObjectivesTable(page, results string) error {
	var r objectiveResults
	if err := files.LoadJSON(results, &r); err != nil {
		return err
	}
	return writeBlock(page, "objectives", r.markdown())
}
