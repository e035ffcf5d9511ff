package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch/hub"
)

// Blame makes an error about an option, as a task's, a *UsageError that names where it was given.
func (c *Config) Blame(err error) error {
	if fault := (*envs.OptionError)(nil); errors.As(err, &fault) {
		return c.Errorf(fault.Option, "%v", fault.Err)
	}
	return err
}

// checkNeeds refuses given settings that mean nothing beside the others. A file may spell out defaults.
func (l *loading) checkNeeds() {
	var recipe *Config
	for _, key := range l.order {
		o, given := l.set.Find(key), l.given[key]
		missing := l.set.Missing(o)
		if missing == "" {
			continue
		}
		if strings.HasPrefix(given.source.Name, routerSection) {
			// The section has its settings whether or not they mean something.
			l.skipped = append(l.skipped, given.source.Name)
			o.Set(o.Default())
			continue
		}
		if given.source.Layer == Theirs {
			o.Set(o.Default())
			delete(l.sources, key)
			continue
		}
		if given.source.Layer == File {
			if recipe == nil {
				recipe, _ = l.withRecipe()
			}
			if reflect.DeepEqual(given.value, recipe.set.Find(key).Get()) {
				continue
			}
		}
		l.found.add(given.source.errorf("applies only %s", missing))
	}
}

// usageErrors are the mistakes that err joins, each naming where its option was given.
func (c *Config) usageErrors(err error) []error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, one := range several.Unwrap() {
			all = append(all, c.usageErrors(one)...)
		}
		return all
	}
	if err == nil {
		return nil
	}
	if blamed := c.Blame(err); blamed != err {
		return []error{blamed}
	}
	return []error{usagef("%v", err)}
}

// check finds what no single value can show.
func (c *Config) check() (found []error) {
	add := func(err error) { found = append(found, c.usageErrors(err)...) }
	parts := reflect.ValueOf(c).Elem()
	for i := range parts.NumField() {
		field := parts.Field(i)
		if field.Kind() == reflect.Struct && field.CanInterface() {
			field = field.Addr()
		}
		if field.CanInterface() && (field.Kind() == reflect.Pointer || field.Kind() == reflect.Interface) && !field.IsNil() {
			if part, ok := field.Interface().(interface{ Check() error }); ok {
				add(part.Check())
			}
		}
	}
	if c.Task.Needs != "" && c.Text("dataset") == "" {
		add(fmt.Errorf("task %s needs --dataset FILE, with %s", c.Task.Name, c.Task.Needs))
	}
	if c.Tokens != nil && c.Pretrained() != "" && c.General.Model != c.ofRecipe("model", TinyModel) {
		add(envs.OptionErrorf("model", "cannot be combined with --pretrained-model"))
	}
	// A policy that nobody has taught earns too little to learn from, unless the task's recipe thinks otherwise.
	randomHead := c.Labels != nil && !c.Task.AllowRandomHead || c.Tokens != nil && c.General.Model == TinyModel && (c.Policy != nil || c.ofRecipe("mode", c.Task.Modes()[0]) != envs.RLOnly)
	if c.General.Mode == envs.RLOnly && c.Pretrained() == "" && randomHead {
		add(errUntaught)
	}
	if c.Policy != nil && c.Labels != nil && c.General.Model == TinyModel {
		add(envs.OptionErrorf("model", "tiny generates labels: use --policy generate"))
	}
	if c.Rewarding != nil && c.General.Model == TinyModel {
		add(envs.OptionErrorf("model", "tiny has random weights, and an adapter on them makes no reward model: use a trained model, such as the folder of a supervised stage"))
	}
	if c.Policy.Scores() && c.Pretrained() == "" && c.General.Model == c.ofRecipe("model", "") {
		add(envs.OptionErrorf("policy", "%s needs a language model: name one with --model", policyScore))
	}
	add(c.checkJudge())
	add(c.checkStart())
	add(c.checkOptimiser())
	samples := 1
	switch {
	case c.Fresh != nil:
		samples = c.Fresh.SamplesPerPrompt
	case c.LabelRollouts != nil:
		samples = c.LabelRollouts.Samples
	}
	if c.Learning != nil {
		add(c.Learning.Check(samples))
		if _, tested := c.Settings.(envs.ProgramSource); c.Learning.Needs().Context.Feedback && !tested {
			add(envs.OptionErrorf("include_environment_feedback", "is for tasks that run tests, such as code"))
		}
	}
	if c.Answers != nil && c.Answers.MaxThinking >= max(1, c.ActionTokens()) {
		add(envs.OptionErrorf("max_thinking_tokens", "%d leaves no tokens for the answer: lower it below the %d tokens of a completion", c.Answers.MaxThinking, c.ActionTokens()))
	}
	if f := c.Fresh; f != nil {
		if longest := c.LongestAnswer(); f.OverlongBuffer > longest {
			add(envs.OptionErrorf("overlong_buffer", "%d is more than the longest completion, %d tokens", f.OverlongBuffer, longest))
		} else {
			add(rollout.TokensConfig{Options: f.Options, MaxNew: c.ActionTokens(), MaxTotal: longest, Greedy: c.Learning.Needs().Greedy}.Check())
		}
		if f.ByDifficulty && c.Text("curriculum_column") != "" {
			add(envs.OptionErrorf("curriculum_column", "gives prompts an order, but difficulty_pools samples them: leave one out"))
		}
		add(f.Remote.Check())
		if len(f.Remote.URLs) > 0 {
			add(c.checkServers())
		}
		if answers := f.PromptsPerStep * f.SamplesPerPrompt; c.Minibatches != nil && c.Minibatches.Minibatches > answers {
			add(envs.OptionErrorf("minibatches", "%d is more than the %d completions of a step", c.Minibatches.Minibatches, answers))
		}
		if r := c.Regularisation; r.KLCoef > 0 && r.KLType == string(rl.K1) && !r.KLInReward {
			add(envs.OptionErrorf("kl_type", "k1 as a loss has a gradient of mean 0: use k2 or k3, or kl_in_reward"))
		}
		if c.Judge != nil && c.Judge.Model != "" && c.Judge.URL == "" && (f.StepTimeout > 0 || f.Async) {
			add(envs.OptionErrorf("judge", "computes on the policy's device, so it cannot be combined with step_timeout or async"))
		}
	}
	return found
}

