package algo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/torch"
)

// TokenRLResult is how reinforcement learning ended. The policy holds the weights of the best evaluation; step
// 0 is the policy as it was given, so the result is never worse than that on the episodes it is judged by.
type TokenRLResult struct {
	Steps       int
	Version     uint64 // of the policy: how often it has changed
	Generations int    // completions sampled
	Tokens      int64  // read and written in them
	BestStep    int
	Before      rl.AnswerScores
	Best        rl.AnswerScores
	Last        rl.AnswerScores // of the weights after the last step
}

// tokenRLState is all that changes from step to step, the weights and the optimiser's moments aside.
type tokenRLState struct {
	tokenCourse
	Moving  rl.MovingAverageState `json:"moving"`
	KL      rl.KLControllerState  `json:"kl"`
	Flights []flightState         `json:"flights,omitempty"` // of coming steps
}

// tokenRL is reinforcement learning under way.
type tokenRL struct {
	tokenRun
	algorithm Algorithm
	config    TokenRLConfig
	flights   []*flight // of state.Flights, as far as they are taken up
	moving    *rl.MovingAverage
	kl        *rl.KLController
	state     tokenRLState
	began     time.Time
	earlier   int // generations of the run that this one resumes
}

// TokenRL improves a policy by its rewards on the training episodes of a task. A step plays SamplesPerPrompt
// samples of PromptsPerStep episodes, makes advantages of their rewards and descends on the algorithm's loss,
// which its own file explains, plus
//
//   - KLCoef · KL(π‖π_ref) of each token, unless the rewards have it − EntropyCoef · H(π)
//
// weighted as the algorithm weights tokens. π_old is the trainer's own forward pass at the weights that
// sampled, in the batches of the first update, so the first ratio is exactly 1. Dropout is off. The division
// of a minibatch into forward passes changes nothing: losses are sums divided by counts of the minibatch.
//
// Samples whose reward failed, or whose episode did not answer, are left out and counted. With Async a step
// samples before it learns from what a step before it has sampled: see collectAhead. Every random choice is a function of (seed, step,
// episode, sample), so a run resumed from a checkpoint ends with the same bytes as one that was never
// stopped.
func TokenRL(ctx context.Context, p *TokenPolicy, task envs.Task, c TokenRLConfig, h Hooks) (TokenRLResult, error) {
	t, err := newTokenRL(p, task, c, h)
	if err != nil {
		return TokenRLResult{}, fmt.Errorf("reinforcement learning: %w", err)
	}
	defer t.close()
	if err := t.run(ctx, &t.state.tokenCourse, tokenPlan{t.config.Steps, t.config.EvalSamples, t.config.EvalEvery}, t); err != nil {
		return TokenRLResult{}, err
	}
	if err := t.reportEnd(); err != nil {
		return TokenRLResult{}, err
	}
	return t.state.result(), nil
}

func newTokenRL(p *TokenPolicy, task envs.Task, c TokenRLConfig, h Hooks) (*tokenRL, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	if c.KLCoef > 0 && len(p.layers) == 0 && c.Reference == nil {
		return nil, errors.New("a KL penalty needs a reference policy, and a policy without an adapter is none itself: load its folder a second time")
	}
	t := &tokenRL{tokenRun: tokenRun{policy: p, task: task, hooks: h}, config: c}
	if t.algorithm, err = findAlgorithm(c.Algorithm); err != nil {
		return nil, err
	}
	if t.schedule, err = rl.NewSchedule(c.Schedule, c.Steps, c.Warmup); err != nil {
		return nil, err
	}
	if t.moving, err = rl.NewMovingAverage(c.MovingStart, c.MovingDecay); err != nil {
		return nil, err
	}
	if t.kl, err = rl.NewKLController(c.KLCoef, c.KLTarget, c.KLHorizon); err != nil {
		return nil, err
	}
	var further []torch.ParamGroup
	if t.algorithm.ValueLoss != nil {
		if err := p.addValueHead(); err != nil {
			return nil, err
		}
		further = append(further, torch.ParamGroup{Params: p.valueParams()})
	}
	t.optimizer, err = p.Optimizer(c.WeightDecay, further...)
	return t, err
}

