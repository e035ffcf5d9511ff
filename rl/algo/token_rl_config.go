package algo

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"rltrain/rl"
	"rltrain/torch"
)

// Algorithms of TokenRL that are always there.
const (
	Reinforce = "reinforce"
	RLOO      = "rloo"
	GRPO      = "grpo"
	TokenPPO  = "ppo"
)

// Reductions of a loss over tokens, as tokenWeight has them.
const (
	ReduceToken    = "token"
	ReduceSequence = "sequence"
	ReduceDrGRPO   = "dr_grpo"
)

// TokenRLConfig is what reinforcement learning of a token policy needs to know. A field that one algorithm
// alone reads names it.
type TokenRLConfig struct {
	Algorithm        string // Reinforce, RLOO, GRPO, TokenPPO, or another that is registered
	Steps            int
	PromptsPerStep   int
	SamplesPerPrompt int
	Generators       int // prompts that are sampled at the same time; 0 = 1. It changes no result.
	UpdateEpochs     int // passes over the samples of a step; 0 = 1
	Minibatches      int // of a pass, an update each; 0 = 1
	MicroTokens      int // tokens a forward pass may hold; 0 = the whole minibatch
	Checkpoint       bool
	Seed             uint64

	LearningRate float64 // peak
	ValueRate    float64 // ppo: peak learning rate of the value head
	WeightDecay  float64 // of matrices; norms and biases have none
	MaxGradNorm  float64 // 0 = no clipping
	Schedule     string  // "constant", "linear" or "cosine", over the steps
	Warmup       float64 // share of the steps, or from 1 on a number of them

	Temperature       float64 // above 0; divides the logits in training too
	TopK              int
	TopP              float64
	MinP              float64
	RepetitionPenalty float64
	MaxNew            int // tokens of an action at most

	// Baseline and Scale make rewards advantages; ppo has its values instead. "" is the algorithm's own: moving
	// for reinforce, leave_one_out for rloo, group with scale group for grpo.
	Baseline    rl.Baseline
	Scale       rl.Scale
	MovingStart float64 // of the moving baseline
	MovingDecay float64 // of the moving baseline; 0 = 0.9
	Reduction   string  // reinforce and grpo: ReduceToken, ReduceSequence or ReduceDrGRPO; "" is sequence and token

	ClipLow      float64 // rloo, grpo, ppo: ratios are clipped to [1−ClipLow, 1+ClipHigh]
	ClipHigh     float64
	EntropyCoef  float64
	Gamma        float64 // ppo: discount of a token
	Lambda       float64 // ppo: of GAE
	ValueClip    float64 // ppo: how far a value may move in a step; 0 = any way
	ValueCoef    float64 // ppo
	TargetKL     float64 // a step's updates stop beyond 1.5 times this divergence from π_old; 0 = never
	KLCoef       float64 // of the divergence from the reference policy; 0 = there is no reference
	KLKind       rl.KLKind
	KLInReward   bool    // the penalty is part of the reward, not of the loss
	KLTarget     float64 // nats of a sequence that KLCoef is adapted to, over KLHorizon sequences; 0 = it stays
	KLHorizon    float64
	Reference    *TokenPolicy // the reference of a policy without an adapter; with one it is the adapter's absence
	MaskOverlong bool         // learn nothing from completions cut off at MaxNew
	// OverlongBuffer is the number of tokens before MaxNew from which a growing penalty is added to the reward;
	// 0 = none.
	OverlongBuffer  int
	DynamicSampling bool // draw further prompts instead of those whose rewards do not differ

	Timeout time.Duration // of each answer of an episode, which is left out beyond it; 0 = none

	// Async lets episodes answer while others are sampled and learnt from. What is learnt from is up to
	// MaxStaleness policies old, 0 = 1, and weighted by what the policy has come to think of it.
	Async        bool
	MaxStaleness int

	EvalEvery   int // steps between evaluations; 0 = only before and after
	EvalSamples int // episodes of an evaluation; 0 = none, and the last weights are kept

	Verbose bool // log every sample with its reward
}

// maxOversampling bounds the prompts of a step with dynamic sampling, in multiples of PromptsPerStep.
const maxOversampling = 4

// Check says what TokenRL would refuse of c, whatever the policy.
func (c TokenRLConfig) Check() error {
	_, err := c.complete()
	return err
}

