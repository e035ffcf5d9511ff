// Package config turns what the user typed into the settings of a training run.
//
// Settings come in four layers, the later one winning: the task's recipe, the file of --config, environment variables
// RLTRAIN_<KEY>, and command-line options. A setting has one canonical key, flat snake_case, which is its name in all
// four (dashes and underscores are equal); alias.go lists the other names that are understood. Which settings there are
// follows from the task, the mode and the algorithm: a Config is put together from the structs that declare them. Every
// mistake is part of a *UsageError of one line that names the option, the variable, or the file, line and column.
package config

import (
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/train"
)

// TinyModel is the model name of a small language model with random weights.
const TinyModel = "tiny"

// Config is the effective configuration of one run: the options of its parts, those that it does not have being nil.
type Config struct {
	General     General      `group:"General"`
	Start       *Start       `group:"General"`
	Settings    any          `group:"Task"` // the task's own
	Form        *PromptForm  `group:"Task"`
	Answers     *Answers     `group:"Task"`
	Lines       *Lines       `group:"Task"`
	ReplayLines *Lines       `group:"Task" defaults:"step_mode=line"`
	Rewards     *TextRewards `group:"Task"`
	Judge       *Judge       `group:"Task"`

	Policy   *PolicyKind    `group:"Model"`
	Labels   *LabelModel    `group:"Model"`
	NewLabel *NewLabelModel `group:"Model"`
	Tokens   *TokenModel    `group:"Model"`

	Supervised  *SupervisedStage  `group:"Supervised stage"`
	LabelSFT    *ClassifierSFT    `group:"Supervised stage"`
	DecisionSFT *DecisionSFT      `group:"Supervised stage"`
	TextSFT     *LanguageModelSFT `group:"Supervised stage"`
	Warmup      *Warmup           `group:"Supervised stage"`

	Rewarding *RewardTraining `group:"Reward model"`
	Pairs     *PairLearning   `group:"Preferences"`

	RL             *RL                         `group:"Reinforcement learning stage"`
	LabelRollouts  *LabelRollouts              `group:"Reinforcement learning stage"`
	LabelReplay    *rollout.LabelReplayOptions `group:"Reinforcement learning stage"`
	Rounds         *Rounds                     `group:"Reinforcement learning stage"`
	SampleSource   *SourceKind                 `group:"Reinforcement learning stage"`
	SourceOptions  any                         `group:"Reinforcement learning stage"` // the source's own
	Fresh          *FreshRollouts              `group:"Reinforcement learning stage"`
	Replay         *Replay                     `group:"Reinforcement learning stage"`
	StepwiseEval   *StepwiseEval               `group:"Reinforcement learning stage"`
	Updates        *train.Updates              `group:"Reinforcement learning stage"`
	Minibatches    *Minibatches                `group:"Reinforcement learning stage"`
	Learning       algo.Algorithm              `group:"Reinforcement learning stage"`
	Values         *Values                     `group:"Reinforcement learning stage"`
	Regularisation *train.Regularisation       `group:"Reinforcement learning stage"`
	Uncertain      *train.Uncertain            `group:"Reinforcement learning stage"`
	OffPolicy      *train.OffPolicy            `group:"Reinforcement learning stage"`

	Saving Saving `group:"Saving and logging"`

	Task    envs.Definition
	Samples rollout.SourceDefinition // of reinforcement learning with a language model

	set     *options.Set
	recipe  recipe
	sources map[string]Source
	skipped []string
	notes   []string
}

// choice is what decides which options there are.
type choice struct {
	task      envs.Definition
	mode      string
	algorithm algo.Definition          // of a mode with reinforcement learning
	source    rollout.SourceDefinition // of its samples, with a language model
	data      bool                     // the user names a data set
	writes    bool                     // of a task with rows and episodes: a language model writes labels
	// pretrained: a language model is trained, and its weights are not random
	pretrained bool
}

