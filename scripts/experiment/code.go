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

// codeExperiment is the task code without data: SFT of a tiny model on solutions of one-line problems, half of which have a
// typical mistake, so SFT cannot learn which form is right; then RL on tests.
type codeExperiment struct {
	*experiment
	results codeResults
}

// codeResults is the content of the results file.
type codeResults struct {
	Runs []codeRun `json:"runs"`
}

// codeRun is one training method and its results on unseen test problems, of families in the training data and of others.
type codeRun struct {
	Way        string         `json:"way"`
	Seed       int            `json:"seed"`
	CPUSeconds float64        `json:"cpu_seconds"` // training without the warm-up, and evaluation
	Known      rl.Estimate    `json:"known"`       // pass@1 of sampled answers
	Unseen     rl.Estimate    `json:"unseen"`
	Greedy     rl.Estimate    `json:"known_greedy"`
	Pass2      rl.Estimate    `json:"known_pass_at_2"`
	TwoTurns   *rl.Estimate   `json:"known_two_turns,omitempty"` // solved at the first attempt, or at the second after feedback
	Gain       *rl.Difference `json:"gain,omitempty"`            // of Known over the warm-up, paired by problem
	Tries      string         `json:"known_right"`               // for each problem, in order, how many of two attempts were correct
}

// codeRow is a problem and the number of correct attempts at it.
type codeRow struct {
	Kind  string `json:"kind"`
	Right int    `json:"correct"`
}

const (
	codeWarmUp  = "warm-up"
	codeUpdates = "25"
	codeAll     = "--task code --threads 1 --held-out-families 6 --eval-samples 20 "
	// The baseline trains on as many solutions per update as RL samples.
	codeOn = "--pretrained-model BASE --rl-learning-rate 0.0005 --mode rl_only --num-steps " + codeUpdates + " --prompts-per-step 32 --samples-per-prompt 4 --eval-every " + codeUpdates + " --fresh-samples 0 "
)

// codeWays are the methods. BASE stands for the warm-up's folder.
var codeWays = []struct{ name, options string }{
	{codeWarmUp, "--mode supervised --slip-share 0.5 --max-steps 500 --warmup-check-every 0"},
	{"imitation goes on", "--mode supervised --slip-share 0.5 --max-steps " + codeUpdates + " --batch-size 128 --learning-rate 0.001 --warmup-check-every 0 --pretrained-model BASE"},
	{"RL from tests", codeOn},
	{"RL from tests, two turns", codeOn + "--max-turns 2"},
	{"DPO, pairs ranked by tests", codeOn + "--algorithm dpo"},
}

func (e *codeExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, seed := range e.eachSeed() {
		for _, way := range codeWays {
			if e.results.of(way.name, seed) != nil {
				continue
			}
			r, err := e.learn(ctx, seed, way.name, way.options)
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", way.name, seed, err)
			}
			fmt.Printf("%-27s seed %d  %s\n", r.Way, r.Seed, strings.Join(r.cells(), "  "))
			e.results.Runs = append(e.results.Runs, r)
			if err := save(e.out, e.results); err != nil {
				return err
			}
		}
	}
	return nil
}

// of returns a run, or nil.
func (r codeResults) of(way string, seed int) *codeRun {
	i := slices.IndexFunc(r.Runs, func(r codeRun) bool { return r.Way == way && r.Seed == seed })
	if i < 0 {
		return nil
	}
	return &r.Runs[i]
}

// learn trains with one method and evaluates the result.
func (e *codeExperiment) learn(ctx context.Context, seed int, way, options string) (codeRun, error) {
	r := codeRun{Way: way, Seed: seed}
	dir := filepath.Join(e.work, strconv.Itoa(seed))
	base := filepath.Join(dir, "warm-up", "code_supervised")
	if way != codeWarmUp {
		if _, err := os.Stat(filepath.Join(base, "run.json")); err != nil {
			return r, fmt.Errorf("the warm-up's folder is gone: remove its row from %s: %w", e.out, err)
		}
	}
	out := filepath.Join(dir, folderOf(way))
	stage, problems := "code_rl", seed
	if strings.Contains(options, "supervised") {
		stage = "code_supervised"
	}
	if way != codeWarmUp {
		problems += 1000 // other problems than in the warm-up
	}
	args := append(strings.Fields(codeAll+strings.ReplaceAll(options, "BASE", base)), "--seed", strconv.Itoa(problems), "--output-dir", out)
	var err error
	if r.CPUSeconds, _, err = command(ctx, e.program, args...); err != nil {
		return r, err
	}
	return r, e.judge(ctx, &r, filepath.Join(out, stage))
}

