package app

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// evalExercises measures a language model on the exercises of a task.
func evalExercises(c *cli.Context) error {
	if c.String("model") == "" {
		return shared.UsageErrorf("eval --task %s needs --model DIR, the folder of a language model or of an adapter, or --completions FILE", c.String("task"))
	}
	x, err := newExam(c)
	if err != nil {
		return err
	}
	return intoResults(c, func(ctx context.Context) (fmt.Stringer, error) {
		return x.take(ctx, c, c.String("model"), c.String("adapter"))
	})
}

// intoResults refuses an output that cannot be written, measures on the compute thread, and prints what comes of it.
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

// printResults prints results, and writes them to a file if one is named.
func printResults(c *cli.Context, output string, results fmt.Stringer) error {
	text := results.String()
	if output != "" {
		if err := files.SaveJSON(output, results); err != nil {
			return err
		}
		text += "\nWritten: " + output + "\n"
	}
	_, err := fmt.Fprint(c.App.Writer, text)
	return err
}

// newResults makes the folder of a file of results, "" for none, which must not be the one that a training run left.
func newResults(output string) error {
	if output == "" {
		return nil
	}
	if dir, ok := runOf(output); ok {
		return shared.UsageErrorf("--output: %s is what the training run in %s measured; choose another file", output, dir)
	}
	return makeDirs(filepath.Dir(output))
}

// runOf is the folder of the training run that wrote a file of results.
func runOf(output string) (dir string, ok bool) {
	logs := filepath.Dir(output)
	dir = filepath.Dir(logs)
	if filepath.Base(output) != "eval_results.json" || filepath.Base(logs) != "logs" {
		return dir, false
	}
	for _, path := range []string{output, filepath.Join(dir, "run.json")} {
		if _, err := os.Stat(path); err != nil {
			return dir, false
		}
	}
	return dir, true
}

// String is the tables that eval prints.
func (r examResults) String() string {
	var b strings.Builder
	for _, set := range r.Sets {
		on := set.Dataset
		if on == "" {
			on = "exercises of " + r.Task
		}
		fmt.Fprintf(&b, "%s on %s, task %s: %s exercises, %d tries at each at temperature %g, %.1f %% in the form asked for\n",
			r.Model, on, r.Task, report.Count(int64(set.Exercises)), set.N, r.Temperature, 100*set.FormatRate)
		b.WriteString(set.leftOut(r.MaxNew) + "\n")
		var rows [][]string
		for k, f := range set.Pass {
			if k == 0 || k+1 == set.N || k&(k+1) == 0 { // 1, 2, 4, 8 … n
				rows = append(rows, figureRow(fmt.Sprintf("pass@%d", k+1), f))
			}
		}
		rows = append(rows, figureRow(fmt.Sprintf("majority@%d", set.N), set.Majority), figureRow("mean", set.Mean))
		if set.TestRate != nil {
			rows = append(rows, []string{"tests passed by the best", fmt.Sprintf("%.4f", *set.TestRate), ""})
		}
		b.WriteString(report.RenderTable([]string{"figure", "value", "95 % interval"}, rows))
		if set.Classes != nil {
			b.WriteString("how they ended: " + classes(set.Classes) + "\n")
		}
		if len(set.Kinds) > 0 {
			rows = nil
			for _, kind := range set.Kinds {
				rows = append(rows, append(figureRow(kind.Kind, kind.Mean), fmt.Sprintf("%.4f", kind.PassN.Value), report.Count(int64(kind.Exercises))))
			}
			b.WriteString("\n" + report.RenderTable([]string{"kind", "mean", "95 % interval", fmt.Sprintf("pass@%d", set.N), "exercises"}, rows))
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func figureRow(name string, f rl.Estimate) []string {
	return []string{name, fmt.Sprintf("%.4f", f.Value), fmt.Sprintf("%.4f to %.4f", f.Interval[0], f.Interval[1])}
}

// leftOut says what could not be tried.
func (s examSet) leftOut(maxNew int) string {
	text := ""
	if s.TooLong > 0 {
		text += fmt.Sprintf("warning: %d exercises leave no room for an answer of %d tokens, and are left out\n", s.TooLong, maxNew)
	}
	if s.Failed > 0 {
		text += fmt.Sprintf("warning: %d tries failed and count as not right; the first: %s\n", s.Failed, s.Failure)
	}
	if s.Unjudged > 0 {
		text += fmt.Sprintf("warning: %d tries could not be judged, and are left out; the first: %s\n", s.Unjudged, s.Why)
	}
	return text
}
