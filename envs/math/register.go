package math

import (
	"cmp"
	_ "embed"
	"errors"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/bank"
)

//go:embed math.yaml
var mathRecipe string

//go:embed gsm8k.yaml
var gsm8kRecipe string

func init() {
	const columns = "columns question and answer, or problem and solution"
	envs.Register(envs.Definition{
		Name: GSM8K, Help: "solve grade-school problems of a file, step by step", Recipe: gsm8kRecipe, Needs: columns,
		Options: func() any { return &schoolProblems{} }, Demonstrations: true, Forms: true, Lines: true, Rewards: judged,
	})
	envs.Register(envs.Definition{
		Name: MATH, Help: "solve competition problems of a file, step by step", Recipe: mathRecipe, Needs: columns,
		Options: func() any { return &competitionProblems{} }, Demonstrations: true, Forms: true, Lines: true, Rewards: judged,
	})
}

// judged are the rewards that ask a model.
var judged = []envs.NamedReward{
	{Name: "score", Help: "a score of each step from 1 to 10, divided by 10", NeedsJudge: true,
		New: func(_ any, judge envs.Scorer) envs.Reward { return ScoreReward(judge, 1) }},
	{Name: "aspects", Help: "three questions about each step whose answer is yes or no", NeedsJudge: true,
		New: func(_ any, judge envs.Scorer) envs.Reward { return AspectsReward(judge, 1) }},
}

// problems are the options of both tasks.
type problems struct {
	Dataset        string       `option:"dataset" arg:"FILE|NAME" common:"true" help:"question and answer, or problem and solution: a file (csv, json, jsonl or parquet, also gzipped), a folder of them, or a name on the hub"`
	Config         string       `option:"dataset_config" needs:"dataset" help:"one of several configurations of --dataset"`
	EvalDataset    string       `option:"eval_dataset" arg:"FILE|NAME" help:"the problems to be judged by, of a data set with parts those for testing; without it those for validation in --dataset, and where it has none its last eval_samples problems are held back"`
	KindColumn     string       `option:"kind_column" help:"column with the kind of a problem, as level or subject; figures are told by kind"`
	FewShotDataset string       `option:"few_shot_dataset" arg:"FILE" help:"file of the worked examples; without it they are the first of --dataset. No example is a problem to solve"`
	FewShot        int          `option:"few_shot" default:"8" range:"[0,1000]" help:"worked examples in the prompt"`
	SystemPrompt   string       `option:"system_prompt" arg:"FILE" help:"text file with what the model is told first, instead of the built-in instruction"`
	Match          answer.Match `option:"answer_match" default:"exact" allowed:"exact,numeric,units,math" help:"when an answer is right: the same text, the same number, the same quantity whatever is around it, or the same meaning"`
}

// task makes the episodes of a task; more sets what it has beside the common options.
func (o *problems) task(name string, s envs.Setup, more func(*Options)) (envs.Task, error) {
	train, eval, err := s.ProblemFiles(o.Dataset, o.Config, o.EvalDataset)
	if err != nil {
		return nil, err
	}
	options := Options{
		KindColumn: o.KindColumn, FewShotFile: o.FewShotDataset, FewShot: o.FewShot, HoldOut: s.HeldOut,
		Stepwise: s.Lines, EvalStepwise: s.EvalLines, MaxSteps: s.MaxLines, Plain: s.Text, Match: o.Match,
	}
	if train != nil {
		options.Train = Files{o.Dataset, train}
	}
	if eval != nil {
		options.Eval = Files{cmp.Or(o.EvalDataset, o.Dataset), eval}
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

// answers reads problems with completions.
func (o *problems) answers(path, task, field string) (judges []envs.Verifier, err error) {
	problems, completions, err := ReadCompletions(path, task, field)
	for i, p := range problems {
		judges = append(judges, func(match answer.Match) *envs.Info { return p.Verify(completions[i], match) })
	}
	return judges, err
}

// competitionProblems are the options of math.
type competitionProblems struct{ problems }

func (o *competitionProblems) Task(s envs.Setup) (envs.Task, error) { return o.task(MATH, s, nil) }

func (o *competitionProblems) Answers(path, field string) ([]envs.Verifier, answer.Match, error) {
	judges, err := o.answers(path, MATH, field)
	return judges, answer.Math, err
}

// schoolProblems are the options of gsm8k.
type schoolProblems struct {
	problems
	Annotate   bool `option:"annotate" default:"true" help:"show and ask for calculations as <<expression=result>>"`
	Calculator bool `option:"sym_calc" help:"work the calculations out that the model writes as <<expression=...>>, at most four a line"`
}

// Check refuses what goes against each other.
func (o *schoolProblems) Check() error {
	if o.Calculator && !o.Annotate {
		return &envs.OptionError{Option: "sym_calc", Err: errors.New("works on <<expression=result>>, which annotate=false keeps from the prompt; choose one")}
	}
	return nil
}

func (o *schoolProblems) Task(s envs.Setup) (envs.Task, error) {
	return o.task(GSM8K, s, func(options *Options) { options.Annotate, options.Calculator = o.Annotate, o.Calculator })
}

func (o *schoolProblems) Answers(path, field string) ([]envs.Verifier, answer.Match, error) {
	judges, err := o.answers(path, GSM8K, field)
	return judges, answer.Exact, err
}
