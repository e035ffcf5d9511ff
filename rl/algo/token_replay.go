package algo

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/torch"
)

// Files of a checkpoint of TokenReplay, beside those of saveCheckpoint.
const (
	bufferFile    = "buffer.jsonl"
	referenceFile = "reference.safetensors" // <parameter>, in the order of params
)

// tokenReplay is a run of TokenReplay under way. What changes from step to step is its state, the weights, the
// optimiser's moments, the buffer and the reference.
type tokenReplay struct {
	tokenRun
	config    TokenReplayConfig
	buffer    *rl.Replay
	reference snapshot // nil where none is read, or it is another policy
	state     tokenCourse
}

// TokenReplay improves a policy by REINFORCE over single turns out of a replay buffer, as in stepwise
// mathematics, where a turn is a line. A step plays Episodes episodes, gives each turn its discounted return
// G_t = r_t + γ·G_{t+1}, clamped, puts the turns into the buffer, draws Draws turns from it with replacement,
// and descends on the loss in updates of BatchSize turns, in which every turn counts the same, and so do its
// tokens.
//
// The buffer is first in, first out, and what it holds stays across steps: the policy learns from what
// earlier versions of it wrote, without importance weights, which is biased. Turns whose reward failed, and
// turns in which no token was sampled, are left out.
//
// Dropout is off. Every random choice is a function of (seed, step, episode), so a run resumed from a
// checkpoint ends with the same bytes as one that was never stopped.
func TokenReplay(ctx context.Context, p *TokenPolicy, task envs.Task, c TokenReplayConfig, h Hooks) (TokenRLResult, error) {
	t, err := newTokenReplay(p, task, c, h)
	if err != nil {
		return TokenRLResult{}, fmt.Errorf("reinforcement learning with a replay buffer: %w", err)
	}
	defer t.close()
	if err := t.run(ctx, &t.state, tokenPlan{t.config.Steps, t.config.EvalSamples, t.config.EvalEvery}, t); err != nil {
		return TokenRLResult{}, err
	}
	return t.state.result(), nil
}

func newTokenReplay(p *TokenPolicy, task envs.Task, c TokenReplayConfig, h Hooks) (*tokenReplay, error) {
	c.Slots = max(1, c.Slots)
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Reference != nil && c.Reference.VocabSize() != p.VocabSize() {
		return nil, fmt.Errorf("the reference %s has %d tokens, the policy %d: choose a model of the same family", c.Reference.BaseModel, c.Reference.VocabSize(), p.VocabSize())
	}
	t := &tokenReplay{tokenRun: tokenRun{policy: p, task: task, hooks: h}, config: c}
	var err error
	if t.schedule, err = rl.NewSchedule(c.Schedule, c.Steps, c.Warmup); err != nil {
		return nil, err
	}
	if t.buffer, err = rl.NewReplay(c.Capacity); err != nil {
		return nil, err
	}
	t.optimizer, err = p.Optimizer(c.WeightDecay)
	return t, err
}

// start resumes, or makes the reference and reads the buffer.
func (t *tokenReplay) start() (err error) {
	c, dir := t.config, t.hooks.Resume
	switch {
	case dir != "":
		err = t.restore(dir)
	case c.refers() && c.Reference == nil:
		t.reference, err = takeSnapshot(t.policy)
	}
	if err != nil {
		return err
	}
	if dir == "" && c.LoadBuffer != "" {
		if err := t.loadBuffer(c.LoadBuffer); err != nil {
			return err
		}
	}
	t.sampler, err = t.policy.NewSampler(c.Slots)
	return err
}

// loadBuffer reads a buffer and checks that its tokens are the policy's.
func (t *tokenReplay) loadBuffer(path string) error {
	if err := t.buffer.Load(path); err != nil {
		return err
	}
	for _, e := range t.buffer.State().Entries {
		x := e.Trajectory
		if len(x.Tokens) > t.policy.MaxLength() {
			return fmt.Errorf("%s: a trajectory has %d tokens, more than the model's %d positions", path, len(x.Tokens), t.policy.MaxLength())
		}
		for _, token := range x.Tokens {
			if token < 0 || int(token) >= t.policy.VocabSize() {
				return fmt.Errorf("%s: token %d is none of the model's %d: the buffer is another model's", path, token, t.policy.VocabSize())
			}
		}
		for _, turn := range e.Turns {
			if !sampledIn(x, turn) {
				return fmt.Errorf("%s: a turn has no sampled token to learn from", path)
			}
		}
	}
	return t.hooks.log("The buffer starts with %d turns of %s", t.buffer.Len(), path)
}