func (t *tokenRL) start() (err error) {
	if t.hooks.Resume != "" {
		if t.best, err = restoreCheckpoint(t.policy, t.hooks.Resume, t.optimizer, &t.state); err != nil {
			return err
		}
		t.moving.Restore(t.state.Moving)
		t.kl.Restore(t.state.KL)
	}
	t.began, t.earlier = t.hooks.now(), t.state.Generations
	t.sampler, err = t.policy.NewSampler(t.config.Generators * t.config.SamplesPerPrompt)
	return err
}

func (t *tokenRL) step(ctx context.Context) error {
	s := &t.state
	r, err := t.collect(ctx)
	if err != nil {
		return err
	}
	// From here on the step is finished whatever ctx says: a checkpoint is made between steps.
	began := t.hooks.now()
	f, err := t.learn(r)
	if err != nil {
		return err
	}
	f.updating = t.hooks.now().Sub(began) - f.scoring
	s.Step, s.Cursor = s.Step+1, r.cursor
	s.Generations += len(r.played) * t.config.SamplesPerPrompt
	return t.report(r, f)
}

func (t *tokenRL) save() error {
	t.state.Moving, t.state.KL = t.moving.State(), t.kl.State()
	return t.hooks.Save(t.state.Step, func(dir string) error {
		return saveCheckpoint(t.policy, dir, t.optimizer, t.state, t.best)
	})
}

// A collection is what the policy did in a step.
type collection struct {
	played  []rl.Group // all groups
	groups  []rl.Group // those to learn from
	greedy  []float64  // reward of each one's greedy answer, for the greedy baseline
	failed  failures
	dropped int // groups that dynamic sampling has left out
	cursor  int // the next step's first episode

	generation, environment time.Duration
}

// collect plays the episodes of a step.
func (t *tokenRL) collect(ctx context.Context) (collection, error) {
	c := t.config
	if err := ctx.Err(); err != nil {
		return collection{}, err
	}
	if c.Async {
		return t.collectAhead(ctx)
	}
	began := t.hooks.now()
	r := collection{cursor: t.state.Cursor}
	play := func(indices []int, config RolloutConfig) ([]rl.Group, error) {
		config.Failed = r.failed.add
		p := &rollout{sampler: t.sampler, config: config, now: t.hooks.now}
		defer func() { r.environment += p.environment }()
		return p.play(ctx, t.task, envs.Train, indices)
	}
	config := c.rollout(t.state.Step, t.state.Version)
	for len(r.groups) < c.PromptsPerStep && len(r.played) < maxOversampling*c.PromptsPerStep {
		indices := make([]int, c.PromptsPerStep-len(r.groups))
		for i := range indices {
			indices[i] = r.cursor + i
		}
		r.cursor += len(indices)
		groups, err := play(indices, config)
		if err != nil {
			return r, err
		}
		r.played = append(r.played, groups...)
		if c.DynamicSampling {
			var dropped int
			groups, dropped = rl.FilterGroups(groups, rewardsOf(groups))
			r.dropped += dropped
		}
		r.groups = append(r.groups, groups...)
	}
	if c.Baseline == rl.BaselineGreedy {
		indices := gather(r.groups, func(g rl.Group) int { return g[0].Prompt })
		groups, err := play(indices, config.greedy())
		if err != nil {
			return r, err
		}
		r.greedy = gather(groups, func(g rl.Group) float64 { return g[0].Reward() })
	}
	r.generation = t.hooks.now().Sub(began) - r.environment
	return r, nil
}

func rewardsOf(groups []rl.Group) [][]float64 {
	return gather(groups, rl.Group.Rewards)
}

// evaluate judges the policy as the sampler has it.
func (t *tokenRL) evaluate(ctx context.Context) error {
	c, s := t.config, &t.state
	config := c.rollout(s.Step, s.Version)
	var failed failures
	config.Failed = failed.add
	scores, err := t.policy.EvaluateTask(ctx, t.sampler, t.task, 0, c.EvalSamples, config)
	if err != nil {
		return err
	}
	if failed.n > 0 {
		if err := t.hooks.log("warning: %d of %d episodes of the evaluation failed and count as not right; the first: %v", failed.n, scores.N, failed.first); err != nil {
			return err
		}
	}
	return t.judged(&s.tokenCourse, scores)
}