// judge evaluates a policy on the same problems as all others: two samples each, and greedily.
func (e *codeExperiment) judge(ctx context.Context, r *codeRun, model string) error {
	sampled, err := e.eval(ctx, r, model, "--n 2")
	if err != nil {
		return err
	}
	greedy, err := e.eval(ctx, r, model, "--n 1")
	if err != nil {
		return err
	}
	known, unseen := right(sampled)
	for _, n := range known {
		r.Tries += strconv.Itoa(int(n))
	}
	half := func(n float64) float64 { return n / 2 }
	r.Known, r.Unseen = mapped(known, half), mapped(unseen, half)
	r.Pass2 = mapped(known, func(n float64) float64 { return min(n, 1) })
	first, _ := right(greedy)
	r.Greedy = rl.RateEstimate(first)
	if r.Way != codeWarmUp {
		var before, after []float64
		for i, n := range e.results.of(codeWarmUp, r.Seed).Tries {
			before, after = append(before, float64(n-'0')/2), append(after, known[i]/2)
		}
		gain := rl.CompareMeans(before, after)
		r.Gain = &gain
	}
	if !strings.Contains(r.Way, "RL") {
		return nil
	}
	turns, err := e.eval(ctx, r, model, "--n 1 --temperature 1 --max-turns 2")
	if err != nil {
		return err
	}
	solved, _ := right(turns)
	two := rl.RateEstimate(solved)
	r.TwoTurns = &two
	return nil
}

// eval returns a policy's results by problem.
func (e *codeExperiment) eval(ctx context.Context, r *codeRun, model, options string) ([]codeRow, error) {
	out := filepath.Join(model, "answers.json")
	if err := os.Remove(out); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	args := strings.Fields("eval --task code --threads 1 --held-out-families 6 --eval-samples 130 --seed 9000 " + options)
	cpu, _, err := command(ctx, e.program, append(args, "--model", model, "--output", out)...)
	if err != nil {
		return nil, err
	}
	r.CPUSeconds += cpu
	var found struct {
		Datasets []struct {
			Rows []codeRow `json:"problems_tried"`
		}
	}
	if err := readJSON(out, &found); err != nil {
		return nil, err
	}
	return found.Datasets[0].Rows, nil
}

// right is the number of correct attempts by problem, for known and for unseen families.
func right(rows []codeRow) (known, unseen []float64) {
	for _, row := range rows {
		if strings.HasPrefix(row.Kind, "held-out ") {
			unseen = append(unseen, float64(row.Right))
		} else {
			known = append(known, float64(row.Right))
		}
	}
	return known, unseen
}

func mapped(values []float64, f func(float64) float64) rl.Estimate {
	var out []float64
	for _, v := range values {
		out = append(out, f(v))
	}
	return rl.MeanEstimate(out)
}

func (r codeRun) cells() []string {
	percent := func(e *rl.Estimate) string {
		if e == nil {
			return ""
		}
		return fmt.Sprintf("%.1f", 100*e.Value)
	}
	gain := ""
	if r.Gain != nil {
		gain = difference(*r.Gain, 100, 1)
	}
	return []string{percent(&r.Known), gain, percent(&r.Greedy), percent(&r.Pass2), percent(r.TwoTurns), percent(&r.Unseen), fmt.Sprintf("%.0f", r.CPUSeconds)}
}

// markdown is the experiment's table.
func (r codeResults) markdown() string {
	var rows [][]string
	total := 0.0
	for _, way := range codeWays {
		var known, gain []float64
		for _, run := range r.Runs {
			if run.Way != way.name {
				continue
			}
			rows = append(rows, append([]string{way.name, fmt.Sprint(run.Seed)}, run.cells()...))
			known, total = append(known, 100*run.Known.Value), total+run.CPUSeconds
			if run.Gain != nil {
				gain = append(gain, 100*run.Gain.Difference)
			}
		}
		if len(known) > 1 {
			row := []string{"**" + way.name + "**", "all", spread(known, 1), "", "", "", "", "", ""}
			if gain != nil {
				row[3] = spread(gain, 1)
			}
			rows = append(rows, row)
		}
	}
	return fmt.Sprintf("One-line problems of 32 families; 6 more families are never trained on. SFT takes 500 batches of 32 demonstrations, half of them with their family's typical mistake. "+
		"The other rows continue for %s updates of 128 completions, on other problems. Accuracy on 130 unseen problems, %%: sampled at temperature 1 (pass@1, from two samples), "+
		"the difference from SFT with its paired 95 %% interval, greedy, pass@2, with a second turn after a failure, and pass@1 of the unseen families. All runs took %.0f CPU minutes.\n\n", codeUpdates, total/60) +
		report.MarkdownTable([]string{"method", "seed", "pass@1", "gain, points", "greedy", "pass@2", "two turns", "unseen families", "CPU s"}, rows)
}