// complete checks c and fills in what is left to the algorithm.
func (c TokenRLConfig) complete() (TokenRLConfig, error) {
	c.Generators, c.UpdateEpochs, c.Minibatches = max(1, c.Generators), max(1, c.UpdateEpochs), max(1, c.Minibatches)
	if c.MovingDecay == 0 {
		c.MovingDecay = 0.9
	}
	a, err := findAlgorithm(c.Algorithm)
	if err != nil {
		return c, err
	}
	if err := a.refuse(c); err != nil {
		return c, err
	}
	if a.Complete != nil {
		if err := a.Complete(&c); err != nil {
			return c, fmt.Errorf("%s: %w", a.Name, err)
		}
	}
	if c.Baseline != "" {
		if err := (rl.Advantages{Baseline: c.Baseline, Scale: c.Scale}).Check(c.SamplesPerPrompt); err != nil {
			return c, fmt.Errorf("%s: %w", a.Name, err)
		}
	}
	if a.Reduction && !slices.Contains([]string{ReduceToken, ReduceSequence, ReduceDrGRPO}, c.Reduction) {
		return c, fmt.Errorf("reduction %q is unknown: choose %s, %s or %s", c.Reduction, ReduceToken, ReduceSequence, ReduceDrGRPO)
	}
	if a.Ratio != NoRatio && !(c.ClipLow > 0 && c.ClipLow < 1 && c.ClipHigh > 0) {
		return c, fmt.Errorf("clip range [1−%v, 1+%v]: the lower part must be in (0,1), the upper above 0", c.ClipLow, c.ClipHigh)
	}
	if err := c.check(); err != nil {
		return c, err
	}
	if c.Async {
		c.MaxStaleness = max(1, c.MaxStaleness)
	}
	return c, nil
}

// fill chooses what is left open. A scale of one's own stays, whatever the baseline.
func (c *TokenRLConfig) fill(baseline rl.Baseline, scale rl.Scale, reduction string) {
	if c.Scale == "" && c.Baseline == "" {
		c.Scale = scale
	}
	if c.Scale == "" {
		c.Scale = rl.ScaleNone
	}
	if c.Baseline == "" {
		c.Baseline = baseline
	}
	if c.Reduction == "" {
		c.Reduction = reduction
	}
}

// check is about the values that every algorithm has.
func (c TokenRLConfig) check() error {
	switch {
	case c.Steps < 1 || c.PromptsPerStep < 1 || c.SamplesPerPrompt < 1 || c.MaxNew < 1:
		return fmt.Errorf("%d steps of %d prompts with %d samples of at most %d tokens: each must be at least 1", c.Steps, c.PromptsPerStep, c.SamplesPerPrompt, c.MaxNew)
	case c.Minibatches > c.PromptsPerStep*c.SamplesPerPrompt:
		return fmt.Errorf("%d minibatches of %d samples: there must be at least one in each", c.Minibatches, c.PromptsPerStep*c.SamplesPerPrompt)
	case c.Timeout < 0 || c.MaxStaleness < 0:
		return fmt.Errorf("timeout %v, staleness %d: neither can be below 0", c.Timeout, c.MaxStaleness)
	case c.MaxStaleness > 0 && !c.Async:
		return errors.New("a staleness means nothing without async: every step learns from its own policy's samples")
	case c.Async && c.DynamicSampling:
		return errors.New("dynamic sampling cannot go with async: what to sample next depends on rewards that are not there yet")
	case c.Async && c.Baseline == rl.BaselineGreedy:
		return errors.New("baseline greedy cannot go with async: the greedy answers would be another policy's; choose baseline group or batch")
	case c.Async && c.filtered():
		return errors.New("async weighs samples by their probability under the whole distribution: choose no top-k, top-p, min-p or repetition penalty")
	case !(c.Temperature > 0):
		return fmt.Errorf("temperature %v: samples to learn from need one above 0", c.Temperature)
	case c.OverlongBuffer < 0 || c.OverlongBuffer > c.MaxNew:
		return fmt.Errorf("a buffer of %d of at most %d tokens for the penalty of length: it must be within them", c.OverlongBuffer, c.MaxNew)
	case c.KLCoef == 0:
		return nil
	}
	_, err := rl.ParseKLKind(string(c.KLKind))
	return err
}

// rollout is how the episodes of a step are played.
func (c TokenRLConfig) rollout(step int, version uint64) RolloutConfig {
	return RolloutConfig{
		Samples: c.SamplesPerPrompt, MaxNew: c.MaxNew, Seed: c.Seed, Step: uint64(step), Version: version, Timeout: c.Timeout,
		Sampling: torch.Sampling{
			Temperature: c.Temperature, TopK: c.TopK, TopP: c.TopP, MinP: c.MinP, RepetitionPenalty: c.RepetitionPenalty,
		},
	}
}

// filtered says whether tokens are drawn from a part of the distribution.
func (c TokenRLConfig) filtered() bool {
	return c.TopK > 0 || c.TopP > 0 && c.TopP < 1 || c.MinP > 0 || c.RepetitionPenalty > 0 && c.RepetitionPenalty != 1
}
