package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	task "github.com/rltrain/rltrain/envs/decisions"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/decisions"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// decisionTasks lists the tasks of decision models.
func decisionTasks() []string { return tasksWhere(envs.Definition.Decides) }

// isDecider tells whether a model answers typed questions: a folder with decision.json, or a language model.
func isDecider(c *cli.Context, name string) (bool, error) {
	client, done := shared.HubOf(c)
	defer done()
	found, err := client.Model(c.Context, name, hub.Weights)
	if err != nil {
		return false, nil // the loader says why
	}
	return files.Exist(found.Dir, decision.ConfigFile) || !policy.IsClassifierFolder(found.Dir), nil
}

func loadDecider(c *cli.Context, name string) (*policy.Decider, error) {
	client, done := shared.HubOf(c)
	defer done()
	p, err := policy.LoadDecider(c.Context, client, name, c.String("dtype"), false, time.Now())
	if err != nil {
		return nil, fmt.Errorf("loading the model: %w", err)
	}
	return p, nil
}

// answeredRow is a row with its questions, or with what is wrong with it.
type answeredRow struct {
	fields dataset.Object
	asked  policy.Asked
	faults []task.Fault
}

// predictDecisions answers the questions of rows, several rows at once. A row that cannot be answered gets the reasons
// instead.
func predictDecisions(ctx context.Context, c *cli.Context, p *policy.Decider, input string) error {
	bad := 0
	err := toOutput(c, func(out io.Writer) error {
		var rows []answeredRow
		write := func() error {
			err := writeAnswers(ctx, out, p, rows)
			rows = rows[:0]
			return err
		}
		for r, err := range dataReader(c).Records(input) {
			if err != nil {
				return errors.Join(write(), err)
			}
			row := readQuestions(p, r)
			if row.faults != nil {
				bad++
			}
			if rows = append(rows, row); len(rows) == predictLines {
				if err := write(); err != nil {
					return err
				}
			}
		}
		return write()
	})
	if err == nil && bad > 0 {
		err = fmt.Errorf("%s: %d rows could not be answered; their field errors says why", input, bad)
	}
	return err
}

func readQuestions(p *policy.Decider, r dataset.Record) answeredRow {
	row := answeredRow{fields: r.Fields}
	cases, faults := task.Read(r)
	if row.faults = faults; faults != nil {
		return row
	}
	var err error
	if row.asked, err = p.AskCases(cases); err != nil {
		row.faults = []task.Fault{{File: r.File, Line: r.Line, Field: "questions", What: err.Error()}}
	}
	return row
}

// writeAnswers answers rows together and writes them in order.
func writeAnswers(ctx context.Context, out io.Writer, p *policy.Decider, rows []answeredRow) error {
	var all []policy.Asked
	for _, row := range rows {
		if row.faults == nil {
			all = append(all, row.asked)
		}
	}
	answers, err := p.Answer(ctx, all)
	if err != nil {
		return err
	}
	for _, row := range rows {
		var added any
		if row.faults != nil {
			added = struct {
				Errors []task.Fault `json:"errors"`
			}{row.faults}
		} else {
			text, err := jinja.JSON(answers[0])
			if err != nil {
				return err
			}
			answers = answers[1:]
			added = struct {
				Answers json.RawMessage `json:"answers"`
			}{json.RawMessage(text)}
		}
		if err := writeRow(out, row.fields, added); err != nil {
			return err
		}
	}
	return nil
}

// decisionResults are the content of eval_results.json.
type decisionResults struct {
	Model   string `json:"model"`
	Dataset string `json:"dataset"`
	Split   string `json:"split"`
	decisions.Evaluation
	Temperature map[string]float64    `json:"temperature,omitempty"`
	Cost        *decisions.CostScores `json:"cost,omitempty"`
}

// evalDecisions measures answers to the rows of a data set.
func evalDecisions(c *cli.Context) error {
	if err := onlyFlags(c, "to task "+c.String("task"), []string{"task", "model", "dtype", "output", "output-dir", "cost", "dataset", "dataset-config", "text-column", "label-column", "split", "threads", "device"}); err != nil {
		return err
	}
	name, err := model(c)
	if err != nil {
		return err
	}
	cases, held, split, err := chooseDecisions(c)
	if err != nil {
		return err
	}
	var costs reward.CostMatrix
	if path := c.String("cost"); path != "" {
		if costs, err = reward.ReadCosts(path); err != nil {
			return shared.UsageErrorf("--cost: %v", err)
		}
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		p, err := loadDecider(c, name)
		if err != nil {
			return err
		}
		defer p.Close()
		probs, err := decide(ctx, p, cases)
		if err != nil {
			return err
		}
		results := decisionResults{Model: name, Dataset: c.String("dataset"), Split: split, Evaluation: decisions.Evaluate(cases, probs), Temperature: p.Asker.Temperature}
		headers, rows := results.Table()
		text := report.RenderTable(headers, rows) + "\n" + coverage(results.Selective)
		if costs != nil {
			on, heldProbs := dataset.Val, [][]float64(nil)
			if len(held) == 0 {
				on, held, heldProbs = split+", the measured rows", cases, probs
			} else if heldProbs, err = decide(ctx, p, held); err != nil {
				return err
			}
			s := decisions.Cost(costs, cases, probs, held, heldProbs, on)
			results.Cost = &s
			text += "\n" + s.String()
		}
		folder := filepath.Join(name, report.EvalFolder)
		if !files.Exist(name) && c.String("output-dir") == "" {
			folder = report.EvalFolder
		}
		logs, plots := inFolder(c, folder, "logs"), inFolder(c, folder, "plots")
		path := cmp.Or(c.String("output"), filepath.Join(logs, "eval_results.json"))
		if err := makeDirs(filepath.Dir(path), plots); err != nil {
			return err
		}
		if err := drawDecisions(plots, cases, probs); err != nil {
			return err
		}
		if err := files.SaveJSON(path, results); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.App.Writer, "%s\nWrote %s, %s/reliability.png, %s/risk_coverage.png\n", text, path, plots, plots)
		return err
	})
}

