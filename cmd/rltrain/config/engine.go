package config

import (
	"errors"
	"reflect"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl/train"
)

// checkEngine returns what a service that trains the policy cannot do. The trainer refuses what its losses would need. A
// recipe's adapter gives way to the service's.
func (l *loading) checkEngine() []error {
	c := l.Config
	if c.Tokens == nil || c.Tokens.Engine == "" {
		return nil
	}
	recipe, err := l.withRecipe()
	if err != nil {
		return []error{err}
	}
	m, lora := c.Tokens, c.Tokens.LoRA
	smoothing, remote, async, filtered := 0.0, false, false, false
	if c.TextSFT != nil {
		smoothing = c.TextSFT.Factor
	}
	if c.Fresh != nil {
		remote, async, filtered = len(c.Fresh.Remote.URLs) > 0, c.Fresh.Async, c.Fresh.MinP > 0 || c.Fresh.RepetitionPenalty != 1
	}
	optimiser := func(o *train.Optimisation) bool { return o.Optim != "adamw" }
	var found []error
	if c.Pretrained() == "" && c.FullTuning() {
		found = append(found, envs.OptionErrorf("tuning", "a service (--engine) trains adapters: use --tuning lora"))
	}
	for _, x := range []struct {
		option string
		used   bool
		why    string
	}{
		{"lora_alpha", lora.Alpha != 32, "a service has 32"},
		{"use_dora", lora.DoRA, "a service trains low-rank pairs alone"},
		{"use_rslora", lora.RSLoRA, "a service scales by 32 / lora_r"},
		{"init_lora_weights", lora.Init != "kaiming", "a service has its own start"},
		{"lora_target_modules", len(lora.Targets) > 0, "a service adapts attention and MLPs"},
		{"lora_target_parameters", len(lora.Parameters) > 0, "a service adapts attention and MLPs"},
		{"lora_dropout", lora.Dropout > 0, "a service has no dropout"},
		{"lora_modules_to_save", len(lora.Full) > 0, "a service trains low-rank pairs alone"},
		{"quantize", m.Quantize != "none", "the service has the weights: choose their type there"},
		{"dtype", m.DType != "auto", "the service has the weights: choose their type there"},
		{"gradient_checkpointing", m.Checkpoint, "the service has the activations: set it there"},
		{"optim", c.Supervised != nil && optimiser(&c.Supervised.Optimisation), "a service has adamw"},
		{"rl_optim", c.RL != nil && optimiser(&c.RL.Optimisation), "a service has adamw"},
		{"label_smoothing_factor", smoothing > 0, "needs the probabilities of all tokens"},
		{"metric_for_best_model", c.TextSFT != nil && c.TextSFT.Metric != "loss", "needs the ranks of tokens: use loss"},
		{"rollout_url", remote, "the service samples; its adapters are not files that other servers can load"},
		{"async", async, "a service samples between the updates: leave it out"},
		{"min_p", filtered, "a service samples without min_p and repetition_penalty"},
	} {
		if x.used && !reflect.DeepEqual(c.set.Find(x.option).Get(), recipe.set.Find(x.option).Get()) {
			found = append(found, envs.OptionErrorf(x.option, "cannot be combined with --engine: %s", x.why))
		}
	}
	return c.usageErrors(errors.Join(found...))
}
