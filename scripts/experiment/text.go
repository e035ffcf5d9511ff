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

// textExperiment compares classifiers that learn from rewards with the same model trained on labels: on the built-in
// sentences and on the ten domains of CLINC150. It also has supervised models of CLINC150's 150 intents, which must detect
// out-of-scope texts, and of MMLU-Pro's categories, and a small language model that generates labels.
type textExperiment struct {
	*experiment
	clinc, mmlu string
	only        string // set of texts; "" = all
	episodes    int
	results     textResults
}

// textResults is the content of the results file.
type textResults struct {
	Runs   []textRun   `json:"runs"`
	Frozen []frozenRun `json:"frozen,omitempty"`
}

// textRun is one training run, evaluated on held-out rows that nothing was selected by.
type textRun struct {
	Data       string      `json:"data"`
	Way        string      `json:"way"`
	Seed       int         `json:"seed"`
	Options    []string    `json:"options"`
	CPUSeconds float64     `json:"cpu_seconds"`
	N          int         `json:"n"`
	Accuracy   float64     `json:"accuracy"`
	Interval   rl.Interval `json:"interval"`
	// Before is the accuracy before RL, for language models.
	Before *float64 `json:"accuracy_before,omitempty"`
	// OutOfScope is the detection of texts without a label.
	OutOfScope *rl.OutOfScope `json:"out_of_scope,omitempty"`
}

// Sets of texts.
const (
	sentiment  = "sentiment"
	domains    = "CLINC150 domains"
	intents    = "CLINC150 intents"
	categories = "MMLU-Pro categories"
	letters    = "letters, written"
)

// textWay is a method, by its options.
type textWay struct{ name, options string }

const told = "supervised"

// labelWays are the methods compared on the sentences and the domains. The settings were chosen with seed 101, which the
// results do not include.
var labelWays = []textWay{
	{told, "--mode supervised --epochs 6 --lr-scheduler-type linear"},
	{"reinforce", "--algorithm reinforce --entropy-coef 0.05" + manyLabels},
	{"grpo", "--algorithm grpo --rl-batch-size 2048 --entropy-coef 0.05" + manyLabels},
	{"ppo", "--algorithm ppo --rl-batch-size 2048 --entropy-coef 0.05" + manyLabels},
	{"a2c", "--algorithm a2c --entropy-coef 0.05" + manyLabels},
	{"dqn", "--algorithm dqn --replay-size 2048 --replay-updates 1 --rl-batch-size 2048 --epsilon-end 0.5" + manyLabels},
}

// manyLabels computes a text once per rollout for all LABELS labels sampled for it. RATE is the learning rate, EPISODES the
// number of rollouts. dqn's replay buffer holds the last rollout.
const manyLabels = " --buffer-size 2048 --samples-per-prompt LABELS --rl-learning-rate RATE --rl-episodes EPISODES --eval-every 100"

// textPlan is the runs, the fastest first.
var textPlan = []struct {
	data string
	ways []textWay
	one  bool // seed 1 only
}{
	{sentiment, labelWays, false},
	{domains, labelWays, false},
	{letters, []textWay{{"grpo", "--policy generate --mode supervised_then_rl --algorithm grpo --max-steps 300 --warmup-until 0.3 --warmup-check-every 25 " +
		"--num-steps 60 --eval-every 20 --prompts-per-step 32 --eval-samples 500 --max-new-tokens 10 --prompt-template {text}=>"}}, false},
	{intents, []textWay{
		{told, "--mode supervised --epochs 3 --lr-scheduler-type linear --lora-r 16 --lora-alpha 32"},
		{"ppo", "--algorithm ppo --rl-batch-size 4096 --entropy-coef 0.05 --buffer-size 4096 --samples-per-prompt 128 --rl-learning-rate RATE --rl-episodes 1200 --eval-every 100 " +
			"--lora-r 16 --lora-alpha 32"},
	}, true},
	{categories, []textWay{{told, "--mode supervised --epochs 2 --lr-scheduler-type linear --max-length 128 --lora-r 16 --lora-alpha 32"}}, true},
}