func (t *tokenReplay) restore(dir string) error {
	var err error
	if t.best, err = restoreCheckpoint(t.policy, dir, t.optimizer, &t.state); err != nil {
		return err
	}
	if t.config.refers() && t.config.Reference == nil {
		if t.reference, err = readSnapshot(filepath.Join(dir, referenceFile), len(t.policy.params())); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	if err := t.buffer.Load(filepath.Join(dir, bufferFile)); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

func (t *tokenReplay) save() error {
	return t.hooks.Save(t.state.Step, func(dir string) error {
		if err := saveCheckpoint(t.policy, dir, t.optimizer, t.state, t.best); err != nil {
			return err
		}
		if t.reference != nil {
			if err := t.reference.write(filepath.Join(dir, referenceFile)); err != nil {
				return fmt.Errorf("checkpoint: %w", err)
			}
		}
		return t.buffer.Save(filepath.Join(dir, bufferFile))
	})
}

func (t *tokenReplay) step(ctx context.Context) error {
	c, s := t.config, &t.state
	r, err := t.collect(ctx)
	if err != nil {
		return err
	}
	// From here on the step is finished whatever ctx says: a checkpoint is made between steps.
	t.keep(&r)
	if c.SaveBuffer != "" {
		if err := t.buffer.Save(c.SaveBuffer); err != nil {
			return err
		}
	}
	began := t.hooks.now()
	f, err := t.learn()
	if err != nil {
		return err
	}
	f.updating = t.hooks.now().Sub(began) - f.scoring
	s.Step, s.Cursor = s.Step+1, s.Cursor+c.Episodes
	s.Generations += c.Episodes
	if c.ReferenceEvery > 0 && s.Step%c.ReferenceEvery == 0 && t.reference != nil {
		if t.reference, err = takeSnapshot(t.policy); err != nil {
			return err
		}
	}
	return t.report(r, f)
}

// played is what the policy did in a step.
type played struct {
	trajectories []*rl.Trajectory
	turns        int // put into the buffer
	skipped      int // turns without a reward or a sampled token

	generation, environment time.Duration
}

// collect plays the episodes of a step.
func (t *tokenReplay) collect(ctx context.Context) (played, error) {
	c, s := t.config, t.state
	if err := ctx.Err(); err != nil {
		return played{}, err
	}
	began := t.hooks.now()
	play := &rollout{sampler: t.sampler, now: t.hooks.now, config: RolloutConfig{
		Samples: 1, MaxNew: c.MaxNew, Seed: c.Seed, Step: uint64(s.Step), Version: s.Version,
		Sampling: torch.Sampling{Temperature: c.Temperature},
	}}
	indices := make([]int, c.Episodes)
	for i := range indices {
		indices[i] = s.Cursor + i
	}
	groups, err := play.play(ctx, t.task, envs.Train, indices)
	if err != nil {
		return played{}, err
	}
	r := played{trajectories: flatten(groups, func(g rl.Group) []*rl.Trajectory { return g }), environment: play.environment}
	r.generation = t.hooks.now().Sub(began) - r.environment
	return r, nil
}

// evaluate judges the policy as the sampler has it. Every evaluation draws the same random numbers.
func (t *tokenReplay) evaluate(ctx context.Context) error {
	c, s := t.config, &t.state
	scores, err := t.policy.TryTask(ctx, t.sampler, t.task, 0, c.EvalSamples, RolloutConfig{
		Samples: 1, MaxNew: c.EvalMaxNew, Sampling: c.EvalSampling, Seed: rl.Stream(c.Seed, streamEvaluation).Uint64(),
	})
	if err != nil {
		return err
	}
	return t.judged(s, scores)
}
