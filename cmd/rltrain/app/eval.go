package app

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

func evalCommand() (*cli.Command, error) {
	flags, err := rowFlags()
	if err != nil {
		return nil, err
	}
	more, err := languageModelFlags()
	if err != nil {
		return nil, err
	}
	return &cli.Command{
		Name:  "eval",
		Usage: "measure a trained classifier on labelled texts, a language model on exercises, or answers that something else wrote",
		Description: `Of a classifier, --model DIR: prints accuracy, F1, calibration (ECE over 15 bins, Brier) with 95 % intervals,
figures of each class and the latency of one text, and writes logs/eval_results.json and plots/ in the folder eval of
the model's: what its training measured stays. With --out-of-scope-label NAME the rows of that label have none of the
model's: printed is how many of them are rejected, for being less sure of than a threshold, and how many others.

Of a language model, --task NAME of exercises --model DIR [--adapter DIR]: has it try each exercise --n times, all those
of the files in --dataset FILE[,FILE...] where the task reads files, else --eval-samples of them. Prints and with
--output FILE writes how often one of k tries is right (pass@1 to pass@n, unbiased), how often the answer given most
often is (majority@n), both with 95 % intervals of a bootstrap over the exercises, by kind where the task tells kinds,
and writes the tries.

Of answers, --task NAME --completions FILE: prints how many are right by each --answer-match and how they were
found, and writes logs/eval_results.json. Rows of problems have question and answer, or problem and solution; rows of
exercises with numbers have answer, a number.

Of preferences, --task preference --model DIR --dataset FILE: a policy's loss, accuracy, margin of the implicit rewards and
mean log-probabilities of both sides, against --reference or an adapter's base model; of a reward model accuracy, margin
and the calibration of P(chosen).

Of programs, --task code --dataset PROBLEMS --completions FILE: runs them in a sandbox against the problems' tests and
prints pass@k (unbiased) and how they ended. Rows have task_id and completion; what the sandbox failed at is left out
and counted.`,
		Flags: joinFlags([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: "trained classifier, or language model: a folder, such as models/intent_classifier_rl, or a name on the hub"},
			shared.TaskFlag(evaluatedTasks()...),
		}, flags, more, answerFlags(), preferenceFlags(), exerciseFlags(),
			scopeFlags(), []cli.Flag{&cli.StringFlag{Name: "output-dir", Usage: "folder for logs/ and plots/", DefaultText: "eval in that of --model"}}),
		Action: eval,
	}, nil
}

// evaluatedTasks are the tasks that eval knows, the default one first.
func evaluatedTasks() []string {
	return tasksWhere(func(d envs.Definition) bool {
		_, answers := d.Options().(envs.AnswerSource)
		return answers || d.Labels() || d.Plays() || d.Preferences
	})
}

func eval(c *cli.Context) error {
	if c.IsSet("completions") {
		if slices.Contains(programTasks(), c.String("task")) {
			return evalPrograms(c)
		}
		return evalAnswers(c)
	}
	for _, name := range []string{"completion-field", "output-rows"} {
		if c.IsSet(name) {
			return shared.UsageErrorf("--%s: applies only with --completions FILE", name)
		}
	}
	task := c.String("task")
	if slices.Contains(preferenceTasks(), task) {
		return evalPreferences(c)
	}
	if !slices.Contains(labelTasks(), task) {
		return evalExercises(c)
	}
	flags, err := rowFlags()
	if err != nil {
		return err
	}
	if err := onlyFlags(c, task, append(flagNames(joinFlags(flags, scopeFlags())), "task", "model", "output", "output-dir")); err != nil {
		return err
	}
	dir, err := model(c)
	if err != nil {
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
		if _, err := os.Stat(dir); err != nil && c.String("output-dir") == "" {
			return shared.UsageErrorf("eval --model %s, which is no folder, needs --output-dir DIR for its results", dir)
		}
		outside, err := leaveOutOfScope(c, p, &chosen)
		if err != nil {
			return err
		}
		examples, err := chosen.encode(p)
		if err != nil {
			return err
		}
		own := filepath.Join(dir, report.EvalFolder)
		logs, plots := inFolder(c, own, "logs"), inFolder(c, own, "plots")
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
		path := cmp.Or(c.String("output"), logs+"/eval_results.json")
		if err := files.SaveJSON(path, results); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.App.Writer, "%s\nWritten: %s, %s/reliability.png, %s/confusion.png\n", results, path, plots, plots)
		return err
	})
}

// evaluateLabels measures the policy that was loaded from dir.
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
