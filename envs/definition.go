package envs

import (
	"context"
	"fmt"
	"iter"

	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/dataset"
)

// Definition describes a task. The command line, its help, the settings file and their checks are derived from it.
type Definition struct {
	Name string // of --task
	Help string // what the model learns, in one line

	// Options returns a pointer to a new struct of the task's options, fields with the tags of package
	// internal/options. The struct implements one or more of RowSource, RecordSource, EpisodeSource, DecisionSource and AnswerSource. A
	// method Check() error, if there is one, checks the options together.
	Options func() any

	// Recipe is YAML with the settings, of the task and of training, whose defaults differ for this task.
	Recipe string

	// DataRecipe replaces Recipe if the task can do without a data set but one is given; "" = Recipe.
	DataRecipe string

	// ModelRecipe takes the place of Recipe where the run starts from a pretrained language model, and no DataRecipe
	// applies; "" = Recipe. A comment after a value is its reason, which --print-config shows.
	ModelRecipe string

	Needs   string // what --dataset must hold; "" if it is optional
	Folder  string // prefix of its output folders; "" = Name
	Default bool   // it is the task of a command without --task
	BuiltIn string // name of its built-in data; "" if it has none, or generates problems
	Stamped bool   // output folders are named after algorithm and time, and every evaluation saves

	OneStep         bool // episodes have one action, so discounting has no effect
	AllowRandomHead bool // of a RowSource: RL may start from a randomly initialised head

	// Preferences means that the records of a RecordSource are preferences.
	Preferences bool

	// Properties of an EpisodeSource.
	Demonstrations bool          // episodes are [Demonstrator]s, at least if the data has solutions: SFT can train on them
	Forms          bool          // prompts are text or messages, depending on Setup.Text
	Lines          bool          // an action is a line or the full response, depending on Setup.Lines
	Rewards        []NamedReward // in addition to accuracy, which every task has
}

// RowSource provides labelled texts. Its task trains a classifier.
type RowSource interface {
	// Rows returns the rows of all splits; without splits, they are divided 70/15/15.
	Rows(ctx context.Context, s Setup) ([]dataset.Row, error)
	// LabelsOf returns the labels of rows, in the order of a classifier's probabilities.
	LabelsOf(rows []dataset.Row) ([]string, error)
}

// Prompting is a RowSource that can prompt a language model about its texts.
type Prompting interface {
	// Prompt returns the prompt, with "{text}" as a placeholder: as text, or as messages.
	Prompt(labels []string, asText bool) Observation
}

// RecordSource provides texts, conversations, or prompts with completions for SFT of a language model.
type RecordSource interface {
	Records(ctx context.Context, s Setup) (Records, error)
}

// Records are rows in the layouts of package chat.
type Records struct {
	Train      iter.Seq2[dataset.Record, error]
	Validation iter.Seq2[dataset.Record, error] // nil or empty: a fraction of Train is held out
	// Mixed are further training rows, by data set. None of them is held out.
	Mixed   []iter.Seq2[dataset.Record, error]
	SkipBad bool // drop rows that cannot be used; otherwise they are an error
}

// EpisodeSource provides episodes for a language model.
type EpisodeSource interface {
	Task(s Setup) (Task, error)
}

// Several is an EpisodeSource whose episodes have several actions.
type Several interface {
	// Actions is the maximum number of actions per episode.
	Actions() int
}

// AnswerSource verifies answers in a file that another program wrote.
type AnswerSource interface {
	// Answers reads the file; the completion of a row is in the named field. usual is the task's default comparison
	// rule.
	Answers(path, field string) (judges []Verifier, usual answer.Match, err error)
}

// ProgramSource grades programs in a file that another program wrote.
type ProgramSource interface {
	// Programs runs the completion in the named field of each row and yields the results in row order. problems is the
	// number of problems in the data set.
	Programs(ctx context.Context, s Setup, path, field string, each func(Program)) (problems int, err error)
}

// Program is the result of a program in a file.
type Program struct {
	Problem string // its name
	Row     int    // in the file, from 1
	Rows    int    // of the file
	Info    *Info  // nil if the sandbox failed: nothing is known about the program
	Failure string // of the sandbox, or why the first test failed
	// Prompt is the problem's text, Completion the row's.
	Prompt, Completion string
}