// labels tells whether a classifier is trained.
func (ch choice) labels() bool { return ch.task.Labels() && !ch.writes }

// replays tells whether a language model learns from turns in a replay buffer.
func (ch choice) replays() bool {
	return ch.algorithm.New != nil && !ch.labels() && ch.algorithm.New().Needs().Replay
}

// plays tells whether a language model plays episodes.
func (ch choice) plays() bool { return ch.task.Plays() && !ch.labels() }

// parts puts the parts of a run together.
func (ch choice) parts() *Config {
	c := &Config{Task: ch.task, Settings: ch.task.Options(), sources: map[string]Source{}}
	labels, plays := ch.labels(), ch.plays()
	if ch.task.Preferences {
		ch.prefer(c)
		return c
	}
	if ch.task.Labels() && ch.task.Plays() {
		c.Policy = &PolicyKind{}
	}
	if ch.mode != envs.SupervisedThenRL {
		c.Start = &Start{}
	}
	if labels {
		c.Labels = &LabelModel{}
	} else {
		c.Tokens = &TokenModel{}
	}
	if plays {
		c.Answers = &Answers{}
		if ch.task.Forms {
			c.Form = &PromptForm{}
		}
	}
	if ch.mode != envs.RLOnly {
		ch.imitate(c, labels, plays)
	}
	if ch.mode != envs.Supervised {
		ch.reinforce(c, labels)
	}
	return c
}

// build is the run with the defaults that its parts declare.
func (ch choice) build() (*Config, error) {
	c := ch.parts()
	var err error
	if c.set, err = options.Read(c); err != nil {
		return nil, err
	}
	c.allow("task", taskNames())
	c.allow("mode", ch.task.Modes())
	c.allow("algorithm", ch.algorithmNames())
	if c.SampleSource != nil {
		var names []string
		for _, d := range ch.sampleSources() {
			names = append(names, d.Name)
		}
		c.allow("source", names)
		for _, d := range ch.sampleSources() {
			c.set.Find("source").Help += "; " + d.Name + ": " + d.Help
		}
	}
	if o := c.set.Find("reward"); o != nil {
		o.Help += ". " + reward.Help(ch.labels(), ch.task.Rewards)
	}
	c.set.Fact("episodes", !ch.labels(), "where an episode has several actions")
	c.set.Fact("reference", c.Learning != nil && c.Learning.Needs().Reference, "with an algorithm that asks a reference policy")
	c.General.Task, c.General.Mode = ch.task.Name, ch.mode
	if c.Rewarding != nil {
		c.General.Model = rewardBase
	}
	if c.RL != nil {
		c.RL.Algorithm = ch.algorithm.Name
	}
	if c.SampleSource != nil {
		c.SampleSource.Name = ch.source.Name
	}
	if ch.writes {
		c.Policy.Kind = policyGenerate
	}
	if c.LabelRollouts != nil && c.Learning.Check(1) != nil { // it compares the labels of a text
		c.LabelRollouts.Samples = comparedLabels
	}
	return c, nil
}

// prefer has the parts of learning from preferences.
func (ch choice) prefer(c *Config) {
	if ch.mode == envs.RewardModel {
		c.Rewarding, c.Learning = &RewardTraining{}, &algo.BradleyTerry{}
		return
	}
	c.Start, c.Tokens, c.RL, c.Pairs, c.Learning = &Start{}, &TokenModel{}, &RL{}, &PairLearning{}, ch.algorithm.Pairs()
}

func (ch choice) imitate(c *Config, labels, plays bool) {
	c.Supervised = &SupervisedStage{}
	switch {
	case ch.task.Decides():
		c.NewLabel, c.DecisionSFT = &NewLabelModel{}, &DecisionSFT{}
	case labels:
		c.NewLabel, c.LabelSFT = &NewLabelModel{}, &ClassifierSFT{}
	case plays:
		c.Warmup = &Warmup{}
	default:
		c.TextSFT = &LanguageModelSFT{}
	}
}

