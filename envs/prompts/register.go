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

//go:embed model.yaml
var modelRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: "prompts", Help: "RL on your own prompts, with your own rewards or correct answers", Recipe: recipe, ModelRecipe: modelRecipe,
		Needs: "a column prompt or messages", Options: func() any { return &options{} }, Demonstrations: true, Forms: true,
		Rewards: []envs.NamedReward{{
			Name: "answer", Help: "1 if the answer matches --answer-column (see --answer-match), else 0",
			New: func(any, envs.Scorer) envs.Reward { return rightAnswer },
		}},
	})
}

// rightAnswer is the episode's reward.
func rightAnswer(_ context.Context, c envs.Completion) (float64, error) {
	if math.IsNaN(c.Reward) {
		return 0, errors.New("the row has no answer")
	}
	return c.Reward, nil
}

// options are the options of the task.
type options struct {
	Dataset string `option:"dataset" arg:"FILE|NAME" common:"true" help:"prompt or messages: a file (csv, json, jsonl or parquet, also gzipped), a folder of them, or a name on the hub"`
	Config  string `option:"dataset_config" needs:"dataset" help:"configuration of --dataset, if it has several"`
	dataset.Mixture
	dataset.OnBadRow
	EvalDataset   string       `option:"eval_dataset" arg:"FILE|NAME" help:"evaluation prompts; reads the test split if there is one (default: the validation split of --dataset, else its last eval_samples rows)"`
	FewShot       string       `option:"few_shot_dataset" arg:"FILE" help:"file of few-shot examples to show before each prompt"`
	SystemPrompt  string       `option:"system_prompt" arg:"FILE|TEXT" help:"system prompt: a text file, or the text itself if it has several words"`
	PromptColumn  string       `option:"prompt_column" help:"column of --dataset with the prompt: text or messages (default: prompt, else messages)"`
	AnswerColumn  string       `option:"answer_column" default:"answer" help:"column of --dataset with the correct answer, or else solution; without it, set --reward"`
	KindColumn    string       `option:"kind_column" help:"column of --dataset with a category; metrics are reported per category"`
	Curriculum    string       `option:"curriculum_column" help:"column of --dataset with a number: each pass over the training prompts takes them in ascending order, equal ones shuffled"`
	Match         answer.Match `option:"answer_match" default:"math" allowed:"math,numeric,units,exact" help:"how to compare answers: mathematical meaning, number, quantity with unit, or exact text"`
	Form          answer.Form  `option:"answer_form" default:"final" allowed:"final,any" help:"final = an answer with a calculation left to do, such as 74 - 70, is wrong; any = every answer with the right meaning is correct"`
	Stop          string       `option:"stop" arg:"A,B,..." help:"stop strings, kept in the completion; \\n is a newline, \\, a comma"`
	Turns         string       `option:"turns_cmd" arg:"PROGRAM" help:"program that replies to the model in multi-turn episodes, over JSON lines"`
	TurnsTimeout  float64      `option:"turns_timeout" default:"60" range:"[0.001,86400]" arg:"SECONDS" needs:"turns_cmd" incidental:"true" help:"seconds that the turn program may take for one reply; an episode without a reply in time ends without a reward"`
	MaxTurns      int          `option:"max_turns" default:"8" range:"[1,1024]" needs:"turns_cmd or tools" help:"maximum model turns per episode, those that call tools included"`
	Tools         string       `option:"tools" arg:"FILE" help:"JSON list of tools that the model may call: name, description, parameters (a JSON schema), and run: cmd:PROGRAM, python, a URL, or mcp: and the program or URL of an MCP server"`
	ToolTimeout   float64      `option:"tool_timeout" default:"10" range:"[0.001,86400]" arg:"SECONDS" needs:"tools" incidental:"true" help:"seconds that a tool may take for one call; a call without an answer by then gets an error"`
	MaxToolCalls  int          `option:"max_tool_calls" default:"16" range:"[1,65536]" needs:"tools" help:"maximum tool calls per episode; further calls are answered with an error"`
	Parsing       string       `option:"tool_parsing" default:"loose" allowed:"loose,strict" needs:"tools" help:"loose = read tool calls with small faults, such as a missing end tag, as servers do; strict = answer them with an error"`
	MaskMalformed bool         `option:"mask_malformed" needs:"tools" help:"do not learn from messages with a tool call that cannot be read; the rest of the episode counts as before"`
	Unsafe        bool         `option:"unsafe_exec" needs:"tools" help:"if no sandbox works, tools run Python with resource limits only; the programs can read and change everything that you can"`
}

// Check reports conflicting options.
func (o *options) Check() error {
	for _, column := range []struct{ option, name string }{{"answer_column", o.AnswerColumn}, {"kind_column", o.KindColumn}, {"curriculum_column", o.Curriculum}} {
		if column.name == "prompt" || column.name == "messages" || column.name == "" && column.option == "answer_column" {
			return envs.OptionErrorf(column.option, "%q cannot be this column; name another one", column.name)
		}
	}
	if _, err := o.Sets(); err != nil {
		return &envs.OptionError{Option: "dataset_mix", Err: err}
	}
	return nil
}

// Actions is the maximum number of actions per episode.
func (o *options) Actions() int {
	if o.Turns == "" {
		return 1
	}
	return o.MaxTurns
}

// Answers implements envs.AnswerSource. Rows have an answer and a completion.
func (o *options) Answers(path, field string) (verifiers []envs.Verifier, usual answer.Match, err error) {
	for r, err := range dataset.Records(path) {
		if err != nil {
			return nil, "", err
		}
		if _, ok := r.Fields.Get(o.AnswerColumn); !ok && verifiers == nil {
			return nil, "", envs.OptionErrorf("answer_column", "%s has no column %s; its columns are %s", r.File, words.Quote(o.AnswerColumn), words.List(r.Fields.Names()))
		}
		gold, err := r.Fields.Text(o.AnswerColumn)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", r.Place(), err)
		}
		value, _ := r.Fields.Get(field)
		written, ok := value.(string)
		if !ok {
			return nil, "", fmt.Errorf("%s: field %q is missing or not text", r.Place(), field)
		}
		verifiers = append(verifiers, func(match answer.Match) *envs.Info { return verify(written, right(gold), match) })
	}
	if len(verifiers) == 0 {
		return nil, "", fmt.Errorf("%s: no rows", path)
	}
	return verifiers, o.Match, nil
}
