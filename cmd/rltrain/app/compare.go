package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

// compareResults is the content of compare's --output for classifiers.
type compareResults struct {
	A          shared.LabelResults `json:"a"`
	B          shared.LabelResults `json:"b"`
	Comparison rl.Comparison       `json:"comparison"`
}

func compareCommand() *cli.Command {
	return &cli.Command{
		Name:      "compare",
		Usage:     "compare two models on the same data",
		ArgsUsage: "DIR_A DIR_B",
		Description: `Compares:
  - two classifiers on the same texts
  - two language models on the same problems, with --task NAME
  - two language models by the rewards of their responses to the same prompts, with --task preference --dataset PROMPTS
    and --reward model:DIR (a reward model) or --reward rubric:FILE --judge DIR (an LLM as judge)

Differences are B - A, with 95 % intervals from a paired bootstrap over texts, problems or prompts.`,
		Flags: joinFlags(rowFlags(), []cli.Flag{
			shared.TaskFlag(slices.Concat(labelTasks(), problemTasks(), preferenceTasks())...), &cli.StringFlag{Name: "output", Usage: "write the results to this JSON file"},
			answerMatchFlag(),
		}, languageModelFlags(), problemFlags(), rewardFlags()),
		Action: compare,
	}
}

// compare compares two models, and shows in which settings their runs differ.
func compare(c *cli.Context) error {
	if err := compareModels(c); err != nil {
		return err
	}
	differ, err := report.DifferingSettings(c.Args().Get(0), c.Args().Get(1))
	if err != nil || len(differ.Rows) == 0 {
		return err
	}
	_, err = fmt.Fprint(c.App.Writer, "\n"+differ.String())
	return err
}

func compareModels(c *cli.Context) error {
	task := c.String("task")
	if slices.Contains(preferenceTasks(), task) {
		return compareRewards(c)
	}
	if !slices.Contains(labelTasks(), task) {
		return compareProblems(c)
	}
	if err := onlyFlags(c, "to task "+task, []string{"task", "output"}, rowFlags()); err != nil {
		return err
	}
	for _, dir := range c.Args().Slice() {
		if err := noClassifier(c, dir); err != nil {
			return err
		}
	}
	chosen, err := chooseRows(c)
	if err != nil {
		return err
	}
	return intoResults(c, func(ctx context.Context) (fmt.Stringer, error) { return compareLabels(ctx, c, chosen) })
}

// compareLabels compares two classifiers on the same rows.
func compareLabels(ctx context.Context, c *cli.Context, chosen chosenRows) (results compareResults, err error) {
	var policies [2]*policy.Classifier
	var examples [2]policy.Examples
	for i := range policies {
		if policies[i], err = loadPolicy(c, c.Args().Get(i)); err != nil {
			return results, err
		}
		defer policies[i].Close()
	}
	a, b := policies[0], policies[1]
	order, err := matchLabels(c.Args().Slice(), a.Labels, b.Labels)
	if err != nil {
		return results, err
	}
	for i, p := range policies {
		if examples[i], err = chosen.encode(p); err != nil {
			return results, err
		}
	}
	var probs [2][][]float32
	for i, into := range []*shared.LabelResults{&results.A, &results.B} {
		if *into, probs[i], err = evaluateLabels(ctx, c, c.Args().Get(i), chosen, policies[i], examples[i]); err != nil {
			return results, err
		}
	}
	for i, p := range probs[1] {
		probs[1][i] = reorder(p, order)
	}
	results.Comparison = rl.Compare(len(a.Labels), examples[0].Labels, probs[0], probs[1])
	return results, nil
}

// matchLabels returns the index in b of each label of a. Both must have the same labels. dirs names the models in errors.
func matchLabels(dirs, a, b []string) (order []int, err error) {
	var parts []string
	for i, sets := range [2][2][]string{{a, b}, {b, a}} {
		var only []string
		for _, label := range sets[0] {
			if !slices.Contains(sets[1], label) {
				only = append(only, fmt.Sprintf("%q", label))
			}
		}
		if len(only) > 0 {
			parts = append(parts, fmt.Sprintf("only %s has %s", dirs[i], shortList(only)))
		}
	}
	if len(parts) > 0 {
		return nil, fmt.Errorf("the models have different labels: %s", strings.Join(parts, "; "))
	}
	for _, label := range a {
		order = append(order, slices.Index(b, label))
	}
	return order, nil
}

// shortList joins up to five names.
func shortList(names []string) string {
	const most = 5
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// reorder returns p with its labels in the given order.
func reorder(p []float32, order []int) []float32 {
	out := make([]float32, len(p))
	for i, from := range order {
		out[i] = p[from]
	}
	return out
}

// String returns the tables that compare prints.
func (r compareResults) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, split %s: %s\nA: %s\nB: %s\n\n", r.A.Dataset, r.A.Split, shared.Texts(r.A.N, max(r.A.Cut, r.B.Cut)), r.A.Model, r.B.Model)
	rows := report.ComparisonRows(r.Comparison)
	for _, f := range []struct {
		name string
		a, b *float64
	}{{"latency p50, ms", r.A.LatencyP50, r.B.LatencyP50}, {"latency p95, ms", r.A.LatencyP95, r.B.LatencyP95}} {
		rows = append(rows, []string{f.name, fmt.Sprintf("%.2f", *f.a), fmt.Sprintf("%.2f", *f.b), fmt.Sprintf("%+.2f", *f.b-*f.a)})
	}
	b.WriteString(report.RenderTable([]string{"metric", "A", "B", "B - A", "95 % CI"}, rows) + "\n")
	rows = nil
	f1 := map[string]float64{}
	for _, class := range r.B.Classes {
		f1[class.Label] = class.F1
	}
	for _, class := range r.A.Classes {
		rows = append(rows, []string{class.Label, fmt.Sprintf("%.4f", class.F1), fmt.Sprintf("%.4f", f1[class.Label]),
			fmt.Sprintf("%+.4f", f1[class.Label]-class.F1), report.Count(int64(class.Support))})
	}
	b.WriteString(report.RenderTable([]string{"F1 by class", "A", "B", "B - A", "texts"}, rows))
	return b.String()
}
