package train

import (
	"cmp"
	"context"
	"os"

	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote/tinker"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// mostGap is a difference of log-probabilities, in nats, beyond which a sampler is hardly the policy.
const mostGap = 0.05

// languageLearner is a language model that a stage trains, here or on a service.
type languageLearner interface {
	learner
	evaluate.Validated
}

// readText reads what a policy on a service has here: the tokenizer and the templates of --model, or of the trained policy in
// start.
func (t *trainer) readText(ctx context.Context, start string) (*policy.CausalLM, error) {
	c, key := t.config, "pretrained_model"
	if start == "" {
		key = "model"
		model, err := t.modelFolder(ctx)
		if err != nil {
			return nil, err
		}
		start = cmp.Or(model.Name, model.Dir)
	}
	p, err := policy.LoadText(ctx, t.hub, start)
	if err != nil {
		return nil, c.Errorf(key, "%v", err)
	}
	return p, t.speak(p)
}

// trained has a stage train p, or with --engine a policy of p's texts on the service. start is the folder that it begins
// from.
func (t *trainer) trained(ctx context.Context, w *work, p *policy.CausalLM, start string) (languageLearner, error) {
	c := t.config
	w.policy = p
	o := c.Tokens.Options
	if o.Engine == "" {
		return p, nil
	}
	if err := train.CheckDistant(w.algorithm, w.settings); err != nil {
		return nil, c.Blame(err)
	}
	if t.group != nil {
		return nil, c.Errorf("engine", "is for one process alone: the service divides the work")
	}
	far, err := tinker.New(context.WithoutCancel(ctx), p, tinker.Config{
		URL: o.URL(), Key: os.Getenv("TINKER_API_KEY"), Model: o.Name, Rank: c.Tokens.LoRA.R, Seed: c.General.Seed, From: start,
	})
	if err != nil {
		return nil, c.Errorf("engine", "%v", err)
	}
	w.closing(far.Close)
	w.policy = far
	w.note("Trained by " + o.URL() + ", model " + far.Name())
	return far, nil
}

// sampler is what samples completions of a stage's policy, slots at a time: this process, or the service that trains it.
func (t *trainer) sampler(ctx context.Context, w *work, stage *run.Stage, p *policy.CausalLM, slots int) (rollout.Generator, error) {
	if far, ok := w.policy.(*tinker.Policy); ok {
		sampler, gap, err := far.NewSampler(ctx)
		if err != nil {
			return nil, t.config.Errorf("engine", "%v", err)
		}
		text := "Log-probabilities of the service's sampler and its training"
		if gap > mostGap {
			text = "warning: check the service's precision: log-probabilities of its sampler and its training"
		}
		return sampler, stage.Printf("%s differ by %.2g nats on average", text, gap)
	}
	sampler, err := p.NewSampler(slots)
	if err != nil {
		return nil, err
	}
	w.closing(sampler.Close)
	return sampler, nil
}
