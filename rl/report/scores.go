package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/rltrain/rltrain/rl"
)

// AnswerResults is logs/eval_results.json of a language model's RL stage.
type AnswerResults struct {
	Before *rl.AnswerScores `json:"before"`
	After  *rl.AnswerScores `json:"after"` // saved weights: the best evaluation, so biased upwards by the choice
	Last   *rl.AnswerScores `json:"last"`  // last step
	// Fresh evaluates the saved weights on unseen episodes; nil if the task has none left.
	Fresh *rl.AnswerScores `json:"fresh,omitempty"`
}

// LabelDifference is logs/comparison.json of a classifier's RL stage: the change from before to after, on the test rows.
type LabelDifference struct {
	Before string `json:"before"` // folder of the policy before the stage
	// Reward is the expected reward E[r] over labels sampled from the policy, which the stage maximises; nil if the labels
	// cannot be enumerated.
	Reward *rl.Difference `json:"reward,omitempty"`
	rl.Comparison
}

// Titles of sections.
const (
	evaluationTitle = "Evaluation"
	changeTitle     = "Change by this stage"
)

// Section is a table of a report with its heading.
type Section struct {
	Title string
	Table
}

// sections returns the tables of all evaluations of the run in dir.
func sections(dir string) ([]Section, error) {
	all, err := scoreSections(evaluationTitle, filepath.Join(dir, "logs", "eval_results.json"))
	if err != nil {
		return nil, err
	}
	var d LabelDifference
	if found, err := readOptional(filepath.Join(dir, "logs", "comparison.json"), &d); err != nil {
		return nil, err
	} else if found {
		all = append(all, Section{changeTitle, differenceTable(d)})
	}
	later, err := scoreSections("Evaluation by rltrain eval", filepath.Join(dir, EvalFolder, "logs", "eval_results.json"))
	return append(all, later...), err
}

// EvalFolder, in the folder of a run, holds the results of rltrain eval.
const EvalFolder = "eval"

// scoreSections returns the tables of an eval_results.json of any of the four kinds.
func scoreSections(title, path string) (all []Section, err error) {
	var form struct {
		F1     *float64         `json:"f1_macro"`
		Before *json.RawMessage `json:"before"`
		After  *json.RawMessage `json:"after"`
		Best   *json.RawMessage `json:"best"`
		Format *float64         `json:"format_rate"`
	}
	if found, err := readOptional(path, &form); err != nil || !found {
		return nil, err
	}
	switch {
	case form.F1 != nil:
		var e rl.Evaluation
		_, err = readOptional(path, &e)
		all = []Section{{title, ScoreTable(e)}, {"Classes", ClassTable(e)}, {"Most often confused", confusedTable(e)}}
	case form.Best != nil:
		var r preferenceResults
		_, err = readOptional(path, &r)
		all = []Section{{title, r.table()}}
	case form.Before != nil || form.After != nil:
		var r AnswerResults
		_, err = readOptional(path, &r)
		all = answerSections(title, r.Named())
	case form.Format != nil:
		var s rl.AnswerScores
		_, err = readOptional(path, &s)
		all = answerSections(title, []NamedScores{{"after training", s}})
	}
	return all, err
}

// readOptional reads JSON and reports whether the file exists.
func readOptional(path string, into any) (bool, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return true, nil
}

// NamedScores is an evaluation with a name that says when it ran.
type NamedScores struct {
	Name string
	rl.AnswerScores
}

// Named returns the evaluations in order.
func (r AnswerResults) Named() []NamedScores {
	var all []NamedScores
	for _, one := range []struct {
		name   string
		scores *rl.AnswerScores
	}{{"before", r.Before}, {"best", r.After}, {"last step", r.Last}, {"best, unseen test problems", r.Fresh}} {
		if one.scores != nil {
			all = append(all, NamedScores{one.name, *one.scores})
		}
	}
	return all
}

