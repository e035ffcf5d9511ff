package config

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// validate checks what a single value cannot show: that the given settings mean something in this run, and that the
// settings which depend on each other agree. A file may spell out defaults that do not apply, so that a printed recipe
// serves any mode.
func (c *Config) validate(given map[string]assignment) error {
	recipe, err := Defaults(c.Task)
	if err != nil {
		return err
	}
	if modes := anyTask.modes(c.Task); !slices.Contains(modes, c.Mode) {
		return c.Errorf("mode", "%s: task %s has no such stage; it has %s", c.Mode, c.Task, strings.Join(modes, ", "))
	}
	for i := range keys {
		k := &keys[i]
		a, ok := given[k.name]
		if !ok || a.source.Layer == File && reflect.DeepEqual(a.value, recipe.field(k).Interface()) {
			continue
		}
		switch {
		case a.alias != nil && a.alias.only != 0 && a.alias.only.of(c.Task) == 0:
			return a.source.errorf("%s", a.alias.instead)
		case len(k.scope.modes(c.Task)) == 0:
			return a.source.errorf("does not apply to task %s; it applies to %s", c.Task, strings.Join(k.scope.tasks(), ", "))
		case !k.scope.has(c.Task, c.Mode):
			return a.source.errorf("does not apply to mode %s%s; it applies to %s",
				c.Mode, c.modeOrigin(), strings.Join(k.scope.modes(c.Task), " and "))
		}
		if k.needs != nil {
			if missing := k.needs(c); missing != "" {
				return a.source.errorf("applies only with %s", missing)
			}
		}
	}
	if c.Mode == RLOnly && c.PretrainedModel == "" && untaught.of(c.Task) == 0 {
		return usagef("mode rl_only needs --pretrained-model DIR, the folder of a finished supervised stage")
	}
	if c.Task != Intent {
		return c.validateLanguage()
	}
	switch {
	case c.Algorithm != "ppo":
		return c.Errorf("algorithm", "%s: task intent has ppo", c.Algorithm)
	case c.MaxLength < 3:
		return c.Errorf("max_length", "%d leaves no room beside special tokens; it must be at least 3", c.MaxLength)
	case c.Dataset != "" && c.TextColumn == c.LabelColumn:
		return usagef("text_column and label_column are both %q; name two columns", c.TextColumn)
	case !withRL.has(c.Task, c.Mode):
		return nil
	case c.Reward == customReward && c.RewardExpr == "":
		return c.Errorf("reward", "custom needs --reward-expr, an expression such as 'correct - 0.5*(1-correct)*confidence'")
	case strings.Contains(c.RewardExpr, "'") && strings.Contains(c.RewardExpr, `"`):
		return c.Errorf("reward_expr", "has quotes of both kinds; write one kind")
	case c.BufferSize < c.RLBatchSize:
		return usagef("buffer_size %d is less than rl_batch_size %d: a minibatch would never fill", c.BufferSize, c.RLBatchSize)
	}
	return nil
}

// modeOrigin tells where the mode was chosen if that is not in view, on the same command line.
func (c *Config) modeOrigin() string {
	switch s := c.sources["mode"]; s.Layer {
	case File:
		return " (chosen at " + s.Position + ")"
	case Env:
		return " (chosen by " + s.Name + ")"
	case Recipe:
		return " (the default)"
	}
	return ""
}

// validateLanguage is validate for the tasks of language models.
func (c *Config) validateLanguage() error {
	switch {
	case c.Task == Chat && c.Dataset == "":
		return usagef("task chat needs --dataset FILE, with a column text or messages, or prompt and completion")
	case c.Model == TinyModel && c.TinyHidden%32 != 0:
		return c.Errorf("tiny_hidden", "%d is not a multiple of 32, the width of a head", c.TinyHidden)
	case problemTask.of(c.Task) != 0 && c.Dataset == "":
		return usagef("task %s needs --dataset FILE, with columns question and answer, or problem and solution", c.Task)
	case c.SymCalc && !c.Annotate:
		return c.Errorf("sym_calc", "works on <<expression=result>>, which annotate=false keeps from the prompt; choose one")
	case !withRL.has(c.Task, c.Mode):
		return nil
	case c.OverlongBuffer > c.MaxNewTokens:
		return c.Errorf("overlong_buffer", "%d is more than max_new_tokens, %d", c.OverlongBuffer, c.MaxNewTokens)
	case c.Minibatches > c.PromptsPerStep*c.SamplesPerPrompt:
		return c.Errorf("minibatches", "%d is more than the %d answers of a step", c.Minibatches, c.PromptsPerStep*c.SamplesPerPrompt)
	case c.Judge != "" && (c.StepTimeout > 0 || c.Async):
		return c.Errorf("judge", "computes where the policy does: it goes neither with step_timeout nor with async")
	case !c.Replay():
		return nil
	case c.RLBatchSize > c.NumUpdateSteps:
		return usagef("rl_batch_size %d is more than num_update_steps %d: no update would have as many turns", c.RLBatchSize, c.NumUpdateSteps)
	case c.ReturnMin > c.ReturnMax:
		return c.Errorf("return_min", "%v is more than return_max, %v", c.ReturnMin, c.ReturnMax)
	case slices.Contains([]string{".pkl", ".pickle"}, filepath.Ext(c.BufferCache)):
		return c.Errorf("buffer_cache", "%s is the name of a Python pickle, and reading one runs code; the buffer is kept as JSON lines: name it .jsonl", c.BufferCache)
	}
	return nil
}
