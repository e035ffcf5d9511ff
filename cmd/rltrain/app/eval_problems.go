package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// evalProblems measures a language model on the problems of a task.
func evalProblems(c *cli.Context) error {
	if c.String("model") == "" {
		return shared.UsageErrorf("eval --task %s needs --model DIR (a language model or an adapter) or --completions FILE", c.String("task"))
	}
	x, err := newProblemEval(c, "output-rows")
	if err != nil {
		return err
	}
	return intoResults(c, func(ctx context.Context) (fmt.Stringer, error) {
		results, err := x.measure(ctx, c, c.String("model"), c.String("adapter"))
		if err != nil {
			return nil, err
		}
		return results, saveRows(c.String("output-rows"), results.rows())
	})
}

// intoResults checks that --output is writable, measures on the compute thread, and prints the results.
func intoResults(c *cli.Context, measure func(ctx context.Context) (fmt.Stringer, error)) error {
	output := c.String("output")
	if err := newResults(output); err != nil {
		return err
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		results, err := measure(ctx)
		if err != nil {
			return err
		}
		return printResults(c, output, results)
	})
}

// printResults prints results and, if output is not "", writes them to a file.
func printResults(c *cli.Context, output string, results fmt.Stringer) error {
	text := results.String()
	if output != "" {
		if err := files.SaveJSON(output, results); err != nil {
			return err
		}
		text += "\nWrote " + output + "\n"
	}
	_, err := fmt.Fprint(c.App.Writer, text)
	return err
}

// newResults creates the folder of a results file. It rejects the results file of a training run.
func newResults(output string) error {
	if output == "" {
		return nil
	}
	if dir, ok := runOf(output); ok {
		return shared.UsageErrorf("--output: %s holds the evaluation of the training run %s; choose another file", output, dir)
	}
	return makeDirs(filepath.Dir(output))
}

// runOf returns the folder of the training run that wrote a results file.
func runOf(output string) (dir string, ok bool) {
	logs := filepath.Dir(output)
	dir = filepath.Dir(logs)
	if filepath.Base(output) != "eval_results.json" || filepath.Base(logs) != "logs" {
		return dir, false
	}
	return dir, files.Exist(output) && files.Exist(dir, "run.json")
}