// AnswerTable has a row for each evaluation. Accuracy, interval and format rate are in percent; tasks without a format have no
// format rate.
func AnswerTable(all []NamedScores) Table {
	t := Table{Headers: []string{"held out", "n", "correct", "accuracy %", "95 % CI"}}
	format := slices.ContainsFunc(all, func(s NamedScores) bool { return !s.FreeForm })
	if format {
		t.Headers = append(t.Headers, "format rate %")
	}
	for _, s := range all {
		row := []string{s.Name, Count(int64(s.N)), Count(int64(s.Correct)), fmt.Sprintf("%.1f", 100*s.Accuracy),
			fmt.Sprintf("%.1f–%.1f", 100*s.Interval[0], 100*s.Interval[1])}
		if format {
			row = append(row, fmt.Sprintf("%.1f", 100*s.FormatRate))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// answerSections returns the table of evaluations and, if the task has kinds of episodes, the table of kinds.
func answerSections(title string, all []NamedScores) []Section {
	sections := []Section{{title, AnswerTable(all)}}
	kinds := Table{Headers: []string{"kind, correct / n"}}
	rows := map[string][]string{}
	for _, s := range all {
		kinds.Headers = append(kinds.Headers, s.Name)
		for name := range s.Kinds {
			rows[name] = nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		row := []string{name}
		for _, s := range all {
			row = append(row, fmt.Sprintf("%d/%d", s.Kinds[name].Correct, s.Kinds[name].N))
		}
		kinds.Rows = append(kinds.Rows, row)
	}
	if len(kinds.Rows) > 0 {
		sections = append(sections, Section{"By kind of problem", kinds})
	}
	return sections
}

// ScoreTable has a row for each metric of a classifier.
func ScoreTable(e rl.Evaluation) Table {
	in := e.Intervals
	t := Table{Headers: []string{fmt.Sprintf("n = %s", Count(int64(e.N))), "value", "95 % CI"}, Rows: [][]string{
		EstimateRow("accuracy", rl.Estimate{Value: e.Accuracy, Interval: in.Accuracy}),
		EstimateRow("macro F1", rl.Estimate{Value: e.F1Macro, Interval: in.F1Macro}),
		EstimateRow("weighted F1", rl.Estimate{Value: e.F1Weighted, Interval: in.F1Weighted}),
		EstimateRow("ECE", rl.Estimate{Value: e.ECE, Interval: in.ECE}),
		EstimateRow("Brier", rl.Estimate{Value: e.Brier, Interval: in.Brier}),
	}}
	if e.LatencyP50 != nil && e.LatencyP95 != nil {
		t.Rows = append(t.Rows, []string{"latency p50", fmt.Sprintf("%.2f ms", *e.LatencyP50), ""},
			[]string{"latency p95", fmt.Sprintf("%.2f ms", *e.LatencyP95), ""})
	}
	return t
}

// EstimateRow is a metric with its interval.
func EstimateRow(name string, e rl.Estimate) []string {
	return []string{name, fmt.Sprintf("%.4f", e.Value), fmt.Sprintf("%.4f–%.4f", e.Interval[0], e.Interval[1])}
}

// ClassTable has a row for each class of a classifier.
func ClassTable(e rl.Evaluation) Table {
	t := Table{Headers: []string{"class", "precision", "recall", "F1", "rows"}}
	for _, c := range e.Classes {
		t.Rows = append(t.Rows, []string{
			c.Label, fmt.Sprintf("%.4f", c.Precision), fmt.Sprintf("%.4f", c.Recall), fmt.Sprintf("%.4f", c.F1), Count(int64(c.Support)),
		})
	}
	return t
}

// mostConfused limits the pairs of classes in a report.
const mostConfused = 10

// confusedTable lists the most frequently confused pairs of classes, which a picture of many classes does not show.
func confusedTable(e rl.Evaluation) Table {
	type pair struct{ truth, predicted, rows int }
	var pairs []pair
	for i, row := range e.Confusion {
		for j, n := range row {
			if i != j && n > 0 && i < len(e.Classes) && j < len(e.Classes) {
				pairs = append(pairs, pair{i, j, n})
			}
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return b.rows - a.rows })
	t := Table{Headers: []string{"true class", "predicted", "rows"}}
	for _, p := range pairs[:min(mostConfused, len(pairs))] {
		t.Rows = append(t.Rows, []string{e.Classes[p.truth].Label, e.Classes[p.predicted].Label, Count(int64(p.rows))})
	}
	return t
}

func differenceTable(d LabelDifference) Table {
	t := Table{Headers: []string{"before: " + d.Before, "before", "after", "difference", "95 % CI, paired"}}
	if d.Reward != nil {
		t.Rows = append(t.Rows, DifferenceRow("expected reward", *d.Reward))
	}
	t.Rows = append(t.Rows, ComparisonRows(d.Comparison)...)
	return t
}

// ComparisonRows has a row for each metric of two classifiers.
func ComparisonRows(c rl.Comparison) [][]string {
	return [][]string{
		DifferenceRow("accuracy", c.Accuracy), DifferenceRow("macro F1", c.F1Macro), DifferenceRow("ECE", c.ECE), DifferenceRow("Brier", c.Brier),
	}
}

// DifferenceRow is a metric of both sides, and their difference with its interval.
func DifferenceRow(name string, d rl.Difference) []string {
	return []string{name, fmt.Sprintf("%.4f", d.A), fmt.Sprintf("%.4f", d.B), fmt.Sprintf("%+.4f", d.Difference),
		fmt.Sprintf("%+.4f to %+.4f", d.Interval[0], d.Interval[1])}
}
