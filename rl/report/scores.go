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
	After  *rl.AnswerScores `json:"after"` // of the weights that are kept: the best evaluation, so chosen by these episodes
	Last   *rl.AnswerScores `json:"last"`  // after the last step
	// Fresh is of the kept weights, on episodes that the run has not used; nil where the task has none left.
	Fresh *rl.AnswerScores `json:"fresh,omitempty"`
}

// LabelDifference is logs/comparison.json of a classifier's RL stage: what the stage has changed, on the test rows.
type LabelDifference struct {
	Before string `json:"before"` // folder of the policy that the stage began with
	// Reward is the reward expected over the policy's own choice of label, which is what the stage is trained for; absent
	// where labels cannot be enumerated.
	Reward *rl.Difference `json:"reward,omitempty"`
	rl.Comparison
}

// Section is a table of a report with its heading.
type Section struct {
	Title string
	Table
}

// sections are the tables of what was measured in the run of dir, as far as it was.
func sections(dir string) ([]Section, error) {
	all, err := scoreSections("Evaluation", filepath.Join(dir, "logs", "eval_results.json"))
	if err != nil {
		return nil, err
	}
	var d LabelDifference
	if found, err := readOptional(filepath.Join(dir, "logs", "comparison.json"), &d); err != nil {
		return nil, err
	} else if found {
		all = append(all, Section{"What the stage has changed", differenceTable(d)})
	}
	later, err := scoreSections("Evaluation by rltrain eval", filepath.Join(dir, EvalFolder, "logs", "eval_results.json"))
	return append(all, later...), err
}

// EvalFolder is the folder in that of a run where a later evaluation of it leaves its results.
const EvalFolder = "eval"

// scoreSections are the tables of an eval_results.json, whichever of the four forms it has.
func scoreSections(title, path string) ([]Section, error) {
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
		if _, err := readOptional(path, &e); err != nil {
			return nil, err
		}
		return []Section{{title, scoreTable(e)}, {"Classes", classTable(e)}, {"Most often confused", confusedTable(e)}}, nil
	case form.Best != nil:
		var r preferenceResults
		if _, err := readOptional(path, &r); err != nil {
			return nil, err
		}
		return []Section{{title, r.table()}}, nil
	case form.Before != nil || form.After != nil:
		var r AnswerResults
		if _, err := readOptional(path, &r); err != nil {
			return nil, err
		}
		return answerSections(title, r.Named()), nil
	case form.Format != nil:
		var s rl.AnswerScores
		if _, err := readOptional(path, &s); err != nil {
			return nil, err
		}
		return answerSections(title, []NamedScores{{"After training", s}}), nil
	}
	return nil, nil
}

// readOptional reads JSON, and tells whether the file is there.
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

// NamedScores is an evaluation and when it was made.
type NamedScores struct {
	Name string
	rl.AnswerScores
}

// Named are the evaluations that were made, in order.
func (r AnswerResults) Named() []NamedScores {
	var all []NamedScores
	for _, one := range []struct {
		name   string
		scores *rl.AnswerScores
	}{{"Before", r.Before}, {"After, the best evaluation", r.After}, {"After the last step", r.Last}, {"After, on fresh exercises", r.Fresh}} {
		if one.scores != nil {
			all = append(all, NamedScores{one.name, *one.scores})
		}
	}
	return all
}

// AnswerTable has an evaluation in each row.
func AnswerTable(all []NamedScores) Table {
	t := Table{Headers: []string{"", "answers", "right", "% right", "95 % interval", "% in the form asked for"}}
	for _, s := range all {
		t.Rows = append(t.Rows, []string{s.Name, Count(int64(s.N)), Count(int64(s.Correct)), fmt.Sprintf("%.1f", 100*s.Accuracy),
			fmt.Sprintf("%.1f to %.1f", 100*s.Interval[0], 100*s.Interval[1]), fmt.Sprintf("%.1f", 100*s.FormatRate)})
	}
	return t
}

// answerSections are the table of evaluations, and where the task tells kinds apart that of kinds.
func answerSections(title string, all []NamedScores) []Section {
	sections := []Section{{title, AnswerTable(all)}}
	kinds := Table{Headers: []string{"kind, right of all"}}
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
			row = append(row, fmt.Sprintf("%d of %d", s.Kinds[name].Correct, s.Kinds[name].N))
		}
		kinds.Rows = append(kinds.Rows, row)
	}
	if len(kinds.Rows) > 0 {
		sections = append(sections, Section{"By kind of exercise", kinds})
	}
	return sections
}

func scoreTable(e rl.Evaluation) Table {
	t := Table{Headers: []string{fmt.Sprintf("on %s rows", Count(int64(e.N))), "value", "95 % interval"}}
	add := func(name string, value float64, in rl.Interval) {
		t.Rows = append(t.Rows, []string{name, fmt.Sprintf("%.4f", value), fmt.Sprintf("%.4f to %.4f", in[0], in[1])})
	}
	add("accuracy", e.Accuracy, e.Intervals.Accuracy)
	add("macro F1", e.F1Macro, e.Intervals.F1Macro)
	add("weighted F1", e.F1Weighted, e.Intervals.F1Weighted)
	add("ECE", e.ECE, e.Intervals.ECE)
	add("Brier", e.Brier, e.Intervals.Brier)
	if e.LatencyP50 != nil && e.LatencyP95 != nil {
		t.Rows = append(t.Rows, []string{"latency, median", fmt.Sprintf("%.2f ms", *e.LatencyP50), ""},
			[]string{"latency, 95th percentile", fmt.Sprintf("%.2f ms", *e.LatencyP95), ""})
	}
	return t
}

func classTable(e rl.Evaluation) Table {
	t := Table{Headers: []string{"class", "precision", "recall", "F1", "rows"}}
	for _, c := range e.Classes {
		t.Rows = append(t.Rows, []string{
			c.Label, fmt.Sprintf("%.4f", c.Precision), fmt.Sprintf("%.4f", c.Recall), fmt.Sprintf("%.4f", c.F1), Count(int64(c.Support)),
		})
	}
	return t
}

// mostConfused is how many pairs of classes the report names.
const mostConfused = 10

// confusedTable has the pairs of classes that were taken for each other most often: what a picture of many classes does
// not tell.
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
	t := Table{Headers: []string{"true class", "was called", "rows"}}
	for _, p := range pairs[:min(mostConfused, len(pairs))] {
		t.Rows = append(t.Rows, []string{e.Classes[p.truth].Label, e.Classes[p.predicted].Label, Count(int64(p.rows))})
	}
	return t
}

func differenceTable(d LabelDifference) Table {
	t := Table{Headers: []string{fmt.Sprintf("against %s", d.Before), "before", "after", "difference", "95 % paired interval"}}
	add := func(name string, x rl.Difference) {
		t.Rows = append(t.Rows, []string{name, fmt.Sprintf("%.4f", x.A), fmt.Sprintf("%.4f", x.B), fmt.Sprintf("%+.4f", x.Difference),
			fmt.Sprintf("%+.4f to %+.4f", x.Interval[0], x.Interval[1])})
	}
	if d.Reward != nil {
		add("expected reward", *d.Reward)
	}
	add("accuracy", d.Accuracy)
	add("macro F1", d.F1Macro)
	add("ECE", d.ECE)
	add("Brier", d.Brier)
	return t
}
