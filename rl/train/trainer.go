// Package algo is how policies get better: one trainer for every way of learning, and the algorithms, one file each, to
// be read from top to bottom like their papers.
//
// A source gives samples: a data set in epochs (Epochs), rollouts, or draws from a replay buffer (package rollout). An
// algorithm turns the rewards of a step's samples into advantages and says what the loss is. The trainer does the rest
// for all of them.
package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// Source is where the samples of a step come from.
type Source = rl.StepSource

// Optimisation says how gradients become weights.
type Optimisation struct {
	LearningRate float64 `option:"learning_rate" default:"1e-4" range:"(0,)" common:"true" help:"peak rate of the weights that are trained"`
	Schedule     string  `option:"lr_scheduler_type" default:"linear" allowed:"linear,cosine,constant" help:"course of the rates after warm-up"`
	WarmupRatio  float64 `option:"warmup_ratio" default:"0" range:"[0,1]" help:"share of the updates over which the rates rise"`
	WarmupSteps  int     `option:"warmup_steps" default:"0" range:"[0,)" help:"number of the updates over which the rates rise; overrides the share"`
	WeightDecay  float64 `option:"weight_decay" default:"0" range:"[0,)" help:"decoupled, as in AdamW; norms and biases have none"`
	MaxGradNorm  float64 `option:"max_grad_norm" default:"1" range:"[0,)" help:"clip the gradient's norm; 0 = never"`
}

// Updates says how often a step's samples are learnt from.
type Updates struct {
	Epochs   int     `option:"update_epochs" default:"1" range:"[1,1048576]" help:"passes over a rollout"`
	TargetKL float64 `option:"target_kl" default:"0" range:"[0,)" help:"stop a rollout's update at 1.5 times this approximate KL; 0 = never"`
}