// checkServers returns what rollout servers cannot do.
func (c *Config) checkServers() error {
	var found []error
	if c.Pretrained() == "" && c.FullTuning() {
		found = append(found, envs.OptionErrorf("rollout_url", "servers take adapters, but this run trains all weights: use --tuning lora"))
	}
	if c.Tokens != nil && len(c.Tokens.LoRA.Full) > 0 {
		found = append(found, envs.OptionErrorf("rollout_url", "servers take low-rank pairs alone: leave out lora_modules_to_save"))
	}
	if c.Tokens != nil && c.Tokens.LoRA.DoRA {
		found = append(found, envs.OptionErrorf("rollout_url", "servers take low-rank pairs alone: leave out use_dora"))
	}
	if c.Fresh.Filtered() {
		found = append(found, envs.OptionErrorf("rollout_url", "%w", rollout.ErrFiltered))
	}
	return errors.Join(found...)
}

// checkStart returns what is wrong with the start of the adapter.
func (c *Config) checkStart() error {
	start := c.Text("init_lora_weights")
	rank, _ := c.Count("lora_r")
	switch {
	case start == policy.InitOrthogonal && rank%2 != 0:
		return envs.OptionErrorf("init_lora_weights", "orthogonal needs an even lora_r, not %d", rank)
	case start == policy.InitPiSSA && c.Tokens == nil:
		return envs.OptionErrorf("init_lora_weights", "%s is for language models that generate", policy.InitPiSSA)
	case start == policy.InitPiSSA && c.Tokens.Quantize != "none":
		return envs.OptionErrorf("init_lora_weights", "%s changes the weights, which quantize=%s would round: use one of them", policy.InitPiSSA, c.Tokens.Quantize)
	}
	return nil
}

// checkOptimiser refuses Muon where no matrices of layers are trained.
func (c *Config) checkOptimiser() error {
	for _, key := range []string{"optim", "rl_optim"} {
		if c.Text(key) == train.OptimMuon && (c.Tokens == nil || c.Pretrained() == "" && !c.FullTuning()) {
			return envs.OptionErrorf(key, "%s is for language models all of whose weights are trained: use adamw, or --tuning full", train.OptimMuon)
		}
	}
	return nil
}

// checkJudge returns what is wrong with the judge.
func (c *Config) checkJudge() error {
	switch {
	case c.Judge == nil:
		return nil
	case c.Judge.Model != "" && c.Rewards.Reward == "" && !slices.ContainsFunc(c.Task.Rewards, func(r envs.NamedReward) bool { return r.NeedsJudge }):
		return envs.OptionErrorf("judge", "no reward asks a judge: add --reward rubric:FILE")
	}
	return c.Judge.Check()
}

// chooseGGUF has the model name the file of gguf_file, so that nothing else needs to know of it.
func (c *Config) chooseGGUF() (err error) {
	if c.General.GGUFFile == "" {
		return nil
	}
	if c.General.Model == c.ofRecipe("model", TinyModel) || c.Pretrained() != "" {
		return c.Errorf("gguf_file", "needs --model, the folder or repository with the file")
	}
	if c.General.Model, err = hub.WithFile(c.General.Model, c.General.GGUFFile); err != nil {
		return c.Errorf("gguf_file", "%v", err)
	}
	return nil
}

// ofRecipe is what the run's recipe says of an option, or else usual.
func (c *Config) ofRecipe(key, usual string) string {
	if value, e := pick(key, [][]entry{c.recipe.entries}); e != nil {
		return value
	}
	return usual
}

// modeOrigin tells where the mode was chosen if that is not in view, on the same command line.
func (c *Config) modeOrigin() string {
	switch s := c.sources["mode"]; s.Layer {
	case File:
		return " (set at " + s.Position + ")"
	case Env:
		return " (set by " + s.Name + ")"
	case Recipe:
		return " (the default)"
	}
	return ""
}
