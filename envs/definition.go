package envs

import (
	"context"
	"iter"

	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/dataset"
)

// Definition is all that a task says about itself. The command line, its help, the file of settings and their checks
// follow from it.
type Definition struct {
	Name string // of --task
	Help string // what is learned, in one line

	// Options returns a pointer to a new struct of the task's own options, fields with the tags of
	// package internal/options. What a task gives is what this struct can do: it is one or several of RowSource,
	// RecordSource, EpisodeSource and AnswerSource. A method Check() error, where it has one, says what is wrong with
	// its values.
	Options func() any

	// Recipe is YAML with the settings, of the task and of training, whose defaults are others for this task.
	Recipe string

	// DataRecipe takes the place of Recipe where a data set is named, of a task that can do without; "" = Recipe.
	DataRecipe string

	// ModelRecipe takes the place of Recipe where the run starts from a pretrained language model, and no DataRecipe
	// applies; "" = Recipe. A comment after a value is its reason, which --print-config shows.
	ModelRecipe string

	Needs   string // what --dataset must hold, where the task cannot do without; "" where it can
	Folder  string // how the folders of its results begin; "" = Name
	Default bool   // it is the task of a command without --task
	BuiltIn string // what its own data is called; "" where it has none, or for the exercises of its name
	Stamped bool   // folders of results are named after the algorithm and the time, and every evaluation saves

	OneStep         bool // an episode has one action: a discount changes nothing
	AllowRandomHead bool // of a RowSource: RL may start from a randomly initialised head

	// Preferences says that the records of a RecordSource are preferences.
	Preferences bool

	// What its episodes can do, of an EpisodeSource.
	Demonstrations bool          // episodes are [Demonstrator]s, at least if the data has solutions: SFT can train on them
	Forms          bool          // they are shown as text or as messages, as Setup.Text says
	Lines          bool          // an action is a line or the whole, as Setup.Lines says
	Rewards        []NamedReward // in addition to accuracy, which every task has
}

// RowSource gives texts with labels. A task that has them trains a classifier.
type RowSource interface {
	// Rows are those of all splits; where they name none they are divided 70/15/15.
	Rows(ctx context.Context, s Setup) ([]dataset.Row, error)
	// LabelsOf are the labels of rows, in the order of a classifier's probabilities.
	LabelsOf(rows []dataset.Row) ([]string, error)
}

// Prompting is a RowSource whose texts a language model can be asked about.
type Prompting interface {
	// Prompt is what it is shown of a text, with "{text}" in the text's place: as text, or as messages.
	Prompt(labels []string, asText bool) Observation
}

// RecordSource gives texts, conversations, or prompts with completions for a language model to imitate.
type RecordSource interface {
	Records(ctx context.Context, s Setup) (Records, error)
}

// Records are rows in the layouts of package chat.
type Records struct {
	Train      iter.Seq2[dataset.Record, error]
	Validation iter.Seq2[dataset.Record, error] // nil, or without a row: a share of Train is kept for it
}

// EpisodeSource gives episodes for a language model to play.
type EpisodeSource interface {
	Task(s Setup) (Task, error)
}

// Several is an EpisodeSource whose episodes have several actions.
type Several interface {
	// Actions is how many an episode has at most.
	Actions() int
}

// AnswerSource judges answers that something else wrote to a file.
type AnswerSource interface {
	// Answers reads the file; the completion of a row is in the named field. usual is the rule of comparison that the
	// task has itself.
	Answers(path, field string) (judges []Verifier, usual answer.Match, err error)
}

// ProgramSource runs programs that something else wrote to a file.
type ProgramSource interface {
	// Programs runs the completion in the named field of each row, and hands over what came of it in the order of the
	// rows. problems is how many there are in the data set.
	Programs(ctx context.Context, s Setup, path, field string, each func(Program)) (problems int, err error)
}

// Program is what came of a program of a file.
type Program struct {
	Problem string // its name
	Row     int    // in the file, from 1
	Rows    int    // of the file
	Info    *Info  // nil where the sandbox failed: then nothing is known of the program
	Failure string // of the sandbox, or why the first test failed
}

// Verifier compares one completion with the right answer.
type Verifier func(match answer.Match) *Info

// NamedReward is a reward of the task's own, for lists of rewards.
type NamedReward struct {
	Name, Help string
	NeedsJudge bool // it asks a language model; the first such is the reward of a run that has a judge and names none
	// New makes the reward; options is what Definition.Options returned, with its values, judge nil unless Judged.
	New func(options any, judge Scorer) Reward
}

// Setup is how a run uses a task.
type Setup struct {
	Seed uint64 // of every random choice of the task
	// Find finds the files of a data set: a file, a folder, or a name on the hub.
	Find    func(ctx context.Context, name, config string, splits ...string) ([]dataset.Part, error)
	Context context.Context // of what an EpisodeSource downloads; nil is one without an end

	HeldOut  int  // episodes of Eval that the run asks for at most
	EvalOnly bool // no training: all problems of a data set are episodes of Eval, except few-shot examples
	Text     bool // Forms: show text, for a model without a chat template

	Lines     bool // Lines: an action is a line of a solution; else all of it
	EvalLines bool // Lines: the same for Eval
	MaxLines  int  // Lines: of a solution at most
}

// Parts are the files of a data set that an option names, for an EpisodeSource: a file, a folder, or a name on the hub, of
// which the splits are wanted, all with none. Without Find the name is that of a file.
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

// OptionError is what is wrong with the value of a task's option.
type OptionError struct {
	Option string // its name
	Err    error
}

func (e *OptionError) Error() string { return "option " + e.Option + ": " + e.Err.Error() }
func (e *OptionError) Unwrap() error { return e.Err }

// Modes of training.
const (
	Supervised       = "supervised"         // the supervised stage alone
	SupervisedThenRL = "supervised_then_rl" // the supervised stage, then reinforcement learning
	RLOnly           = "rl_only"            // reinforcement learning, or preferences, alone
	RewardModel      = "reward_model"       // a reward model of preferences
)

// Modes are the modes of training that the task has, the default first, but for what its recipe says.
func (d Definition) Modes() []string {
	o := d.Options()
	_, rows := o.(RowSource)
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

// Labels tells whether the task trains a classifier, and not a language model.
func (d Definition) Labels() bool {
	_, ok := d.Options().(RowSource)
	return ok
}

// Plays tells whether the task has episodes.
func (d Definition) Plays() bool {
	_, ok := d.Options().(EpisodeSource)
	return ok
}
