package reward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/internal/registry"
)

// Definition is a reward that lists of rewards can name. [Register] adds one.
type Definition struct {
	Name string // the name in lists, one word
	Help string // one line: what the reward is, and its range

	// Argument is a placeholder for the argument after NAME:, such as DIR in model:DIR; "" for none.
	Argument string

	// Options returns a pointer to a new struct of options, fields with the tags of package internal/options. A list
	// sets them as NAME(option=value, option=value). A method Check() error, if there is one, checks them together.
	// nil if the reward has no options.
	Options func() any

	NeedsJudge bool // it asks a language model, Setup.Judge
	NeedsTruth bool // it reads envs.Completion.Info, how the task verified the answer

	// Text makes the reward of completions; nil if the reward is only for labels.
	Text func(Setup) (TextReward, error)

	// Labels makes the reward of a classifier's labels. Without it Text scores labels, as if they had been generated.
	Labels func(Setup) (LabelReward, error)

	brackets bool // commas and equals signs in brackets belong to the argument
}

// Setup is what a list passes to a reward.
type Setup struct {
	Argument string        // without quotes
	Options  any           // the struct of Definition.Options with its values set
	Labels   []string      // of the classifier; nil for completions
	Timeout  time.Duration // per score
	Late     func(error)   // is called with the error of each timeout, at once
	Judge    envs.Scorer   // nil if there is no judge
	Critic   func(name string) (envs.Critic, error)
}

// TextReward scores completions, by Each, Batch or Steps. Scoring has no side effects. A stateful reward updates its state in
// Observe, which runs once per rollout, and saves it in checkpoints with State and Restore.
type TextReward struct {
	// Each scores one completion. It runs concurrently, each call for at most the timeout.
	Each envs.Reward
	// Batch scores several completions; an entry of errs says why one has no score.
	Batch func(ctx context.Context, completions []envs.Completion) (values []float64, errs []error)

	// Steps scores the steps of several completions instead; the value of a completion is their sum.
	Steps func(ctx context.Context, completions []envs.Completion) (steps [][]Step, errs []error)

	late func(error) // see Setup.Late

	Observe func(values []float64) // the rollout's rewards, NaN for a failure; nil = stateless
	State   func() any
	Restore func(json.RawMessage) error
	Close   func() // nil = nothing to close
}

// LabelReward scores the labels that a classifier chooses: by Value and Expected, or only chosen labels by Choices.
type LabelReward struct {
	// Value is the reward of a label; nil if the reward reads probabilities.
	Value func(action, truth int) float64
	// Expected returns Σ_a π_a·R_a and adds its gradient to grad [C], which must be zero; see [Labels.Expected]. nil if the
	// reward can score only chosen labels.
	Expected func(truth int, probs, grad []float64) float64
	// ReadsProbs means that R depends on the policy's probabilities.
	ReadsProbs bool
	// Choices scores chosen labels; an entry of errs says why one has no score.
	Choices func(ctx context.Context, choices []Choice) (values []float64, errs []error)

	Observe func(choices []Choice, values []float64) // as TextReward.Observe
	State   func() any
	Restore func(json.RawMessage) error
	Close   func()
}

var rewards registry.Registry[Definition]

// Register adds a reward, usually from an init function. It panics if the definition is invalid: a bad or taken name, no
// help, no scoring function, or unreadable options.
func Register(d Definition) { rewards.Add("reward.Register: reward", d.Name, d, d.check) }

func (d Definition) check(earlier map[string]Definition) error {
	if _, taken := earlier[d.Name]; taken || d.Help == "" || d.Text == nil && d.Labels == nil {
		return errors.New("the name is taken, or help or the functions are missing")
	}
	if err := checkName(d.Name); err != nil || d.Options == nil {
		return err
	}
	if d.Argument != "" {
		return errors.New("a reward has an argument or options, not both")
	}
	_, err := options.Read(d.Options())
	return err
}

// checkName refuses names that a list could not contain.
func checkName(name string) error {
	if name == "" || strings.ContainsAny(name, ",=:()'\"` \t\n") {
		return fmt.Errorf("invalid name %q: it must be non-empty, without spaces, quotes, brackets, commas, equals signs or colons", name)
	}
	return nil
}

// Definitions lists the registered rewards by name.
func Definitions() []Definition { return rewards.All() }

// Function defines a reward by one Go function.
func Function(name, help string, score envs.Reward) Definition {
	return Definition{Name: name, Help: help, Text: func(Setup) (TextReward, error) { return TextReward{Each: score}, nil }}
}

// OfTask returns the rewards that a task defines, with the values of the task's options.
func OfTask(rewards []envs.NamedReward, settings any) []Definition {
	var all []Definition
	for _, r := range rewards {
		all = append(all, Definition{Name: r.Name, Help: r.Help, NeedsJudge: r.NeedsJudge, Text: func(s Setup) (TextReward, error) {
			return TextReward{Each: r.New(settings, s.Judge)}, nil
		}})
	}
	return all
}

// Written returns the syntax of the reward in a list, with its options.
func (d Definition) Written() string {
	switch {
	case d.Argument != "":
		return d.Name + ":" + d.Argument
	case d.Options == nil:
		return d.Name
	}
	set, err := options.Read(d.Options())
	if err != nil {
		return d.Name // Register refuses these
	}
	var names []string
	for _, o := range set.All() {
		names = append(names, o.Name+"="+o.Arg)
	}
	return d.Name + "(" + strings.Join(names, ",") + ")"
}

// Help describes the available rewards as "NAME: what it is": those for labels or those for completions. own are the task's
// rewards.
func Help(labels bool, own []envs.NamedReward) string {
	var parts []string
	for _, d := range append(Definitions(), OfTask(own, nil)...) {
		if !labels && d.Text == nil || labels && (d.NeedsJudge || d.Text != nil && d.Options == nil && d.Argument == "" && d.Labels == nil) {
			continue
		}
		help := d.Help
		if d.Options != nil {
			if set, err := options.Read(d.Options()); err == nil {
				for _, o := range set.All() {
					help += fmt.Sprintf(", %s: %s (default %v)", o.Name, o.Help, o.Default())
				}
			}
		}
		parts = append(parts, d.Written()+": "+help)
	}
	return strings.Join(parts, "; ")
}