func (ch choice) reinforce(c *Config, labels bool) {
	c.RL = &RL{}
	c.Learning = ch.algorithm.New()
	needs := c.Learning.Needs()
	switch {
	case needs.Replay && labels:
		c.LabelReplay = &rollout.LabelReplayOptions{}
	case needs.Replay:
		c.Replay = &Replay{}
	default:
		c.Regularisation = &train.Regularisation{}
	}
	repeats := needs.Ratio != algo.NoRatio || needs.Repeats && !needs.Replay
	if repeats {
		c.Updates = &train.Updates{}
	}
	if repeats && !labels {
		c.Minibatches = &Minibatches{}
	}
	if needs.Values {
		c.Values = &Values{}
	}
	if labels {
		c.LabelRollouts = &LabelRollouts{}
		if ch.task.AllowRandomHead && ch.mode == envs.RLOnly {
			c.NewLabel = &NewLabelModel{}
		}
		return
	}
	c.Rounds, c.Rewards = &Rounds{}, &TextRewards{}
	if needs.ByAction {
		c.Uncertain = &train.Uncertain{}
	}
	if c.Replay == nil {
		c.Fresh = &FreshRollouts{}
		if needs.Weighs() {
			c.OffPolicy = &train.OffPolicy{}
		}
	}
	if c.Samples = ch.source; len(ch.sampleSources()) > 1 {
		c.SampleSource = &SourceKind{}
	}
	if o := ch.source.Options; o != nil && ch.source.Name != rollout.Buffer { // whose options Replay has
		c.SourceOptions = o()
	}
	switch {
	case ch.task.Lines && c.Replay != nil:
		c.ReplayLines, c.StepwiseEval = &Lines{}, &StepwiseEval{}
	case ch.task.Lines:
		c.Lines = &Lines{}
	}
	c.Judge = &Judge{}
}

// rewardBase is the model of a reward model where none is named.
const rewardBase = "sentence-transformers/all-MiniLM-L6-v2"

// pairwise is the algorithm that learns from preferences.
const pairwise = "dpo"

// comparedLabels is how many labels are drawn for a text where they are compared and nothing is said.
const comparedLabels = 8

// reinforce is the algorithm of a command that names none.
const reinforce = "reinforce"

// allow lists the values of an option that has them from elsewhere; the first is the default.
func (c *Config) allow(name string, values []string) {
	if o := c.set.Find(name); o != nil && len(values) > 0 {
		o.Allowed = values
		o.Set(values[0])
	}
}

func taskNames() []string {
	var names []string
	for _, d := range envs.Definitions() {
		names = append(names, d.Name)
	}
	return names
}

func (ch choice) algorithmNames() []string {
	var names []string
	for _, a := range ch.algorithms() {
		names = append(names, a.Name)
	}
	return names
}

// sampleSources are those that the algorithm of a language model can learn from, the built-in one first.
func (ch choice) sampleSources() []rollout.SourceDefinition {
	if ch.labels() || ch.task.Preferences {
		return []rollout.SourceDefinition{{}}
	}
	replay, builtIn := ch.replays(), rollout.Rollouts
	if replay {
		builtIn = rollout.Buffer
	}
	all := slices.DeleteFunc(rollout.Sources(), func(d rollout.SourceDefinition) bool { return d.Replay != replay })
	slices.SortStableFunc(all, func(a, b rollout.SourceDefinition) int {
		return map[bool]int{a.Name == builtIn: -1}[true] - map[bool]int{b.Name == builtIn: -1}[true]
	})
	return all
}

// algorithms are those that train what the choice trains.
func (ch choice) algorithms() []algo.Definition {
	return slices.DeleteFunc(algo.Definitions(), func(d algo.Definition) bool {
		switch {
		case ch.task.Preferences:
			return d.Pairs == nil
		case ch.labels():
			return !d.Labels
		}
		return !d.Tokens
	})
}

