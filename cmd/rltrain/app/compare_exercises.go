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

// examComparison is two language models on the same exercises: what compare writes to --output.
type examComparison struct {
	A           examResults      `json:"a"`
	B           examResults      `json:"b"`
	Comparisons []comparedOnASet `json:"comparisons"` // of the data sets, in their order
}

// comparedOnASet is of the exercises of a data set that both have tried.
type comparedOnASet struct {
	Dataset string `json:"dataset,omitempty"`
	rl.TriesComparison
}

// twoFolders refuses the options that name one model.
func twoFolders(c *cli.Context) error {
	for _, name := range []string{"model", "adapter"} {
		if c.IsSet(name) {
			return shared.UsageErrorf("--%s: compare takes two folders instead, of models or of adapters", name)
		}
	}
	return nil
}

// compareExercises measures two language models on the exercises of a task.
func compareExercises(c *cli.Context) error {
	if err := twoFolders(c); err != nil {
		return err
	}
	x, err := newExam(c)
	if err != nil {
		return err
	}
	return intoResults(c, func(ctx context.Context) (fmt.Stringer, error) {
		var results examComparison
		for i, into := range []*examResults{&results.A, &results.B} {
			if *into, err = x.take(ctx, c, c.Args().Get(i), ""); err != nil {
				return nil, err
			}
		}
		for i, a := range results.A.Sets {
			var triedByA, triedByB []rl.Tries
			for _, row := range a.Rows {
				if other, ok := results.B.Sets[i].tries[row.Index]; ok {
					triedByA, triedByB = append(triedByA, row.infos), append(triedByB, other)
				}
			}
			if len(triedByA) == 0 {
				return nil, errors.New("there is no exercise that both models can read")
			}
			results.Comparisons = append(results.Comparisons, comparedOnASet{a.Dataset, rl.CompareTries(triedByA, triedByB)})
		}
		return results, nil
	})
}

// String is the tables that compare prints.
func (r examComparison) String() string {
	var b strings.Builder
	for i, compared := range r.Comparisons {
		on := compared.Dataset
		if on == "" {
			on = "exercises of " + r.A.Task
		}
		fmt.Fprintf(&b, "%s: %s exercises that both tried %d times each, at temperature %g\nA: %s\nB: %s\n",
			on, report.Count(int64(compared.Exercises)), len(compared.Pass), r.A.Temperature, r.A.Model, r.B.Model)
		b.WriteString(r.A.Sets[i].leftOut(r.A.MaxNew) + r.B.Sets[i].leftOut(r.B.MaxNew) + "\n")
		var rows [][]string
		for k, d := range compared.Pass {
			if n := len(compared.Pass); k == 0 || k+1 == n || k&(k+1) == 0 {
				rows = append(rows, differenceRow(fmt.Sprintf("pass@%d", k+1), d))
			}
		}
		rows = append(rows, differenceRow(fmt.Sprintf("majority@%d", len(compared.Pass)), compared.Majority))
		for _, kind := range compared.Kinds {
			rows = append(rows, differenceRow("mean of "+kind.Kind, kind.Mean))
		}
		b.WriteString(report.RenderTable([]string{"figure", "A", "B", "B - A", "95 % interval"}, rows))
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
