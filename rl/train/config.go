// Package train has the trainer: one loop for supervised training, reinforcement learning and preferences.
//
// A source gives the samples of a step: a data set in epochs (package epochs), rollouts, or a replay buffer (package
// rollout). An algorithm (package algo) turns their rewards into advantages and defines the loss. The trainer does the
// rest; Run in trainer.go is the place to start reading.
package train

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Source gives the samples of each step.
type Source = rl.StepSource

// Optimisation says how gradients become weights.
type Optimisation struct {
	LearningRate float64 `option:"learning_rate" default:"1e-4" range:"(0,)" common:"true" help:"peak learning rate"`
	Schedule     string  `option:"lr_scheduler_type" default:"linear" allowed:"linear,cosine,constant,constant_with_warmup,cosine_with_min_lr" help:"learning-rate schedule, by transformers' names"`
	WarmupRatio  float64 `option:"warmup_ratio" default:"0" range:"[0,1]" needs:"lr_scheduler_type!=constant" help:"fraction of the updates with a rising learning rate; the first of them has a rate of 0"`
	WarmupSteps  int     `option:"warmup_steps" default:"0" range:"[0,)" needs:"lr_scheduler_type!=constant" help:"number of updates with a rising learning rate; overrides warmup_ratio"`
	MinRate      float64 `option:"min_lr_rate" default:"0" range:"[0,1]" needs:"lr_scheduler_type=cosine_with_min_lr" help:"learning rate at the end, as a fraction of the peak"`
	Optim        string  `option:"optim" default:"adamw" allowed:"adamw,adamw_8bit,muon" help:"optimiser; adamw_8bit = AdamW with its moments in 8 bits; muon = Muon for the matrices of the layers and AdamW for other weights, when all weights are trained"`
	WeightDecay  float64 `option:"weight_decay" default:"0" range:"[0,)" help:"weight decay, decoupled; not on norms and biases"`
	AdamBeta1    float64 `option:"adam_beta1" default:"0.9" range:"[0,1)" help:"decay of AdamW's first moment"`
	AdamBeta2    float64 `option:"adam_beta2" default:"0.999" range:"[0,1)" help:"decay of AdamW's second moment"`
	AdamEpsilon  float64 `option:"adam_epsilon" default:"1e-8" range:"(0,)" help:"epsilon of AdamW"`
	MaxGradNorm  float64 `option:"max_grad_norm" default:"1" range:"[0,)" help:"clip gradients to this norm (0 = off)"`
	RouterCoef   float64 `option:"router_aux_loss_coef" default:"0" range:"[0,)" help:"weight of the loss that balances a mixture's experts, over the tokens of a forward pass, as in TRL (0 = off)"`
}

// group is how the weights of a policy's group are trained.
func (o Optimisation) group(g policy.Group) torch.ParamGroup {
	group := torch.ParamGroup{Params: g.Params, Apart: g.Role == policy.Value, Muon: g.Hidden && o.Optim == OptimMuon, EightBit: o.Optim == OptimAdamW8}
	if g.Decay {
		group.WeightDecay = o.WeightDecay
	}
	return group
}

// Bytes is the memory of the gradients and the optimiser's state of a policy.
func (o Optimisation) Bytes(p policy.Policy) (bytes int64, err error) {
	groups, err := p.Groups()
	if err != nil {
		return 0, err
	}
	for _, g := range groups {
		state, err := o.group(g).StateBytes()
		if err != nil {
			return 0, err
		}
		bytes += state
		for _, v := range g.Params {
			n, err := v.Elements()
			if err != nil {
				return 0, err
			}
			bytes += 4 * n
		}
	}
	return bytes, nil
}

// Values of Optim.
const (
	OptimAdamW8 = "adamw_8bit"
	OptimMuon   = "muon"
)

// Updates says how often a step's samples are learned from.
type Updates struct {
	Epochs   int     `option:"update_epochs" default:"1" range:"[1,1048576]" help:"passes over a rollout"`
	TargetKL float64 `option:"target_kl" default:"0" range:"[0,)" help:"end a rollout's updates when the approximate KL exceeds 1.5 times this (0 = off)"`
}

