package train

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// write measures the trained policy on the test rows, and writes its results, pictures and card.
func (t *labelRun) write(ctx context.Context, stage *run.Stage, p *policy.Classifier, e examples, name string) error {
	if err := t.measure(ctx, p, e.test, name, stage.Home()); err != nil {
		return err
	}
	latency, err := shared.MeasureLatency(ctx, p, e.test.IDs)
	if err != nil {
		return err
	}
	result := &t.results[len(t.results)-1]
	result.evaluation.SetLatency(latency)
	if err := save(stage, "eval_results.json", shared.LabelResults{Model: stage.Home(), Dataset: t.dataName(), Split: "test", Cut: e.test.Cut, Evaluation: result.evaluation}); err != nil {
		return err
	}
	if t.config.Task.Stamped && name == rlStage {
		if err := drawTraining(stage, mostFrequent(e.val.Labels, len(p.Labels))); err != nil {
			return err
		}
	}
	if err := report.DrawEvaluation(filepath.Join(stage.Dir(), "plots"), p.Labels, result.truth, result.probs, result.evaluation.Confusion); err != nil {
		return err
	}
	_, err = report.WriteCard(stage.Dir(), t.card(p, *result))
	return err
}

// mostFrequent is the fraction of the most frequent of some labels.
func mostFrequent(labels []int, classes int) float64 {
	counts := make([]int, classes)
	for _, label := range labels {
		counts[label]++
	}
	return float64(slices.Max(counts)) / float64(len(labels))
}

func (t *labelRun) card(p *policy.Classifier, r labelResult) report.Card {
	e := r.evaluation
	return report.Card{
		Name: filepath.Base(r.dir), Stage: r.name, BaseModel: p.BaseModel, Adapter: true, Pooling: p.Pooling,
		MaxLength: p.MaxLength, Labels: p.Labels,
		Data: fmt.Sprintf("%s: %d training, %d validation and %d test rows", t.dataName(), len(t.data.train), len(t.data.val), len(t.data.test)),
		Results: report.Table{
			Headers: []string{"n", "accuracy", "F1 macro", "F1 weighted", "ECE", "Brier"},
			Rows: [][]string{{strconv.Itoa(e.N), fmt.Sprintf("%.4f", e.Accuracy), fmt.Sprintf("%.4f", e.F1Macro),
				fmt.Sprintf("%.4f", e.F1Weighted), fmt.Sprintf("%.4f", e.ECE), fmt.Sprintf("%.4f", e.Brier)}},
		},
		Settings: report.Settings(t.config.YAML()), Versions: cardVersions(),
	}
}

// compare prints the stages side by side on the test rows.
func (t *labelRun) compare(ctx context.Context) error {
	results := t.results
	percent := func(x float64) string { return strconv.FormatFloat(100*x, 'f', 1, 64) }
	rows := [][]string{}
	for _, r := range results {
		e := r.evaluation
		rows = append(rows, []string{r.name, strconv.Itoa(e.N),
			fmt.Sprintf("%s  [%s, %s]", percent(e.Accuracy), percent(e.Intervals.Accuracy[0]), percent(e.Intervals.Accuracy[1])),
			percent(e.F1Macro), percent(e.F1Weighted), fmt.Sprintf("%.4f", e.ECE), fmt.Sprintf("%.4f", e.Brier)})
	}
	if err := t.console.Print("\nHeld-out test rows:\n" + report.RenderTable([]string{"stage", "n", "accuracy % [95 %]", "F1 macro %", "F1 weighted %", "ECE", "Brier"}, rows)); err != nil {
		return err
	}
	if len(results) == 2 {
		if err := t.difference(ctx, results[0], results[1]); err != nil {
			return err
		}
	}
	last := results[len(results)-1].dir
	return t.console.Print("Saved in " + last + ". Try: echo " + shared.ShellQuote(exampleLine(t.data.test[0].Text)) + " | rltrain predict --model " + shared.ShellWord(last))
}

// difference prints and saves what RL has changed.
func (t *labelRun) difference(ctx context.Context, before, after labelResult) error {
	d := report.LabelDifference{Before: before.dir, Comparison: rl.Compare(len(t.data.labels), before.truth, before.probs, after.probs)}
	rewards, done, err := t.labelRewards(ctx, t.data.labels)
	if err != nil {
		return err
	}
	defer done()
	line := ""
	if rewards.Enumerable() {
		r := rl.CompareMeans(expected(rewards, before), expected(rewards, after))
		d.Reward = &r
		line = fmt.Sprintf("expected reward %+.4f [%+.4f, %+.4f], ", r.Difference, r.Interval[0], r.Interval[1])
	}
	if err := files.SaveJSON(filepath.Join(after.dir, "logs", "comparison.json"), d); err != nil {
		return err
	}
	return t.console.Print(fmt.Sprintf("Change by RL, 95 %% paired intervals: %saccuracy %+.1f points [%+.1f, %+.1f], ECE %+.4f [%+.4f, %+.4f], Brier %+.4f [%+.4f, %+.4f]\n",
		line, 100*d.Accuracy.Difference, 100*d.Accuracy.Interval[0], 100*d.Accuracy.Interval[1],
		d.ECE.Difference, d.ECE.Interval[0], d.ECE.Interval[1], d.Brier.Difference, d.Brier.Interval[0], d.Brier.Interval[1]))
}

// expected is the reward of each test row expected over the policy's choice of label.
func expected(rewards *reward.Labels, r labelResult) []float64 {
	scores, _ := rewards.Expected(r.truth, slices.Concat(r.probs...))
	return scores.Total
}
