package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

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
		b.WriteString(r.A.Sets[i].skipped(r.A.MaxNew) + r.B.Sets[i].skipped(r.B.MaxNew) + "\n")
		var rows [][]string
		for k, d := range compared.Pass {
			if n := len(compared.Pass); k == 0 || k+1 == n || k&(k+1) == 0 {
				rows = append(rows, differenceRow(fmt.Sprintf("pass@%d", k+1), d))
			}
		}
		rows = append(rows, differenceRow(fmt.Sprintf("majority@%d", len(compared.Pass)), compared.Majority))
		for _, kind := range compared.Kinds {
			rows = append(rows, differenceRow("pass@1 of "+kind.Kind, kind.Mean))
		}
		b.WriteString(report.RenderTable([]string{"metric", "A", "B", "B - A", "95 % CI"}, rows))
		if i+1 < len(r.Comparisons) {
			b.WriteString("\n")
		}
	}
	return b.String()
}

func differenceRow(name string, d rl.Difference) []string {
	return []string{name, fmt.Sprintf("%.4f", d.A), fmt.Sprintf("%.4f", d.B), fmt.Sprintf("%+.4f", d.Difference),
		fmt.Sprintf("%+.4f to %+.4f", d.Interval[0], d.Interval[1])}
}