// Regularisation is what the trainer adds to every loss of reinforcement learning:
//
//	− EntropyCoef · Σ w·H(π)          + KLCoef · Σ w·k(log π − log π_ref), unless KLInReward
//
// with the weights w of the algorithm's reduction. With KLCorrection each k is multiplied by the ratio ρ = π/π_old: then its
// expectation is the KL, and its gradient that of the KL, although the sampling policy is an older one.
type Regularisation struct {
	EntropyCoef float64 `option:"entropy_coef" default:"0" range:"[0,)" help:"weight of the entropy bonus"`
	EntropyControl
	KLCoef       float64 `option:"kl_coef" default:"0" range:"[0,)" common:"true" help:"weight of the KL to the reference policy (0 = off)"`
	KLType       string  `option:"kl_type" default:"k3" allowed:"k1,k2,k3" needs:"kl_coef>0" help:"KL estimator; k1 needs kl_in_reward, because as a loss its mean gradient is 0"`
	KLInReward   bool    `option:"kl_in_reward" needs:"kl_coef>0" help:"subtract the KL from the reward instead of adding it to the loss"`
	KLCorrection bool    `option:"use_bias_correction_kl" needs:"kl_coef>0,!kl_in_reward" help:"multiply the KL of each token by its probability ratio, as TRL does by default: an unbiased gradient of the KL"`
	KLTarget     float64 `option:"kl_target" default:"0" range:"[0,)" needs:"kl_coef>0" help:"target KL per completion, in nats; adapts kl_coef (0 = keep kl_coef fixed)"`
	KLHorizon    float64 `option:"kl_horizon" default:"10000" range:"[1,)" needs:"kl_target>0" help:"completions over which kl_coef adapts"`

	ReferenceSync `needs:"kl_coef>0"`
}

// ReferenceSync moves the reference policy towards the policy (TR-DPO, arXiv 2404.09656): after every Every steps
//
//	w_ref ← Alpha · w + (1 − Alpha) · w_ref
//
// for each trained weight w; of an adapter, for its two matrices, the first w_ref being those of the start.
type ReferenceSync struct {
	Sync  bool    `option:"sync_ref_model" help:"move the reference policy towards the policy every ref_model_sync_steps steps"`
	Alpha float64 `option:"ref_model_mixup_alpha" default:"0.6" range:"(0,1]" needs:"sync_ref_model" help:"weight of the policy in the new reference; 1 = a copy of the policy"`
	Every int     `option:"ref_model_sync_steps" default:"512" range:"[1,)" needs:"sync_ref_model" help:"steps between moves of the reference"`
}

// Uncertain says from which tokens to learn: those at which the policy is least certain decide where an answer goes (arXiv
// 2506.01939). In each minibatch the loss of a token is multiplied by
//
//	1 if H ≥ the (1 − TopEntropy) quantile of H over all tokens of the minibatch, else 0
//
// with the entropies before the update. The tokens left out count in means, and the KL to the reference keeps all.
type Uncertain struct {
	TopEntropy float64 `option:"top_entropy_quantile" default:"1" range:"(0,1]" help:"learn only from this fraction of a minibatch's tokens, those of the highest entropy, as in TRL (1 = all); needs another forward pass"`
}

// EntropyControl adapts the coefficient c of the entropy bonus (Skywork-OR1, arXiv 2505.22312). After each update, H being the
// mean entropy of its tokens,
//
//	c ← min(c + Delta, Max) if H ≤ Target, else max(c − Delta, Min)
//
// and the next update has the bonus only if H ≤ Target.
type EntropyControl struct {
	Adaptive bool    `option:"use_adaptive_entropy" help:"after each update, raise entropy_coef if the entropy is at most entropy_target, else lower it; at higher entropies there is no bonus"`
	Target   float64 `option:"entropy_target" default:"0.2" range:"[0,)" needs:"use_adaptive_entropy" help:"mean entropy of a token, in nats, below which there is a bonus"`
	Delta    float64 `option:"entropy_coef_delta" default:"0.005" range:"(0,)" needs:"use_adaptive_entropy" help:"how far an update moves entropy_coef"`
	Min      float64 `option:"entropy_coef_min" default:"0" range:"[0,)" needs:"use_adaptive_entropy" help:"smallest entropy_coef"`
	Max      float64 `option:"entropy_coef_max" default:"1" range:"(0,)" needs:"use_adaptive_entropy" help:"largest entropy_coef"`
}