// Regularisation is what the trainer adds to every loss of reinforcement learning:
//
//	− EntropyCoef · Σ w·H(π)          + KLCoef · Σ w·k(log π − log π_ref), unless the rewards have it
//
// with w the weights of the actions by the algorithm's reduction.
type Regularisation struct {
	EntropyCoef float64 `option:"entropy_coef" default:"0" range:"[0,)" help:"weight of the entropy bonus"`
	KLCoef      float64 `option:"kl_coef" default:"0" range:"[0,)" common:"true" help:"weight of the divergence from the reference policy; 0 = none"`
	KLType      string  `option:"kl_type" default:"k3" allowed:"k1,k2,k3" needs:"kl_coef>0" help:"estimator of the divergence; k1 only as part of the reward: as a loss its gradient has mean 0"`
	KLInReward  bool    `option:"kl_in_reward" needs:"kl_coef>0" help:"take the divergence off the reward instead of adding it to the loss"`
	KLTarget    float64 `option:"kl_target" default:"0" range:"[0,)" needs:"kl_coef>0" help:"adapt kl_coef so that an answer is this far from the reference, in nats; 0 = kl_coef stays"`
	KLHorizon   float64 `option:"kl_horizon" default:"10000" range:"[1,)" needs:"kl_target>0" help:"answers over which kl_coef adapts"`
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

// Config is what the trainer needs to know beside the policy, the source and the algorithm.
type Config struct {
	Steps int
	Optimisation
	HeadRate  float64 // peak learning rate of a classification head; 0 = LearningRate
	ValueRate float64 // peak learning rate of a value head; 0 = LearningRate
	Updates
	Minibatches   int // of a pass over a step's samples, an update each; 0 = 1
	MinibatchSize int // samples of each instead; 0 = by Minibatches
	Regularisation
	Memory
	Checkpointing
	Seed        uint64
	Temperature float64 // of a language model's logits, as in the rollouts; 0 = 1
	Longest     int     // actions that a sample has at most, for the reduction dr_grpo
	Samples     int     // samples of a prompt that an algorithm may compare; 0 = 1

	// Reference is the reference policy where it is another one; nil = the policy as it is when training begins, or as
	// it was at the last multiple of ReferenceEvery steps.
	Reference      policy.Policy
	ReferenceEvery int // 0 = never

	Teacher policy.Policy // what the algorithm draws the policy to, where it needs one

	Stopping
	// Precompute are samples that the reference is asked about before the first step, and never again.
	Precompute []*rl.Sample

	Evaluate *evaluate.Plan // nil = none, and the last weights are kept
	Summary  string         // the figure that stands beside the progress bar
}

// Stopping says when training ends before its last step.
type Stopping struct {
	Patience  int     `option:"early_stopping_patience" range:"[0,)" help:"stop after this many evaluations in a row that are no better than the best; 0 = never"`
	Threshold float64 `option:"early_stopping_threshold" range:"[0,)" needs:"early_stopping_patience>0" help:"by how much an evaluation has to be better than the best to count"`
}

// judgements are what a checkpoint keeps of evaluations.
type judgements struct {
	Before    json.RawMessage `json:"before,omitempty"`
	Best      json.RawMessage `json:"best,omitempty"`
	Last      json.RawMessage `json:"last,omitempty"`
	BestScore float64         `json:"best_score"`
	BestStep  int             `json:"best_step"`
	Waited    int             `json:"waited,omitempty"` // evaluations in a row that were no better
}

// Result is how training ended. Before, Best and Last are Scores.Value of the evaluations; Last is that of the last
// weights. The policy holds the weights of the best evaluation, where one picks them.
type Result struct {
	Steps              int
	Version            uint64 // of the policy: how many steps have changed it
	BestStep           int
	Before, Best, Last json.RawMessage
}

// state is all that changes from step to step, the weights and the optimiser's moments aside.
type state struct {
	Step    int                  `json:"step"`
	Version uint64               `json:"version"`
	Done    bool                 `json:"done"` // as an evaluation found
	Window  rl.Meter             `json:"window"`
	Watch   rl.Watch             `json:"watch"`
	KL      rl.KLControllerState `json:"kl"`
	Judged  judgements           `json:"judged"`
	// MicroTokens is what MicroTokens of Config has become where memory ran out; 0 = it never did.
	MicroTokens int             `json:"micro_tokens,omitempty"`
	Source      json.RawMessage `json:"source"`
	Algorithm   json.RawMessage `json:"algorithm"`
}

// kept is a forward pass of the policy as it scored the first part of a step. The first update finds the same weights,
// so that it goes back through this pass and does not run another.
type kept struct {
	held  *torch.Held
	part  []*rl.Sample
	batch *rl.Batch
	out   policy.Output
}

// Trainer takes a policy through the steps of training.
type Trainer struct {
	policy    policy.Policy
	source    Source
	algorithm algo.Algorithm
	needs     algo.Needs
	accuracy  string // the figure of right actions
	config    Config
	hooks     run.Hooks
	schedule  rl.Schedule
	optimizer *torch.AdamW
	roles     []policy.Role // of the optimiser's groups
	body      []*torch.Var  // the weights that are trained, but for the heads
	kl        *rl.KLController
	reference *reference
	best      run.Snapshot
	// precomputed are those of Config.Precompute, once they are.
	precomputed map[*rl.Sample]bool
	kept        *kept
	traffic     dist.Traffic // as it was when the last step was reported
	scored      bool         // log π_old of this step's samples is asked for before its first update
	state       state
}

// Train improves a policy by the samples of a source with an algorithm. Dropout is off, but where the algorithm
// imitates. Losses are sums divided by counts of the whole minibatch, so the division of a minibatch into forward
// passes changes nothing. π_old is the trainer's own forward pass at the weights that acted, in the minibatches of the
// first pass, so the first ratio is exactly 1.
//
// Every random choice is a function of (seed, step, sample), so a run resumed from a checkpoint ends with the same
// bytes as one that was never stopped. Where ctx ends, the step under way is finished or given up, a checkpoint is
// made, and the error is run.ErrStopped.
func Run(ctx context.Context, p policy.Policy, src Source, a algo.Algorithm, c Config, h run.Hooks) (Result, error) {
	t, err := New(p, src, a, c, h)
	if err != nil {
		return Result{}, err
	}
	defer t.Close()
	if err := t.train(ctx); err != nil {
		return Result{}, t.stopped(err)
	}
	if c.Evaluate != nil && c.Evaluate.KeepBest && t.best != nil {
		if err := t.best.PutBack(p); err != nil {
			return Result{}, err
		}
	}
	j := t.state.Judged
	return Result{Steps: t.state.Step, Version: t.state.Version, BestStep: j.BestStep, Before: j.Before, Best: j.Best, Last: j.Last}, nil
}

// New makes a trainer, to be closed after use. Most callers want Train.
func New(p policy.Policy, src Source, a algo.Algorithm, c Config, h run.Hooks) (*Trainer, error) {
	t := &Trainer{policy: p, source: src, algorithm: a, needs: a.Needs(), config: c.complete(), hooks: h, state: state{Window: rl.Meter{}}}
	if err := t.check(); err != nil {
		return nil, err
	}
	t.accuracy = "mean_token_accuracy"
	if _, labels := p.(*policy.Classifier); labels {
		t.accuracy = "accuracy"
	}
	var err error
	if t.schedule, err = rl.NewSchedule(c.Schedule, c.Steps, c.WarmupRatio, c.WarmupSteps); err != nil {
		return nil, err
	}
	if t.kl, err = rl.NewKLController(t.config.KLCoef, t.config.KLTarget, t.config.KLHorizon); err != nil {
		return nil, err
	}
	if t.needs.Values {
		if err := p.AddValueHead(); err != nil {
			return nil, err
		}
	}
	return t, t.newOptimizer()
}

func (c Config) complete() Config {
	c.Epochs, c.Minibatches, c.Samples = max(1, c.Epochs), max(1, c.Minibatches), max(1, c.Samples)
	if c.Temperature == 0 {
		c.Temperature = 1
	}
	if c.KLTarget == 0 {
		c.KLHorizon = 0
	}
	return c
}

// check refuses what cannot be trained.
func (t *Trainer) check() error {
	c := t.config
	if err := options.Check(t.algorithm); err != nil {
		return fmt.Errorf("%w (algo.New gives an algorithm its defaults)", err)
	}
	if err := t.algorithm.Check(c.Samples); err != nil {
		return err
	}
	repeats := c.Epochs*c.Minibatches > 1 || c.MinibatchSize > 0
	switch {
	case c.Patience > 0 && c.Evaluate == nil:
		return errors.New("early stopping waits for evaluations, and there are none: it needs rows or exercises that are held out")
	case c.Steps < 1:
		return fmt.Errorf("%d steps: at least 1 is needed", c.Steps)
	case t.needs.Ratio == algo.NoRatio && !t.needs.Repeats && repeats:
		return errors.New("the algorithm has no ratio that corrects a second update on the same samples: leave update_epochs and minibatches at 1, or choose another algorithm")
	case c.KLCoef > 0 && c.KLType == string(rl.K1) && !c.KLInReward:
		return errors.New("kl_type k1 as a loss has a gradient of mean 0, which holds nothing back: choose k2 or k3, or kl_in_reward")
	case t.needs.Reduction == algo.ReduceDrGRPO && c.Longest < 1:
		return errors.New("reduction dr_grpo divides by the longest answer there may be, which is not known here")
	case t.needs.Teacher != "" && c.Teacher == nil:
		return errors.New("the algorithm needs a teacher")
	case c.Reference != nil && c.ReferenceEvery > 0:
		return errors.New("another model for a reference stays as it is: it cannot become a copy of the policy")
	}
	if c.KLCoef > 0 {
		_, err := rl.ParseKLKind(c.KLType)
		return err
	}
	return nil
}

func (t *Trainer) newOptimizer() error {
	var groups []torch.ParamGroup
	for _, g := range t.policy.Groups() {
		if g.Role == policy.Value && !t.needs.Values {
			continue
		}
		group := torch.ParamGroup{Params: g.Params, Apart: g.Role == policy.Value}
		if g.Decay {
			group.WeightDecay = t.config.WeightDecay
		}
		if g.Role == policy.Body {
			t.body = append(t.body, g.Params...)
		}
		groups, t.roles = append(groups, group), append(t.roles, g.Role)
	}
	if len(t.body) == 0 {
		return errors.New("the policy has nothing to train: it was loaded without an adapter, or with one that is merged")
	}
	t.optimizer = torch.NewAdamW(torch.AdamEps, groups...)
	return nil
}

// rates are the learning rates of the optimiser's groups.
func (t *Trainer) rates() []float64 {
	c, factor := t.config, t.schedule.At(t.state.Step)
	rates := make([]float64, len(t.roles))
	for i, role := range t.roles {
		rates[i] = factor * c.LearningRate
		switch {
		case role == policy.Head && c.HeadRate > 0:
			rates[i] = factor * c.HeadRate
		case role == policy.Value && c.ValueRate > 0:
			rates[i] = factor * c.ValueRate
		}
	}
	return rates
}

// Close frees what the trainer holds; the policy stays.
func (t *Trainer) Close() {
	t.letGo()
	t.optimizer.Close()
}

func (t *Trainer) train(ctx context.Context) error {
	if err := t.start(ctx); err != nil {
		return err
	}
	for t.state.Step < t.config.Steps && !t.state.Done {
		if _, err := t.Step(ctx); err != nil {
			return err
		}
		if err := t.evaluateIfDue(ctx); err != nil {
			return err
		}
		last := t.state.Step == t.config.Steps || t.state.Done
		if last && len(t.state.Window) > 0 {
			if err := t.flush(false); err != nil {
				return err
			}
		}
		if t.hooks.SaveDue(t.state.Step) || t.hooks.Save != nil && last {
			if err := t.save(); err != nil {
				return err
			}
		}
	}
	return nil
}

// start resumes, or takes the reference and measures the policy as it was given.
func (t *Trainer) start(ctx context.Context) error {
	if t.hooks.Resume != "" {
		if err := t.resume(); err != nil {
			return err
		}
		if err := t.sameBeginning(); err != nil {
			return err
		}
		return t.precompute()
	}
	if err := t.sameBeginning(); err != nil {
		return err
	}
	if err := t.takeReference(); err != nil {
		return err
	}
	if e := t.config.Evaluate; e != nil && e.First {
		if t.hooks.Group.Size() > 1 {
			ctx = context.WithoutCancel(ctx) // all finish it, or none
		}
		return t.evaluate(ctx, true)
	}
	return nil
}

// takeReference takes the reference, and asks it what is asked once.
func (t *Trainer) takeReference() (err error) {
	t.reference, err = newReference(t.policy, t.config.Reference, t.config.ReferenceEvery > 0, t.refers())
	if err != nil {
		return err
	}
	return t.precompute()
}

// refers says whether log π_ref is asked for.
func (t *Trainer) refers() bool { return t.needs.Reference || t.config.KLCoef > 0 }

// Step takes one step and returns its figures: samples of the source, advantages, updates.
func (t *Trainer) Step(ctx context.Context) (rl.Meter, error) {
	if t.reference == nil { // of a trainer that was not started
		if err := t.takeReference(); err != nil {
			return nil, err
		}
	}
	step, err := t.next(ctx)
	if err != nil {
		return nil, err
	}
	// From here on the step is finished whatever ctx says: a checkpoint is made between steps.
	if step.Figures == nil {
		step.Figures = rl.Meter{}
	}
	if err := t.learn(step); err != nil {
		return nil, err
	}
	return step.Figures, t.report(step)
}