// otherPolicies are those that an algorithm trains which does not train the choice's; "" where the task has none.
func (ch choice) otherPolicies(name string) string {
	for _, d := range algo.Definitions() {
		switch {
		case d.Name != name || !ch.task.Labels() || !ch.task.Plays():
		case d.Labels && !ch.labels():
			return policyHead + " or " + policyScore
		case d.Tokens && ch.labels():
			return policyGenerate
		}
	}
	return ""
}

// StepLines says how the lines of solutions are learnt from; nil where the task has none.
func (c *Config) StepLines() *Lines {
	if c.ReplayLines != nil {
		return c.ReplayLines
	}
	return c.Lines
}

// ActionTokens is how many tokens an action of reinforcement learning may have.
func (c *Config) ActionTokens() int {
	if lines := c.StepLines(); lines != nil && lines.StepMode == "line" {
		return lines.MaxTokens
	}
	return c.Answers.MaxNewTokens
}

// LongestAnswer is how many tokens the policy may write in an episode, over all its actions.
func (c *Config) LongestAnswer() int {
	if lines := c.StepLines(); lines != nil && lines.StepMode == "line" {
		return lines.MaxTokens * lines.MaxLines
	}
	if several, ok := c.Settings.(envs.Several); ok {
		return c.Answers.MaxNewTokens * several.Actions()
	}
	return c.Answers.MaxNewTokens
}

// EvalEvery is how many steps of reinforcement learning there are between evaluations; 0 = there are none between.
func (c *Config) EvalEvery() int {
	if c.LabelRollouts != nil {
		return c.LabelRollouts.EvalEvery
	}
	return c.Rounds.EvalEvery
}

// Pretrained is the trained policy that the run goes on from, "" for none.
func (c *Config) Pretrained() string {
	if c.Start == nil {
		return ""
	}
	return c.Start.PretrainedModel
}

// FullTuning tells whether all weights of a language model are trained, and not an adapter.
func (c *Config) FullTuning() bool {
	return c.Tokens.Tuning == "full" || c.Tokens.Tuning == "auto" && c.General.Model == TinyModel
}

// Resuming tells whether the run goes on where an earlier one stopped, and from which checkpoint, "" for the newest.
func (c *Config) Resuming() (bool, string) {
	switch from := c.General.ResumeFrom; from {
	case "":
		return c.General.Resume, ""
	case "auto", "true", "True":
		return true, ""
	default:
		return true, from
	}
}

// StageOf is the stage that an option belongs to: "supervised", "rl", "reward", or "" for all.
func (c *Config) StageOf(key string) string {
	switch o := c.set.Find(key); {
	case o != nil && o.Group == "Supervised stage":
		return envs.Supervised
	case o != nil && (o.Group == "Reinforcement learning stage" || o.Group == "Preferences"):
		return "rl"
	case o != nil && o.Group == "Reward model":
		return "reward"
	}
	return ""
}

// Source tells where the value of a key comes from; the zero Source means the recipe.
func (c *Config) Source(key string) Source { return c.sources[key] }

// Skipped lists what of a router's file is not ours and was left unread.
func (c *Config) Skipped() []string { return c.skipped }

// Notes say what was given and changes nothing.
func (c *Config) Notes() []string { return c.notes }

// Text is the value of an option in words, "" where the run has no such option.
func (c *Config) Text(key string) string {
	o := c.set.Find(key)
	if o == nil {
		return ""
	}
	return strings.Trim(yamlValue(o.Get()), `"`)
}

// Count is the value of an option that is a whole number.
func (c *Config) Count(key string) (n int, ok bool) {
	if o := c.set.Find(key); o != nil {
		n, ok = o.Get().(int)
	}
	return n, ok
}

// Errorf makes a *UsageError that blames the value of key, where the user gave it.
func (c *Config) Errorf(key, format string, args ...any) error {
	s := c.sources[key]
	if s == (Source{}) {
		s.Name = options.Flag(key)
	}
	return s.errorf(format, args...)
}