func (e *textExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, part := range textPlan {
		if e.only != "" && e.only != part.data {
			continue
		}
		file, err := e.rows(part.data)
		if err != nil {
			return fmt.Errorf("%s: %w", part.data, err)
		}
		if file == "" && part.data != sentiment {
			fmt.Printf("%s: left out, its source is not named\n", part.data)
			continue
		}
		if part.data == intents {
			if err := e.frozen(ctx, file); err != nil {
				return fmt.Errorf("frozen embeddings: %w", err)
			}
		}
		for seed := e.first; seed < e.first+e.seeds && (seed == e.first || !part.one); seed++ {
			for _, way := range part.ways {
				if err := e.train(ctx, part.data, file, way, seed); err != nil {
					return fmt.Errorf("%s, %s, seed %d: %w", part.data, way.name, seed, err)
				}
			}
		}
	}
	return nil
}

// train runs rltrain once, unless the results have the run.
func (e *textExperiment) train(ctx context.Context, data, file string, way textWay, seed int) error {
	if slices.ContainsFunc(e.results.Runs, func(r textRun) bool { return r.Data == data && r.Way == way.name && r.Seed == seed }) {
		return nil
	}
	dir := filepath.Join(e.work, folderOf(data+"-"+way.name)+"-"+strconv.Itoa(seed))
	if err := os.RemoveAll(dir); err != nil { // remains of an interrupted call
		return err
	}
	episodes, labels, rate := e.episodes, "64", "0.002"
	if data == sentiment { // a fifth of the rows, and two labels instead of ten
		episodes, labels, rate = max(1, episodes*2/9), "128", "0.001"
	}
	options := append([]string{"--task", "text"}, strings.Fields(strings.NewReplacer("EPISODES", strconv.Itoa(episodes), "LABELS", labels, "RATE", rate).Replace(way.options))...)
	if file != "" {
		options = append(options, "--dataset", file)
	}
	options = append(options, "--seed", strconv.Itoa(seed), "--threads", "1")
	r := textRun{Data: data, Way: way.name, Seed: seed, Options: portable(options, e.work)}
	var err error
	if r.CPUSeconds, _, err = command(ctx, e.program, append(options, "--output-dir", dir)...); err != nil {
		return err
	}
	stages, err := filepath.Glob(filepath.Join(dir, "classification_*"))
	if err != nil {
		return err
	}
	stage := stages[0]
	for _, other := range stages {
		if !strings.Contains(filepath.Base(other), told) { // the last stage
			stage = other
		}
	}
	if err := r.read(filepath.Join(stage, "logs", "eval_results.json")); err != nil {
		return err
	}
	if data == intents {
		scope := filepath.Join(dir, "out_of_scope.json")
		if _, _, err := command(ctx, e.program, "eval", "--task", "text", "--model", stage, "--dataset", e.file("intents_and_others"), "--out-of-scope-label", "oos",
			"--threads", "1", "--output-dir", dir, "--output", scope); err != nil {
			return err
		}
		var found struct {
			OutOfScope *rl.OutOfScope `json:"out_of_scope"`
		}
		if err := readJSON(scope, &found); err != nil {
			return err
		}
		r.OutOfScope = found.OutOfScope
	}
	fmt.Printf("%-20s %-10s seed %d  accuracy %.4f of %d  %5.0f s of processor time\n", data, r.Way, seed, r.Accuracy, r.N, r.CPUSeconds)
	e.results.Runs = append(e.results.Runs, r)
	return save(e.out, e.results)
}