// Check returns an error if no coefficient is within the bounds.
func (e *EntropyControl) Check() error {
	if e.Adaptive && e.Max < e.Min {
		return envs.OptionErrorf("entropy_coef_max", "%g must be at least entropy_coef_min, %g", e.Max, e.Min)
	}
	return nil
}

// Memory says how forward passes fit into memory.
type Memory struct {
	MicroTokens int  `option:"tokens_per_micro_batch" range:"[0,)" help:"tokens per forward pass; less saves memory and changes no result (0 = automatic)"`
	OOMRetry    bool `option:"oom_retry" default:"true" help:"on out of memory, halve the tokens per forward pass and repeat it"`
}

// Checkpointing trades time for memory.
type Checkpointing struct {
	Checkpoint bool `option:"gradient_checkpointing" help:"keep only each block's input and recompute the rest: less memory, a third more time"`
}

// Signal says what happens if nothing can be learned from the first rollouts.
type Signal struct {
	AllowNone bool `option:"allow_no_signal" incidental:"true" help:"continue even if all rewards are equal in the first three steps; without it the run stops with an error"`
}

// Config configures a Trainer. Defaults sets its options to the defaults of their tags.
type Config struct {
	Steps int
	Optimisation
	HeadRate  float64 // peak learning rate of a classification head; 0 = LearningRate
	ValueRate float64 // peak learning rate of a value head; 0 = LearningRate
	Updates
	Minibatches   int // updates per pass over a step's samples; 0 = 1
	MinibatchSize int // samples per update; overrides Minibatches
	Regularisation
	Uncertain
	OffPolicy
	Memory
	Checkpointing
	Seed        uint64
	Temperature float64 // of a language model's logits, as in the rollouts; 0 = 1
	Longest     int     // most actions of a sample, for the reduction dr_grpo
	Samples     int     // samples per prompt; 0 = 1

	// Reference is the reference policy; nil = the policy as it is when training starts, or with ReferenceEvery as it was
	// at the last multiple of so many steps.
	Reference      policy.Policy
	ReferenceEvery int // steps; 0 = never

	Teacher policy.Policy // for an algorithm that needs another model in this process

	Stopping
	Signal
	// KeepLast is called after the last step, before the best weights take the place of others; nil = nobody wants those.
	KeepLast func() error
	// Precompute are samples whose reference log-probabilities are computed once, before the first step: they are the
	// starting policy's, even if the reference moves.
	Precompute []*rl.Sample

	Evaluate *evaluate.Plan // nil = no evaluation; the last weights are kept
	Summary  string         // figure next to the progress bar
}

// Defaults returns a Config whose options have the defaults of their tags, for so many steps.
func Defaults(steps int) Config {
	c := Config{Steps: steps}
	options.Defaults(&c)
	return c
}

// Stopping says when training ends before its last step.
type Stopping struct {
	Patience  int     `option:"early_stopping_patience" range:"[0,)" help:"stop after this many evaluations in a row without a new best (0 = off)"`
	Threshold float64 `option:"early_stopping_threshold" range:"[0,)" needs:"early_stopping_patience>0" help:"smallest improvement that counts as a new best"`
}

// Result is how training ended. Before, Best and Last are Scores.Value of the first, the best and the last evaluation. The
// policy has the weights of the best one if the plan keeps them, else the last.
type Result struct {
	Steps              int
	Version            uint64 // number of steps that changed the policy
	BestStep           int
	Unimproved         string // how the scores compare if training kept the start as the best; "" = it kept something better
	Before, Best, Last json.RawMessage
}

