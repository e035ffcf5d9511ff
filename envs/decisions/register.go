package decisions

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

//go:embed decisions.yaml
var recipe string

func init() {
	envs.Register(envs.Definition{
		Name: "decisions", Help: "answer typed questions about a state with calibrated probabilities, without generating text", Recipe: recipe, Options: func() any { return &options{} },
		Needs: "rows of state and questions with answers, or of texts and labels", OneStep: true, AllowRandomHead: true,
	})
}

// options are the options of the task.
type options struct {
	Dataset       string `option:"dataset" arg:"FILE|NAME" common:"true" help:"rows with state and questions, each with an answer (json, jsonl, parquet), or with a text and a label (also csv): a file, also gzipped, a folder of files, or a name on the hub"`
	DatasetConfig string `option:"dataset_config" needs:"dataset" help:"configuration of --dataset, if it has several"`
	TextColumn    string `option:"text_column" default:"text" needs:"dataset" help:"column with the state, of rows with a label"`
	LabelColumn   string `option:"label_column" default:"label" needs:"dataset" help:"column with the label, which becomes a choice question"`
	Instructions  string `option:"instructions" arg:"TEXT" needs:"dataset" help:"instructions of the question about the label"`
	dataset.OnBadRow
	Policy   string `option:"policy" default:"auto" allowed:"auto,score,head" help:"how a question is answered: score = a language model reads it, and the tokens of the options' labels are compared; head = a head on the state for a fixed list of questions; auto = head for an encoder, else score"`
	Feedback string `option:"feedback" default:"all" allowed:"all,chosen" needs:"mode=supervised_then_rl|rl_only" help:"what RL sees of a row: all = the reward of every option, so that the gradient is exact; chosen = only whether the option that the policy sampled was right"`
}

// Check reports conflicting options.
func (o *options) Check() error {
	if o.TextColumn == o.LabelColumn {
		return envs.OptionErrorf("label_column", "is %q, as text_column is; name two columns", o.TextColumn)
	}
	return nil
}

// PolicyKind implements envs.DecisionSource.
func (o *options) PolicyKind() string { return o.Policy }

// OnlyChosen implements envs.DecisionSource.
func (o *options) OnlyChosen() bool { return o.Feedback == "chosen" }

// Decisions implements envs.DecisionSource. Each bad row is a line of JSON for s.Tell.
func (o *options) Decisions(ctx context.Context, s envs.Setup) ([]envs.Decision, error) {
	find := s.Find
	if find == nil {
		find = func(context.Context, string, string, ...string) ([]dataset.Part, error) {
			return []dataset.Part{{Split: dataset.Train, Files: []string{o.Dataset}}}, nil
		}
	}
	parts, err := find(ctx, o.Dataset, o.DatasetConfig, "train", "validation", "test")
	if err != nil {
		return nil, &envs.OptionError{Option: "dataset", Err: err}
	}
	typed, err := asks(s.Reader, parts)
	if err != nil {
		return nil, err
	}
	faults := o.Faults()
	var all []envs.Decision
	if typed {
		all, err = o.questions(s, parts, faults)
	} else {
		var rows []dataset.Row
		rows, err = s.Reader.Rows(parts, dataset.Columns{Text: o.TextColumn, Label: o.LabelColumn}, faults)
		all = fixed(o.LabelColumn, o.Instructions, rows)
	}
	if err == nil {
		err = faults.Err()
	}
	if err != nil {
		return nil, err
	}
	s.TellSkipped(faults)
	if len(all) == 0 {
		return nil, fmt.Errorf("%s: no rows", o.Dataset)
	}
	return all, nil
}

// asks tells whether the first row of a data set has questions.
func asks(reader dataset.Reader, parts []dataset.Part) (bool, error) {
	for _, part := range parts {
		for r, err := range reader.Records(part.Files...) {
			if err != nil {
				return false, err
			}
			_, ok := r.Fields.Get("questions")
			return ok, nil
		}
	}
	return false, nil
}

// questions reads rows with questions.
func (o *options) questions(s envs.Setup, parts []dataset.Part, faults *dataset.Faults) (all []envs.Decision, err error) {
	row, given := 0, 0
	for _, part := range parts {
		for r, err := range s.Reader.Records(part.Files...) {
			if err != nil {
				return nil, err
			}
			found, wrong := read(r, row, true)
			for _, fault := range wrong {
				if s.Tell != nil {
					s.Tell(fault.JSON())
				}
				if err := faults.Add(fault); err != nil {
					return nil, err
				}
			}
			if wrong != nil {
				continue
			}
			for i := range found {
				if len(parts) > 1 {
					found[i].Split = map[string]string{"validation": dataset.Val}[part.Split]
					if found[i].Split == "" {
						found[i].Split = part.Split
					}
				}
			}
			if found[0].Split != "" {
				given++
			}
			all = append(all, found...)
			row++
		}
	}
	if given > 0 && given < row {
		return nil, fmt.Errorf("%s: split is set in %d of %d rows; set it in all rows or in none", o.Dataset, given, row)
	}
	return all, nil
}

// Read reads a row without answers, as a request has it.
func Read(r dataset.Record) ([]envs.Decision, []Fault) { return read(r, 0, false) }