// read reads the figures of a run's eval_results.json: for a classifier those of the test rows, for a language model those
// before the first and after the last step, which selected nothing.
func (r *textRun) read(path string) error {
	var scores struct {
		N         int     `json:"n"`
		Accuracy  float64 `json:"accuracy"`
		Intervals rl.Intervals
		Before    *rl.AnswerScores
		Last      *rl.AnswerScores
	}
	if err := readJSON(path, &scores); err != nil {
		return err
	}
	if scores.Last == nil {
		r.N, r.Accuracy, r.Interval = scores.N, scores.Accuracy, scores.Intervals.Accuracy
		return nil
	}
	r.N, r.Accuracy, r.Interval, r.Before = scores.Last.N, scores.Last.Accuracy, scores.Last.Interval, &scores.Before.Accuracy
	return nil
}

// markdown is the experiment's tables.
func (r textResults) markdown() string {
	supervised := map[string]float64{}
	var rows, written, outside [][]string
	for _, part := range textPlan {
		for _, way := range part.ways {
			var accuracy, cpu []float64
			n := 0
			for _, run := range r.Runs {
				if run.Data != part.data || run.Way != way.name {
					continue
				}
				accuracy, cpu, n = append(accuracy, 100*run.Accuracy), append(cpu, run.CPUSeconds), run.N
				if run.Before != nil {
					written = append(written, []string{strconv.Itoa(run.Seed), fmt.Sprintf("%.1f", 100**run.Before),
						percent(run.Accuracy, run.Interval), fmt.Sprintf("%.0f", run.CPUSeconds)})
				}
				if o := run.OutOfScope; o != nil {
					outside = append(outside, []string{way.name, strconv.Itoa(run.Seed), percent(run.Accuracy, run.Interval),
						fmt.Sprintf("%.3f", o.Threshold), fmt.Sprintf("%.1f", 100*o.Accuracy), percent(o.Recall, o.Intervals[0]),
						fmt.Sprintf("%.1f", 100*o.FalseAlarms), fmt.Sprintf("%.3f", o.AUROC)})
				}
			}
			if len(accuracy) == 0 || part.data == letters {
				continue
			}
			against := ""
			if way.name == told {
				supervised[part.data] = mean(accuracy)
			} else if base, ok := supervised[part.data]; ok {
				against = fmt.Sprintf("%+.1f", mean(accuracy)-base)
			}
			rows = append(rows, []string{part.data, way.name, strconv.Itoa(len(accuracy)), strconv.Itoa(n), spread(accuracy, 1), against, spread(cpu, 0)})
		}
		if part.data != intents {
			continue
		}
		for _, f := range r.Frozen {
			rows = append(rows, []string{part.data, fmt.Sprintf("frozen vectors, %s (C %g)", f.Way, f.C), "", strconv.Itoa(f.N), fmt.Sprintf("%.1f", 100*f.Accuracy), "", fmt.Sprintf("%.0f", f.Seconds)})
		}
	}
	total := 0.0
	for _, run := range r.Runs {
		total += run.CPUSeconds
	}
	for _, f := range r.Frozen {
		total += f.Seconds
	}
	text := "Accuracy on test rows, %, mean ± standard deviation over seeds, and points from the supervised model on the same data. " +
		fmt.Sprintf("All runs took %.0f CPU minutes:\n\n", total/60) +
		report.MarkdownTable([]string{"texts", "method", "seeds", "test rows", "accuracy %", "from supervised", "CPU s"}, rows)
	if len(outside) > 0 {
		text += "\nThe 150 intents and out-of-scope texts, by seed; the threshold was chosen on validation rows:\n\n" +
			report.MarkdownTable([]string{"method", "seed", "accuracy without rejection %", "threshold", "right and accepted %", "out of scope rejected %", "in scope rejected %", "AUROC"}, outside)
	}
	if len(written) > 0 {
		text += "\nA model of random weights that generates the label, GRPO after SFT, on 500 unseen words:\n\n" +
			report.MarkdownTable([]string{"seed", "before RL %", "after the last step %", "CPU s"}, written)
	}
	return text
}