func (c Config) complete() Config {
	c.Epochs, c.Minibatches, c.Samples = max(1, c.Epochs), max(1, c.Minibatches), max(1, c.Samples)
	if c.Temperature == 0 {
		c.Temperature = 1
	}
	if c.AdamBeta1 == 0 && c.AdamBeta2 == 0 && c.AdamEpsilon == 0 {
		c.AdamBeta1, c.AdamBeta2, c.AdamEpsilon = 0.9, 0.999, torch.AdamEps
	}
	if c.KLTarget == 0 {
		c.KLHorizon = 0
	}
	if c.TopEntropy == 0 {
		c.TopEntropy = 1
	}
	if c.OffPolicy == (OffPolicy{}) {
		c.OffPolicy.High = 3
	}
	return c
}

// repeats says whether a step has more than one update.
func (c Config) repeats() bool { return c.Epochs*c.Minibatches > 1 || c.MinibatchSize > 0 }

// check returns an error if c does not fit the algorithm.
func (c Config) check(a algo.Algorithm, needs algo.Needs) error {
	if err := options.Check(a); err != nil {
		return fmt.Errorf("%w (algo.New gives an algorithm its defaults)", err)
	}
	if err := errors.Join(a.Check(c.Samples), c.OffPolicy.Check(), c.EntropyControl.Check()); err != nil {
		return err
	}
	switch {
	case c.Patience > 0 && c.Evaluate == nil:
		return errors.New("early_stopping_patience needs evaluations: hold out rows or problems")
	case c.Steps < 1:
		return fmt.Errorf("steps %d: must be at least 1", c.Steps)
	case needs.Ratio == algo.NoRatio && !needs.Repeats && c.repeats():
		return errors.New("the algorithm has no ratio, so a rollout allows one update: set update_epochs and minibatches to 1, or choose another algorithm")
	case c.KLCoef > 0 && c.KLType == string(rl.K1) && !c.KLInReward:
		return errors.New("kl_type k1 as a loss has a mean gradient of 0: choose k2 or k3, or set kl_in_reward")
	case c.KLCoef > 0 && c.KLInReward && needs.Choose != nil:
		return errors.New("kl_in_reward changes rewards after the algorithm has chosen its completions by them: use kl_coef without it")
	case needs.Reduction == algo.ReduceDrGRPO && c.Longest < 1:
		return errors.New("reduction dr_grpo needs the length of the longest completion: set Longest")
	case c.TopEntropy < 1 && !needs.ByAction:
		return errors.New("the algorithm does not weigh its actions one by one: leave top_entropy_quantile at 1, or choose another algorithm")
	case needs.Teacher != "" && needs.Teacher != algo.TeacherSelf && needs.Server.URL == "" && c.Teacher == nil:
		return errors.New("the algorithm needs a teacher")
	case needs.Server.URL != "" && c.Temperature != 1:
		return fmt.Errorf("temperature %v: a teacher on a server gives log-probabilities at temperature 1: set temperature to 1, or leave teacher_url out", c.Temperature)
	case c.Reference != nil && (c.ReferenceEvery > 0 || c.Sync):
		return errors.New("a reference that is another model cannot follow the policy: leave Reference, or ReferenceEvery and sync_ref_model, out")
	case c.Sync && (c.Alpha <= 0 || c.Alpha > 1 || c.Every < 1):
		return fmt.Errorf("sync_ref_model: ref_model_mixup_alpha %v must be above 0 and at most 1, ref_model_sync_steps %d at least 1", c.Alpha, c.Every)
	case c.Sync && c.ReferenceEvery > 0:
		return errors.New("ReferenceEvery and sync_ref_model both change the reference: leave one out")
	case c.Sync && !needs.Reference && c.KLCoef == 0:
		return errors.New("sync_ref_model needs a reference: set kl_coef")
	}
	if c.KLCoef > 0 {
		_, err := rl.ParseKLKind(c.KLType)
		return err
	}
	return nil
}