func decide(ctx context.Context, p *policy.Decider, cases []envs.Decision) ([][]float64, error) {
	samples, _, err := p.Encode(cases)
	if err != nil {
		return nil, err
	}
	logProbs, err := p.LogProbs(ctx, samples)
	return p.Probs(cases, logProbs), err
}

// coverage are the risks of answering only the most confident questions.
func coverage(all []rl.Covered) string {
	var rows [][]string
	for _, s := range all {
		rows = append(rows, []string{fmt.Sprintf("%.0f %%", 100*s.Coverage), fmt.Sprint(s.N), fmt.Sprintf("%.3f", s.Threshold), fmt.Sprintf("%.1f %%", 100*(1-s.Accuracy))})
	}
	return report.RenderTable([]string{"answered", "n", "probability at least", "wrong"}, rows)
}

// chooseDecisions reads the questions of --split, and those of the validation split.
func chooseDecisions(c *cli.Context) (cases, held []envs.Decision, split string, err error) {
	if c.String("dataset") == "" {
		return nil, nil, "", shared.UsageErrorf("eval --task %s needs --dataset FILE", c.String("task"))
	}
	d, err := envs.Find(c.String("task"))
	if err != nil {
		return nil, nil, "", err
	}
	o := d.Options()
	if err := settingsOf(c, "dataset", "dataset-config", "text-column", "label-column").Set(o); err != nil {
		return nil, nil, "", err
	}
	client, done := shared.HubOf(c)
	defer done()
	all, err := o.(envs.DecisionSource).Decisions(c.Context, envs.Setup{Find: shared.Finder(client), Reader: dataReader(c), Tell: func(line string) { fmt.Fprintln(c.App.ErrWriter, line) }})
	if err != nil {
		return nil, nil, "", usageFault(err)
	}
	split = c.String("split")
	if split == "validation" {
		split = dataset.Val
	}
	switch divided := all[0].Split != ""; {
	case split == "" && divided:
		split = dataset.Test
	case split == "":
		split = shared.AllRows
	case !slices.Contains([]string{shared.AllRows, dataset.Train, dataset.Val, dataset.Test}, split):
		return nil, nil, "", shared.UsageErrorf("--split: %q is not one of test, val, train, all", split)
	case split != shared.AllRows && !divided:
		return nil, nil, "", shared.UsageErrorf("--split %s: %s has no splits; use --split all, or add a column with train, val or test", split, c.String("dataset"))
	}
	for _, one := range all {
		switch {
		case one.Target == nil:
		case split == shared.AllRows || one.Split == split:
			cases = append(cases, one)
		case one.Split == dataset.Val:
			held = append(held, one)
		}
	}
	if len(cases) == 0 {
		err = errors.New("no labelled rows to measure; choose another --split")
	}
	return cases, held, split, err
}

// drawDecisions draws the reliability diagram and the risk by coverage.
func drawDecisions(plots string, cases []envs.Decision, probs [][]float64) error {
	sure := rl.SurenessOf(decisions.Padded(cases, probs, decisions.Labelled(cases)))
	if err := report.Reliability(filepath.Join(plots, "reliability.png"), report.Bins(sure)); err != nil {
		return err
	}
	slices.SortStableFunc(sure, func(a, b rl.Sureness) int { return cmp.Compare(b.P, a.P) })
	var x, y []float64
	wrong := 0.0
	for i, s := range sure {
		if !s.Right {
			wrong++
		}
		if i+1 == len(sure) || sure[i+1].P != s.P {
			x, y = append(x, float64(i+1)/float64(len(sure))), append(y, wrong/float64(i+1))
		}
	}
	return report.Curves(filepath.Join(plots, "risk_coverage.png"), []report.Panel{{
		Title: "Risk by coverage", XLabel: "answered", YLabel: "wrong", Series: []report.Series{{Label: "most confident first", X: x, Y: y}},
	}})
}
