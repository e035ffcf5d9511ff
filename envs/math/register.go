package math

import (
	"cmp"
	_ "embed"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/bank"
	"github.com/rltrain/rltrain/envs/dataset"
)

//go:embed math.yaml
var mathRecipe string

//go:embed gsm8k.yaml
var gsm8kRecipe string

//go:embed gsm8k_model.yaml
var gsm8kModelRecipe string

//go:embed math_model.yaml
var mathModelRecipe string

func init() {
	const columns = "columns question and answer, or problem and solution"
	envs.Register(envs.Definition{
		Name: GSM8K, Help: "grade-school word problems from a file, solved step by step", Recipe: gsm8kRecipe, ModelRecipe: gsm8kModelRecipe, Needs: columns,
		Options: func() any { return &schoolProblems{} }, Demonstrations: true, Forms: true, Lines: true, Rewards: judged,
	})
	envs.Register(envs.Definition{
		Name: MATH, Help: "competition mathematics from a file, solved step by step", Recipe: mathRecipe, ModelRecipe: mathModelRecipe, Needs: columns,
		Options: func() any { return &competitionProblems{} }, Demonstrations: true, Forms: true, Lines: true, Rewards: judged,
	})
}

// judged are the rewards that ask an LLM judge.
var judged = []envs.NamedReward{
	{Name: "score", Help: "the judge's score of each step from 1 to 10, divided by 10", NeedsJudge: true,
		New: func(_ any, judge envs.Scorer) envs.Reward { return ScoreReward(judge, 1) }},
	{Name: "aspects", Help: "three yes/no questions to the judge about each step", NeedsJudge: true,
		New: func(_ any, judge envs.Scorer) envs.Reward { return AspectsReward(judge, 1) }},
}

// problems are the options that both tasks share.
type problems struct {
	Dataset string `option:"dataset" arg:"FILE|NAME" common:"true" help:"question and answer, or problem and solution: a file (csv, json, jsonl or parquet, also gzipped), a folder of them, or a name on the hub"`
	Config  string `option:"dataset_config" needs:"dataset" help:"configuration of --dataset, if it has several"`
	dataset.OnBadRow
	EvalDataset    string       `option:"eval_dataset" arg:"FILE|NAME" help:"evaluation problems; reads the test split if there is one (default: the validation split of --dataset, else its last eval_samples problems)"`
	KindColumn     string       `option:"kind_column" help:"column with a category such as level or subject; metrics are reported per category"`
	FewShotDataset string       `option:"few_shot_dataset" arg:"FILE" help:"file of few-shot examples (default: the first training problems of the data set); examples are not trained on, and evaluated problems are no examples"`
	FewShot        int          `option:"few_shot" default:"8" range:"[0,1000]" help:"few-shot examples in the prompt"`
	SystemPrompt   string       `option:"system_prompt" arg:"FILE" help:"text file with the system prompt, instead of the built-in one"`
	Match          answer.Match `option:"answer_match" default:"exact" allowed:"exact,numeric,units,math" help:"how to compare answers: exact text, number, quantity with unit, or mathematical meaning"`
	Form           answer.Form  `option:"answer_form" default:"final" allowed:"final,any" help:"final = an answer with a calculation left to do, such as 74 - 70, is wrong; any = every answer with the right meaning is correct"`
}

// task makes the episodes of a task; more sets its extra options.
func (o *problems) task(name string, s envs.Setup, more func(*Options)) (envs.Task, error) {
	train, eval, err := s.ProblemFiles(o.Dataset, o.Config, o.EvalDataset)
	if err != nil {
		return nil, err
	}
	options := Options{
		KindColumn: o.KindColumn, FewShot: o.FewShot, HoldOut: s.HeldOut, OnBadRow: o.OnBadRow, Skipped: s.TellSkipped,
		Stepwise: s.Lines, EvalStepwise: s.EvalLines, MaxSteps: s.MaxLines, Plain: s.Text, Match: o.Match, Form: o.Form,
	}
	if options.Examples, err = o.examples(s, train); err != nil {
		return nil, err
	}
	if train != nil {
		options.Train = Files{o.Dataset, train, s.Reader}
	}
	if eval != nil {
		options.Eval = Files{cmp.Or(o.EvalDataset, o.Dataset), eval, s.Reader}
	}
	if more != nil {
		more(&options)
	}
	if o.SystemPrompt != "" {
		if options.Instruction, err = bank.Instruction(o.SystemPrompt); err != nil {
			return nil, err
		}
	}
	return New(name, s.Seed, options)
}

// examples are the files of few-shot examples: those of few_shot_dataset, or where nothing is trained the training split of
// the evaluated data set.
func (o *problems) examples(s envs.Setup, train []string) (Files, error) {
	if name := o.FewShotDataset; name != "" {
		return Files{Name: name, Paths: []string{name}}, nil
	}
	if train != nil || o.FewShot == 0 {
		return Files{}, nil
	}
	set, option, config := o.Dataset, "dataset", o.Config
	if o.EvalDataset != "" && o.EvalDataset != set {
		set, option, config = o.EvalDataset, "eval_dataset", ""
	}
	parts, err := s.Parts(option, set, config)
	if err != nil || len(parts) < 2 {
		return Files{}, err
	}
	files, err := dataset.FilesOf(parts, dataset.Train)
	if err != nil {
		return Files{}, nil // it has no training split
	}
	return Files{Name: set, Paths: files}, nil
}

// answers reads problems with completions.
func (o *problems) answers(path, task, field string) (verifiers []envs.Verifier, err error) {
	problems, completions, err := ReadCompletions(o.Faults(), path, task, field)
	for i, p := range problems {
		verifiers = append(verifiers, func(match answer.Match) *envs.Info { return p.Verify(completions[i], match) })
	}
	return verifiers, err
}

// competitionProblems are the options of math.
type competitionProblems struct{ problems }

func (o *competitionProblems) Task(s envs.Setup) (envs.Task, error) { return o.task(MATH, s, nil) }

func (o *competitionProblems) Answers(path, field string) ([]envs.Verifier, answer.Match, error) {
	verifiers, err := o.answers(path, MATH, field)
	return verifiers, answer.Math, err
}

// schoolProblems are the options of gsm8k.
type schoolProblems struct {
	problems
	Annotate   bool `option:"annotate" default:"true" help:"use <<expression=result>> annotations in prompts and solutions"`
	Calculator bool `option:"sym_calc" help:"calculator: insert the result of <<expression=...>> that the model generates, at most four per line"`
}

// Check reports conflicting options.
func (o *schoolProblems) Check() error {
	if o.Calculator && !o.Annotate {
		return envs.OptionErrorf("sym_calc", "needs <<expression=result>> in the prompt, but annotate=false removes it; drop one of the two")
	}
	return nil
}

func (o *schoolProblems) Task(s envs.Setup) (envs.Task, error) {
	return o.task(GSM8K, s, func(options *Options) { options.Annotate, options.Calculator = o.Annotate, o.Calculator })
}

func (o *schoolProblems) Answers(path, field string) ([]envs.Verifier, answer.Match, error) {
	verifiers, err := o.answers(path, GSM8K, field)
	return verifiers, answer.Exact, err
}