// Verifier compares one completion with the correct answer.
type Verifier func(match answer.Match) *Info

// NamedReward is a reward that a task adds to those of reward lists.
type NamedReward struct {
	Name, Help string
	NeedsJudge bool // it asks a judge; the first of these is the default reward of a run with a judge
	// New makes the reward. options is the struct of Definition.Options with its values; judge is nil unless Judged.
	New func(options any, judge Scorer) Reward
}

// Setup says how a run uses a task.
type Setup struct {
	Seed uint64 // of every random choice of the task
	// Find finds the files of a data set: a file, a folder, or a name on the hub.
	Find    func(ctx context.Context, name, config string, splits ...string) ([]dataset.Part, error)
	Reader  dataset.Reader    // reads the files
	Tell    func(line string) // prints what the user should know about the data; nil = silent
	Context context.Context   // of an EpisodeSource's downloads; nil means no limit

	HeldOut  int  // maximum number of Eval episodes that the run requests
	EvalOnly bool // no training: all problems of a data set are Eval episodes, except few-shot examples
	Text     bool // Forms: show text, for a model without a chat template
	// ToolTemplate is the source of the model's chat template if that describes tools, else ""; nil if the model is not
	// known yet.
	ToolTemplate *string

	Lines     bool // Lines: an action is a line of a solution; else the full solution
	EvalLines bool // Lines: the same for Eval
	MaxLines  int  // Lines: maximum lines per solution
}

// Parts finds the files of a data set named by an option, for an EpisodeSource: a file, a folder, or a name on the hub.
// It returns the given splits, or all if there are none. Without Find, the name is a file.
func (s Setup) Parts(option, name, config string, splits ...string) ([]dataset.Part, error) {
	if s.Find == nil {
		return []dataset.Part{{Split: dataset.Train, Files: []string{name}}}, nil
	}
	ctx := s.Context
	if ctx == nil {
		ctx = context.Background()
	}
	parts, err := s.Find(ctx, name, config, splits...)
	if err != nil {
		return nil, &OptionError{option, err}
	}
	return parts, nil
}

// TellSkipped tells how many rows were dropped because they cannot be used.
func (s Setup) TellSkipped(faults *dataset.Faults) {
	if n, first := faults.Skipped(); n > 0 && s.Tell != nil {
		s.Tell(fmt.Sprintf("warning: %d rows skipped that cannot be used; the first: %v", n, first))
	}
}

// OptionError is an invalid value of an option.
type OptionError struct {
	Option string // its name
	Err    error
}

func (e *OptionError) Error() string { return "option " + e.Option + ": " + e.Err.Error() }
func (e *OptionError) Unwrap() error { return e.Err }

// OptionErrorf is an OptionError with a formatted message.
func OptionErrorf(option, format string, args ...any) error {
	return &OptionError{option, fmt.Errorf(format, args...)}
}

// Modes of training.
const (
	Supervised       = "supervised"         // only the supervised stage
	SupervisedThenRL = "supervised_then_rl" // the supervised stage, then reinforcement learning
	RLOnly           = "rl_only"            // only reinforcement learning, or preferences
	RewardModel      = "reward_model"       // a reward model from preferences
)

// Modes returns the task's training modes, the default first, before its recipe applies.
func (d Definition) Modes() []string {
	o := d.Options()
	rows := d.Labels()
	_, records := o.(RecordSource)
	_, episodes := o.(EpisodeSource)
	switch {
	case d.Preferences:
		return []string{RLOnly, RewardModel}
	case rows, episodes && (records || d.Demonstrations):
		return []string{SupervisedThenRL, Supervised, RLOnly}
	case episodes:
		return []string{RLOnly}
	}
	return []string{Supervised}
}

// Labels reports whether the actions of the task are labels or options instead of texts.
func (d Definition) Labels() bool {
	_, ok := d.Options().(RowSource)
	return ok || d.Decides()
}

// Decides reports whether the task trains a decision model.
func (d Definition) Decides() bool {
	_, ok := d.Options().(DecisionSource)
	return ok
}

// Plays reports whether the task has episodes.
func (d Definition) Plays() bool {
	_, ok := d.Options().(EpisodeSource)
	return ok
}
