package algo

import (
	"context"
	"errors"
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

// tokenReplayState is all that changes from step to step; weights, the optimiser's moments, the buffer and the
// reference aside.
type tokenReplayState struct {
	Step        int             `json:"step"`    // steps finished
	Version     uint64          `json:"version"` // steps that changed the policy
	Cursor      int             `json:"cursor"`  // next episode
	Generations int             `json:"generations"`
	Tokens      int64           `json:"tokens"`
	History     []rl.Health     `json:"history"`
	Before      rl.AnswerScores `json:"before"`
	Best        rl.AnswerScores `json:"best"`
	Last        rl.AnswerScores `json:"last"`
	BestStep    int             `json:"best_step"`
}

// tokenReplay is a run of TokenReplay under way.
type tokenReplay struct {
	policy    *TokenPolicy
	task      envs.Task
	config    TokenReplayConfig
	hooks     Hooks
	schedule  rl.Schedule
	optimizer *torch.AdamW
	sampler   *Sampler
	buffer    *rl.Replay
	reference snapshot // nil where none is read, or it is another policy
	state     tokenReplayState
	best      snapshot // nil where nothing is evaluated
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
	if err := t.start(ctx); err != nil {
		return TokenRLResult{}, t.stopped(err)
	}
	for t.state.Step < t.config.Steps {
		if err := t.step(ctx); err != nil {
			return TokenRLResult{}, t.stopped(err)
		}
	}
	if t.best != nil {
		if err := t.best.putBack(p); err != nil {
			return TokenRLResult{}, err
		}
	}
	s := t.state
	return TokenRLResult{
		Steps: s.Step, Version: s.Version, Generations: s.Generations, Tokens: s.Tokens, BestStep: s.BestStep,
		Before: s.Before, Best: s.Best, Last: s.Last,
	}, nil
}

func newTokenReplay(p *TokenPolicy, task envs.Task, c TokenReplayConfig, h Hooks) (*tokenReplay, error) {
	c.Slots = max(1, c.Slots)
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Reference != nil && c.Reference.VocabSize() != p.VocabSize() {
		return nil, fmt.Errorf("the reference %s has %d tokens, the policy %d: choose a model of the same family", c.Reference.BaseModel, c.Reference.VocabSize(), p.VocabSize())
	}
	t := &tokenReplay{policy: p, task: task, config: c, hooks: h}
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

func (t *tokenReplay) close() {
	t.optimizer.Close()
	if t.sampler != nil {
		t.sampler.Close()
	}
}

// start resumes, or makes the reference, reads the buffer and evaluates the policy as it was given.
func (t *tokenReplay) start(ctx context.Context) error {
	c, dir := t.config, t.hooks.Resume
	var err error
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
	if t.sampler, err = t.policy.NewSampler(c.Slots); err != nil {
		return err
	}
	if dir != "" || c.EvalSamples == 0 {
		return nil
	}
	if err := t.evaluate(ctx); err != nil {
		return err
	}
	t.state.Before = t.state.Last
	return nil
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

// stopped makes a stop of what the end of a context has caused, and saves where it can.
func (t *tokenReplay) stopped(err error) error {
	switch {
	case !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return err
	case t.hooks.Save == nil || t.config.EvalSamples > 0 && t.best == nil:
		return ErrStopped
	}
	return errors.Join(ErrStopped, t.save())
}

// step plays, learns, reports, and evaluates and saves where it is time.
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
	if err := t.report(r, f); err != nil {
		return err
	}
	last := s.Step == c.Steps
	if c.EvalSamples > 0 && (last || c.EvalEvery > 0 && s.Step%c.EvalEvery == 0) {
		if err := t.evaluate(context.WithoutCancel(ctx)); err != nil {
			return err
		}
	}
	if t.hooks.saveDue(s.Step) || t.hooks.Save != nil && last {
		return t.save()
	}
	return nil
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

// evaluate judges the policy as the sampler has it, and keeps the weights where they are the best so far.
// Every evaluation draws the same random numbers.
func (t *tokenReplay) evaluate(ctx context.Context) error {
	c, s := t.config, &t.state
	scores, err := t.policy.evaluateTask(ctx, t.sampler, t.task, c.EvalSamples, RolloutConfig{
		Samples: 1, MaxNew: c.EvalMaxNew, Sampling: c.EvalSampling, Seed: rl.Stream(c.Seed, streamEvaluation).Uint64(),
	})
	if err != nil {
		return err
	}
	s.Last = scores
	if t.best == nil || scores.Accuracy > s.Best.Accuracy {
		s.Best, s.BestStep = scores, s.Step
		if t.best, err = takeSnapshot(t.policy); err != nil {
			return err
		}
	}
	return t.hooks.evaluated(s.Step, s.Version, s.BestStep, scores)
}
