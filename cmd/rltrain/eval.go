package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"rltrain/cmd/rltrain/config"
	"rltrain/rl"
	"rltrain/rl/algo"
	"rltrain/rl/report"
)

// evalResults is the content of logs/eval_results.json.
type evalResults struct {
	Model   string `json:"model"`
	Dataset string `json:"dataset"`
	Split   string `json:"split"`
	Cut     int    `json:"cut_texts"` // texts longer than the model reads
	rl.Evaluation
}

func evalCommand() (*cli.Command, error) {
	flags, err := rowFlags()
	if err != nil {
		return nil, err
	}
	return &cli.Command{
		Name:  "eval",
		Usage: "measure a trained classifier on labelled texts, or answers that something else wrote",
		Description: `Of a classifier, --model DIR: prints accuracy, F1, calibration (ECE over 15 bins, Brier) with 95 % intervals,
figures of each class and the latency of one text, and writes logs/eval_results.json and plots/ in the model's
folder.

Of answers, --task gsm8k --completions FILE: prints how many are right by each --answer-match and how they were
found, and writes logs/eval_results.json. Rows of gsm8k and math (JSON) have question and answer, or problem and
solution; rows of sum_digits and reverse_digits (json, jsonl, csv, parquet) have answer, a number.`,
		Flags: slices.Concat([]cli.Flag{modelFlag(), taskFlag(append([]string{config.Intent}, answerTasks...)...)}, flags,
			[]cli.Flag{&cli.StringFlag{Name: "output-dir", Usage: "folder for logs/ and plots/", DefaultText: "that of --model"}}, answerFlags()),
		Action: eval,
	}, nil
}

func eval(c *cli.Context) error {
	if c.IsSet("completions") {
		return evalAnswers(c)
	}
	if task := c.String("task"); task != config.Intent {
		return usageErrorf("eval --task %s needs --completions FILE", task)
	}
	for _, name := range []string{"completion-field", "answer-match", "output", "output-rows"} {
		if c.IsSet(name) {
			return usageErrorf("--%s: applies only with --completions FILE", name)
		}
	}
	dir, err := model(c)
	if err != nil {
		return err
	}
	chosen, err := chooseRows(c)
	if err != nil {
		return err
	}
	return onThread(c, func(ctx context.Context) error {
		policy, err := loadPolicy(c, dir)
		if err != nil {
			return err
		}
		defer policy.Close()
		if _, err := os.Stat(dir); err != nil && c.String("output-dir") == "" {
			return usageErrorf("eval --model %s, which is no folder, needs --output-dir DIR for its results", dir)
		}
		examples, err := chosen.encode(policy)
		if err != nil {
			return err
		}
		logs, plots := inFolder(c, dir, "logs"), inFolder(c, dir, "plots")
		if err := makeDirs(logs, plots); err != nil {
			return err
		}
		results, probs, err := evaluate(ctx, c, dir, chosen, policy, examples)
		if err != nil {
			return err
		}
		if err := drawEvaluation(plots, results.Evaluation, policy.Labels, examples.Labels, probs); err != nil {
			return err
		}
		path := logs + "/eval_results.json"
		if err := rl.SaveJSON(path, results); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.App.Writer, "%s\nWritten: %s, %s/reliability.png, %s/confusion.png\n", results, path, plots, plots)
		return err
	})
}

// evaluate measures the policy that was loaded from dir.
func evaluate(ctx context.Context, c *cli.Context, dir string, chosen chosenRows, policy *algo.LabelPolicy, examples algo.Examples) (evalResults, [][]float32, error) {
	results := evalResults{Model: dir, Dataset: chosen.name, Split: chosen.split, Cut: examples.Cut}
	probs, err := predictAll(ctx, c, "evaluating", policy, examples.IDs)
	if err != nil {
		return results, nil, err
	}
	results.Evaluation = rl.Evaluate(policy.Labels, examples.Labels, probs)
	latency, err := measureLatency(ctx, policy, examples.IDs)
	if err != nil {
		return results, nil, err
	}
	results.SetLatency(latency)
	return results, probs, nil
}

// drawEvaluation writes reliability.png and confusion.png, each with its .svg, to the folder plots.
func drawEvaluation(plots string, e rl.Evaluation, labels []string, truth []int, probs [][]float32) error {
	confidence, correct := make([]float32, len(probs)), make([]bool, len(probs))
	for i, p := range probs {
		best := ranked(p)[0]
		confidence[i], correct[i] = p[best], best == truth[i]
	}
	if err := report.Reliability(plots+"/reliability.png", report.Bins(confidence, correct)); err != nil {
		return err
	}
	return report.Confusion(plots+"/confusion.png", labels, e.Confusion)
}

// String is the tables that eval prints.
func (r evalResults) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s, split %s: %s\n\n", r.Model, r.Dataset, r.Split, texts(r.N, r.Cut))
	rows := [][]string{}
	for _, f := range []struct {
		name  string
		value float64
		in    rl.Interval
	}{
		{"accuracy", r.Accuracy, r.Intervals.Accuracy},
		{"F1 macro", r.F1Macro, r.Intervals.F1Macro},
		{"F1 weighted", r.F1Weighted, r.Intervals.F1Weighted},
		{"ECE", r.ECE, r.Intervals.ECE},
		{"Brier", r.Brier, r.Intervals.Brier},
	} {
		rows = append(rows, []string{f.name, fmt.Sprintf("%.4f", f.value), fmt.Sprintf("%.4f to %.4f", f.in[0], f.in[1])})
	}
	if r.LatencyP50 != nil {
		rows = append(rows, []string{"latency p50, ms", fmt.Sprintf("%.2f", *r.LatencyP50)}, []string{"latency p95, ms", fmt.Sprintf("%.2f", *r.LatencyP95)})
	}
	b.WriteString(report.RenderTable([]string{"figure", "value", "95 % interval"}, rows) + "\n")
	rows = nil
	for _, class := range r.Classes {
		rows = append(rows, []string{class.Label, fmt.Sprintf("%.4f", class.Precision), fmt.Sprintf("%.4f", class.Recall),
			fmt.Sprintf("%.4f", class.F1), report.Count(int64(class.Support))})
	}
	b.WriteString(report.RenderTable([]string{"class", "precision", "recall", "F1", "texts"}, rows))
	return b.String()
}

func texts(n, cut int) string {
	text := report.Count(int64(n)) + " texts"
	if cut > 0 {
		text += ", " + report.Count(int64(cut)) + " of them cut to the model's length"
	}
	return text
}