// String returns the tables that eval prints.
func (r problemResults) String() string {
	var b strings.Builder
	for _, set := range r.Sets {
		on := set.Dataset
		if on == "" {
			on = r.Task
		}
		fmt.Fprintf(&b, "%s on %s: task=%s problems=%s samples_per_problem=%d temperature=%g%s\n",
			r.Model, on, r.Task, report.Count(int64(set.Problems)), set.N, r.Temperature, formatRate(set.FormatRate, set.FreeForm))
		b.WriteString(set.skipped(r.MaxNew) + rl.FewRows(set.Problems, "problems") + "\n")
		var rows [][]string
		for k, f := range set.Pass {
			if k == 0 || k+1 == set.N || k&(k+1) == 0 { // 1, 2, 4, 8 … n
				rows = append(rows, report.EstimateRow(fmt.Sprintf("pass@%d", k+1), f))
			}
		}
		rows = append(rows, report.EstimateRow(fmt.Sprintf("majority@%d", set.N), set.Majority), report.EstimateRow("mean", set.Mean))
		if set.TestRate != nil {
			rows = append(rows, []string{"tests passed, best sample", fmt.Sprintf("%.4f", *set.TestRate), ""})
		}
		b.WriteString(report.RenderTable([]string{"metric", "value", "95 % CI"}, rows))
		if set.Classes != nil {
			b.WriteString("outcomes: " + classes(set.Classes) + "\n")
		}
		if use := set.tools(); use != nil {
			fmt.Fprintf(&b, "tool calls: read=%s failed=%s malformed=%s\n", report.Count(int64(use.Calls)), report.Count(int64(use.Failed)), report.Count(int64(use.Malformed)))
		}
		if len(set.Kinds) > 0 {
			rows = nil
			for _, kind := range set.Kinds {
				rows = append(rows, append(report.EstimateRow(kind.Kind, kind.Mean), fmt.Sprintf("%.4f", kind.PassN.Value), report.Count(int64(kind.Problems))))
			}
			b.WriteString("\n" + report.RenderTable([]string{"kind", "pass@1", "95 % CI", fmt.Sprintf("pass@%d", set.N), "problems"}, rows))
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// tools counts the tool calls of all samples; nil without tools.
func (s problemSet) tools() (sum *envs.ToolUse) {
	for _, row := range s.Rows {
		for _, one := range row.Samples {
			if one.Tools == nil {
				continue
			}
			if sum == nil {
				sum = &envs.ToolUse{}
			}
			sum.Calls, sum.Failed, sum.Malformed = sum.Calls+one.Tools.Calls, sum.Failed+one.Tools.Failed, sum.Malformed+one.Tools.Malformed
		}
	}
	return sum
}

// skipped warns of problems and samples without a verdict.
func (s problemSet) skipped(maxNew int) string {
	text := ""
	if s.TooLong > 0 {
		text += fmt.Sprintf("warning: skipped %d problems that leave no room for %d new tokens\n", s.TooLong, maxNew)
	}
	if s.Failed > 0 {
		text += fmt.Sprintf("warning: %d samples failed and count as wrong; first error: %s\n", s.Failed, s.Failure)
	}
	if s.Unscored > 0 {
		text += fmt.Sprintf("warning: skipped %d samples that could not be scored; first error: %s\n", s.Unscored, s.Why)
	}
	return text
}

// problemComparison is the content of compare's --output for two language models on the same problems.
type problemComparison struct {
	A           problemResults  `json:"a"`
	B           problemResults  `json:"b"`
	Comparisons []setComparison `json:"comparisons"` // in the order of the data sets
}

// setComparison compares the problems of a data set that both models attempted.
type setComparison struct {
	Dataset string `json:"dataset,omitempty"`
	rl.AttemptsComparison
}

// rejectModelFlags rejects --model and --adapter.
func rejectModelFlags(c *cli.Context) error {
	for _, name := range []string{"model", "adapter"} {
		if c.IsSet(name) {
			return shared.UsageErrorf("--%s: does not apply; name two folders of models or adapters as arguments", name)
		}
	}
	return nil
}

// compareProblems compares two language models on the problems of a task.
func compareProblems(c *cli.Context) error {
	if err := rejectModelFlags(c); err != nil {
		return err
	}
	x, err := newProblemEval(c)
	if err != nil {
		return err
	}
	return intoResults(c, func(ctx context.Context) (fmt.Stringer, error) {
		var results problemComparison
		for i, into := range []*problemResults{&results.A, &results.B} {
			if *into, err = x.measure(ctx, c, c.Args().Get(i), ""); err != nil {
				return nil, err
			}
		}
		for i, a := range results.A.Sets {
			var fromA, fromB []rl.Attempts
			for _, row := range a.Rows {
				if other, ok := results.B.Sets[i].infos[row.Index]; ok {
					fromA, fromB = append(fromA, row.infos), append(fromB, other)
				}
			}
			if len(fromA) == 0 {
				return nil, errors.New("no problem fits into the context of both models")
			}
			results.Comparisons = append(results.Comparisons, setComparison{a.Dataset, rl.CompareAttempts(fromA, fromB)})
		}
		return results, nil
	})
}

// String returns the tables that compare prints.
func (r problemComparison) String() string {
	var b strings.Builder
	for i, compared := range r.Comparisons {
		on := compared.Dataset
		if on == "" {
			on = r.A.Task
		}
		fmt.Fprintf(&b, "%s: problems=%s samples_per_problem=%d temperature=%g\nA: %s\nB: %s\n",
			on, report.Count(int64(compared.Problems)), len(compared.Pass), r.A.Temperature, r.A.Model, r.B.Model)
		b.WriteString(r.A.Sets[i].skipped(r.A.MaxNew) + r.B.Sets[i].skipped(r.B.MaxNew) + rl.FewRows(compared.Problems, "problems") + "\n")
		var rows [][]string
		for k, d := range compared.Pass {
			if n := len(compared.Pass); k == 0 || k+1 == n || k&(k+1) == 0 {
				rows = append(rows, report.DifferenceRow(fmt.Sprintf("pass@%d", k+1), d))
			}
		}
		rows = append(rows, report.DifferenceRow(fmt.Sprintf("majority@%d", len(compared.Pass)), compared.Majority))
		for _, kind := range compared.Kinds {
			rows = append(rows, report.DifferenceRow("pass@1 of "+kind.Kind, kind.Mean))
		}
		b.WriteString(report.RenderTable([]string{"metric", "A", "B", "B - A", "95 % CI"}, rows))
		if i+1 < len(r.Comparisons) {
			b.WriteString("\n")
		}
	}
	return b.String()
}
