package app

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

func evalCommand() *cli.Command {
	return &cli.Command{
		Name:  "eval",
		Usage: "evaluate a model, or completions from a file",
		Description: `Classifier: rltrain eval --model DIR
  Prints accuracy, F1, ECE (15 bins) and Brier score with 95 % intervals, metrics by class, and latency.
  Writes DIR/eval/logs/eval_results.json and DIR/eval/plots/. With --out-of-scope-label NAME it also measures how
  well low confidence rejects rows with that label.

Language model on problems: rltrain eval --task NAME --model DIR [--adapter DIR]
  Samples --n answers to each problem of --dataset FILE[,FILE...], or to --eval-samples problems (also --max-samples, --limit).
  Prints pass@1 to pass@n (unbiased) and majority@n with 95 % intervals, by kind of problem. --output FILE also
  saves the completions.

Completions from a file: rltrain eval --task NAME --completions FILE
  Prints accuracy for every --answer-match, and how the answers were found. Rows have question and answer, or problem
  and solution, or a number as answer. Writes logs/eval_results.json.

Texts and conversations: rltrain eval --task chat --model DIR --dataset FILE
  Prints loss, perplexity and token accuracy with 95 % intervals, over the tokens that SFT trains by default.

Preference pairs: rltrain eval --task preference --model DIR --dataset FILE
  Policy: loss, accuracy, reward margin and log-probs of both sides, against --reference or the adapter's base model.
  Reward model: accuracy, margin and calibration of P(chosen). --max-samples N reads the first N rows.

Typed questions: rltrain eval --task decisions --model DIR --dataset FILE
  Prints accuracy, Brier score, ECE and ranked probability score with 95 % intervals by type and question, the risk of
  answering only the most confident questions, and with --cost FILE the cost of the answers.

Programs from a file: rltrain eval --task code --dataset PROBLEMS --completions FILE
  Runs the programs in a sandbox and prints pass@k (unbiased) and how they ended. Rows have task_id and completion.`,
		Flags: joinFlags([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: "classifier or language model: a folder, such as models/intent_classifier_rl, or a Hugging Face id"},
			shared.TaskFlag(evaluatedTasks()...),
			&cli.StringFlag{Name: "cost", Usage: "task decisions: JSON file with the cost of each answer, {\"TRUTH\": {\"ANSWER\": COST}}; the answer abstain gives none"},
		}, rowFlags(), languageModelFlags(), answerFlags(), preferenceFlags(), problemFlags(),
			scopeFlags(), []cli.Flag{&cli.StringFlag{Name: "output-dir", Usage: "folder for logs/ and plots/", DefaultText: "eval in the folder of --model"}}),
		Action: eval,
	}
}

// evaluatedTasks lists the tasks of eval, the default one first.
func evaluatedTasks() []string {
	return tasksWhere(func(d envs.Definition) bool {
		_, answers := d.Options().(envs.AnswerSource)
		_, records := d.Options().(envs.RecordSource)
		return answers || records || d.Labels() || d.Plays() || d.Preferences
	})
}

func eval(c *cli.Context) error {
	if c.IsSet("completions") {
		if slices.Contains(programTasks(), c.String("task")) {
			return evalPrograms(c)
		}
		return evalAnswers(c)
	}
	if c.IsSet("completion-field") {
		return shared.UsageErrorf("--completion-field: needs --completions FILE")
	}
	task := c.String("task")
	if slices.Contains(preferenceTasks(), task) {
		return evalPreferences(c)
	}
	if slices.Contains(textTasks(), task) {
		return evalChat(c)
	}
	if slices.Contains(decisionTasks(), task) {
		return evalDecisions(c)
	}
	if !slices.Contains(labelTasks(), task) {
		return evalProblems(c)
	}
	return evalLabels(c, task)
}

// evalLabels measures a classifier.
func evalLabels(c *cli.Context, task string) error {
	if err := onlyFlags(c, "to task "+task, []string{"task", "model", "output", "output-dir", "output-rows"}, rowFlags(), scopeFlags()); err != nil {
		return err
	}
	dir, err := model(c)
	if err != nil {
		return err
	}
	if err := noClassifier(c, dir); err != nil {
		return err
	}
	chosen, err := chooseRows(c)
	if err != nil {
		return err
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		p, err := loadPolicy(c, dir)
		if err != nil {
			return err
		}
		defer p.Close()
		if !files.Exist(dir) && c.String("output-dir") == "" {
			return shared.UsageErrorf("--model: %s is not a folder; pass --output-dir DIR for the results", dir)
		}
		outside, err := splitOutOfScope(c, p, &chosen)
		if err != nil {
			return err
		}
		examples, err := chosen.encode(p)
		if err != nil {
			return err
		}
		folder := filepath.Join(dir, report.EvalFolder)
		logs, plots := inFolder(c, folder, "logs"), inFolder(c, folder, "plots")
		if err := makeDirs(filepath.Dir(cmp.Or(c.String("output"), logs+"/x")), plots); err != nil {
			return err
		}
		results, probs, err := evaluateLabels(ctx, c, dir, chosen, p, examples)
		if err != nil {
			return err
		}
		if outside != nil {
			if results.OutOfScope, err = outside.measure(ctx, c, p, rl.SurenessOf(examples.Labels, probs)); err != nil {
				return err
			}
		}
		if err := report.DrawEvaluation(plots, p.Labels, examples.Labels, probs, results.Confusion); err != nil {
			return err
		}
		if err := saveRows(c.String("output-rows"), labelRows(chosen.rows, p.Labels, examples.Labels, probs)); err != nil {
			return err
		}
		path := cmp.Or(c.String("output"), logs+"/eval_results.json")
		if err := files.SaveJSON(path, results); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.App.Writer, "%s\nWrote %s, %s/reliability.png, %s/confusion.png\n", results, path, plots, plots)
		return err
	})
}

// labelRow is a line of --output-rows.
type labelRow struct {
	Row         int                `json:"row"` // from 1
	Text        string             `json:"text"`
	Label       string             `json:"label"`
	Predicted   string             `json:"predicted"`
	Correct     bool               `json:"correct"`
	Probability map[string]float32 `json:"probabilities"`
}

// labelRows returns the prediction for each row.
func labelRows(rows []dataset.Row, labels []string, truth []int, probs [][]float32) (all []labelRow) {
	for i, p := range probs {
		best := labels[slices.Index(p, slices.Max(p))]
		row := labelRow{i + 1, rows[i].Text, labels[truth[i]], best, best == labels[truth[i]], map[string]float32{}}
		for k, label := range labels {
			row.Probability[label] = p[k]
		}
		all = append(all, row)
	}
	return all
}

// evaluateLabels measures the classifier loaded from dir.
func evaluateLabels(ctx context.Context, c *cli.Context, dir string, chosen chosenRows, p *policy.Classifier, examples policy.Examples) (shared.LabelResults, [][]float32, error) {
	results := shared.LabelResults{Model: dir, Dataset: chosen.name, Split: chosen.split, Cut: examples.Cut}
	probs, err := predictAll(ctx, c, "evaluating", p, examples.IDs)
	if err != nil {
		return results, nil, err
	}
	results.Evaluation = rl.Evaluate(p.Labels, examples.Labels, probs)
	results.Selective = rl.Selective(rl.SurenessOf(examples.Labels, probs))
	latency, err := shared.MeasureLatency(ctx, p, examples.IDs)
	if err != nil {
		return results, nil, err
	}
	results.SetLatency(latency)
	return results, probs, nil
}
