package prompts

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

//go:embed prompts.yaml
var recipe string

func init() {
	envs.Register(envs.Definition{
		Name: "prompts", Help: "answer prompts of a file, for rewards of your own or for the right answers", Recipe: recipe,
		Needs: "a column prompt or messages", Options: func() any { return &options{} }, Demonstrations: true, Forms: true,
		Rewards: []envs.NamedReward{{
			Name: "answer", Help: "1 for the answer of --answer-column, by --answer-match, else 0",
			New: func(any, envs.Scorer) envs.Reward { return rightAnswer },
		}},
	})
}

// rightAnswer pays what the episode pays.
func rightAnswer(_ context.Context, c envs.Completion) (float64, error) {
	if math.IsNaN(c.Reward) {
		return 0, errors.New("the row has no answer to compare with")
	}
	return c.Reward, nil
}

// options are those of the task.
type options struct {
	Dataset      string       `option:"dataset" arg:"FILE|NAME" common:"true" help:"prompt or messages: a file (csv, json, jsonl or parquet, also gzipped), a folder of them, or a name on the hub"`
	Config       string       `option:"dataset_config" needs:"dataset" help:"one of several configurations of --dataset"`
	EvalDataset  string       `option:"eval_dataset" arg:"FILE|NAME" help:"the prompts to be judged by, of a data set with parts those for testing; without it those for validation in --dataset, and where it has none its last eval_samples rows are held back"`
	FewShot      string       `option:"few_shot_dataset" arg:"FILE" help:"file of worked examples, which are shown before each prompt"`
	SystemPrompt string       `option:"system_prompt" arg:"FILE" help:"text file with what the model is told first"`
	AnswerColumn string       `option:"answer_column" default:"answer" help:"column of --dataset with the right answer; without one --reward says what answers earn"`
	KindColumn   string       `option:"kind_column" help:"column of --dataset with the kind of a prompt; figures are told by kind"`
	Match        answer.Match `option:"answer_match" default:"math" allowed:"math,numeric,units,exact" help:"when an answer is right: the same meaning, the same number, the same quantity, or the same text"`
	Stop         string       `option:"stop" arg:"A,B,..." help:"texts that end an answer, each part of it; \\n is the end of a line, \\, a comma"`
	Turns        string       `option:"turns_cmd" arg:"PROGRAM" help:"program that answers the model, for episodes of several turns; it reads and writes lines of JSON"`
	MaxTurns     int          `option:"max_turns" default:"8" range:"[1,1024]" needs:"turns_cmd" help:"turns of the model in an episode at most"`
}

// Check refuses what goes against each other.
func (o *options) Check() error {
	for _, column := range []struct{ option, name string }{{"answer_column", o.AnswerColumn}, {"kind_column", o.KindColumn}} {
		if column.name == "prompt" || column.name == "messages" || column.name == "" && column.option == "answer_column" {
			return &envs.OptionError{Option: column.option, Err: fmt.Errorf("%q is no column for it; name another one", column.name)}
		}
	}
	return nil
}

// Actions is how many actions an episode has at most.
func (o *options) Actions() int {
	if o.Turns == "" {
		return 1
	}
	return o.MaxTurns
}

// Answers implements envs.AnswerSource: rows have an answer and a completion.
func (o *options) Answers(path, field string) (judges []envs.Verifier, usual answer.Match, err error) {
	for r, err := range dataset.Records(path) {
		if err != nil {
			return nil, "", err
		}
		if _, ok := r.Fields.Get(o.AnswerColumn); !ok && judges == nil {
			return nil, "", &envs.OptionError{Option: "answer_column", Err: fmt.Errorf("%s has no column %s; its columns are %s", r.File, words.Quote(o.AnswerColumn), words.List(r.Fields.Names()))}
		}
		gold, err := text(r.Fields, o.AnswerColumn)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", r.Place(), err)
		}
		value, _ := r.Fields.Get(field)
		written, ok := value.(string)
		if !ok {
			return nil, "", fmt.Errorf("%s: field %q is missing or no text", r.Place(), field)
		}
		judges = append(judges, func(match answer.Match) *envs.Info { return judge(written, right(gold), match) })
	}
	if len(judges) == 0 {
		return nil, "", fmt.Errorf("%s has no rows", path)
	}
	return judges, o.Match, nil
}
