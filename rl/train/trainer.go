package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
)

// Trainer takes a policy through the steps of training.
type Trainer struct {
	*training
	source    Source
	scorer    *scorer    // log-probabilities and values before the updates
	updater   *updater   // losses, gradients, the optimiser
	reporter  *reporter  // metrics, lines, warnings
	evaluator *evaluator // held-out figures and the best weights
}

// Run improves a policy with the samples of a source and an algorithm:
//
//	for each step:
//	    samples from the source
//	    log π_old, values and log π_ref, if the algorithm needs them
//	    algorithm.Prepare: rewards → advantages
//	    for each minibatch: algorithm.Loss, its gradient, an optimiser step
//	    metrics, evaluation, checkpoint
//
// Losses are sums divided by counts of the whole minibatch, so its division into forward passes changes no gradient. π_old
// is the trainer's own forward pass before the updates, in the minibatches of the first pass, so the first ratio is exactly
// 1. Dropout is off unless the algorithm needs it.
//
// Every random choice is a function of (seed, step, sample): a resumed run is byte-identical to an uninterrupted one. If
// ctx ends, Run finishes the step or gives it up, saves a checkpoint and returns run.ErrStopped.
func Run(ctx context.Context, p policy.Policy, src Source, a algo.Algorithm, c Config, h run.Hooks) (Result, error) {
	t, err := New(p, src, a, c, h)
	if err != nil {
		return Result{}, err
	}
	defer t.Close()
	if err := t.run(h.Phases.Show(ctx)); err != nil {
		return Result{}, t.stopped(ctx, err)
	}
	j, unimproved := t.state.Judged, ""
	if best := t.evaluator.best; c.Evaluate != nil && c.Evaluate.KeepBest && best != nil {
		if c.KeepLast != nil {
			if err := c.KeepLast(); err != nil {
				return Result{}, err
			}
		}
		if err := best.PutBack(p); err != nil {
			return Result{}, err
		}
		if j.BestStep == 0 {
			unimproved = fmt.Sprintf("%s at the start, %s after the last step", j.BeforeScore, j.LastScore)
		}
	}
	return Result{Unimproved: unimproved, Steps: t.state.Step, Version: t.state.Version, BestStep: j.BestStep, Before: j.Before, Best: j.Best, Last: j.Last}, nil
}

// New makes a trainer, which the caller closes. Most callers want Run.
func New(p policy.Policy, src Source, a algo.Algorithm, c Config, h run.Hooks) (*Trainer, error) {
	shared := &training{policy: p, algorithm: a, needs: a.Needs(), config: c.complete(), hooks: h, state: state{Window: rl.Meter{}}}
	if err := shared.config.check(a, shared.needs); err != nil {
		return nil, err
	}
	shared.accuracy = "mean_token_accuracy"
	if _, labels := p.(*policy.Classifier); labels {
		shared.accuracy = "accuracy"
	}
	var err error
	if shared.kl, err = rl.NewKLController(shared.config.KLCoef, shared.config.KLTarget, shared.config.KLHorizon); err != nil {
		return nil, err
	}
	if shared.needs.Values {
		if err := p.AddValueHead(); err != nil {
			return nil, err
		}
	}
	r := &ranks{training: shared}
	passes := &passes{ranks: r}
	t := &Trainer{training: shared, source: src, scorer: &scorer{passes: passes}, reporter: &reporter{r}}
	t.evaluator = &evaluator{reporter: t.reporter}
	t.updater, err = newUpdater(passes)
	return t, err
}

// Close frees what the trainer holds, but not the policy.
func (t *Trainer) Close() {
	t.updater.release()
	t.updater.optimizer.Close()
	if t.scorer.copied != nil {
		t.scorer.copied.Close()
	}
}

// run takes all steps, with evaluations and checkpoints.
func (t *Trainer) run(ctx context.Context) error {
	if err := t.start(ctx); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	for took := time.Duration(0); t.state.Step < t.config.Steps && !t.state.Done; {
		began := t.hooks.Time()
		if took > 0 && t.hooks.Late(took) {
			stop() // as at a signal: all ranks start the step, or none
		}
		if _, err := t.Step(ctx); err != nil {
			return err
		}
		if err := t.evaluator.ifDue(ctx); err != nil {
			return err
		}
		last := t.state.Step == t.config.Steps || t.state.Done
		if last && len(t.state.Window) > 0 {
			if err := t.reporter.flush(false); err != nil {
				return err
			}
		}
		lost := t.reporter.lost()
		if t.hooks.SaveDue(t.state.Step) || t.hooks.Save != nil && (last || lost != nil) {
			if err := t.save(); err != nil {
				return err
			}
		}
		if lost != nil {
			return lost
		}
		took = t.hooks.Time().Sub(began)
	}
	return nil
}

// start resumes from a checkpoint, or takes the reference and evaluates the policy as it was given.
func (t *Trainer) start(ctx context.Context) error {
	if t.hooks.Resume != "" {
		if err := t.resume(); err != nil {
			return err
		}
		if err := t.reporter.sameBeginning(t.source); err != nil {
			return err
		}
		return t.scorer.precompute()
	}
	if err := t.reporter.sameBeginning(t.source); err != nil {
		return err
	}
	if err := t.scorer.takeReference(); err != nil {
		return err
	}
	if e := t.config.Evaluate; e == nil || !e.First {
		return nil
	}
	if t.hooks.Group.Size() > 1 {
		ctx = context.WithoutCancel(ctx) // all ranks finish it, or none
	}
	err := t.evaluator.evaluate(ctx)
	t.state.Judged.Before, t.state.Judged.BeforeScore = t.state.Judged.Last, t.state.Judged.LastScore
	return err
}

// Step takes one step and returns its figures.
func (t *Trainer) Step(ctx context.Context) (rl.Meter, error) {
	if t.scorer.reference == nil { // Run was not called
		if err := t.scorer.takeReference(); err != nil {
			return nil, err
		}
	}
	if err := t.hooks.Group.Agree(ctx); err != nil { // all ranks start the step, or none
		return nil, err
	}
	t.hooks.Phases.Begin(run.PhaseRollout)
	step, err := t.source.Next(t.hooks.Group.Whole(ctx), rl.At{Step: t.state.Step, Version: t.state.Version})
	if err != nil {
		return nil, err
	}
	// The step is finished whatever happens to ctx: checkpoints are made between steps.
	if step.Figures == nil {
		step.Figures = rl.Meter{}
	}
	t.hooks.Phases.Begin(run.PhaseUpdate)
	t.hooks.Phases.Move(run.PhaseRollout, run.PhaseReward, step.Figures.Get("time/environment"))
	if err := t.learn(step); err != nil {
		return nil, err
	}
	return step.Figures, t.reporter.step(step)
}

// learn improves the policy with the samples of a step.
func (t *Trainer) learn(step *rl.Step) error {
	m, began := step.Figures, t.hooks.Time()
	t.scored = t.scoresFirst() || step.Prefetched
	defer t.updater.release()
	if t.needs.Choose != nil {
		t.needs.Choose(step)
	}
	episodes := step.Samples
	if step.Samples = rl.WithEarlier(episodes); len(step.Samples) > len(episodes) && t.needs.Together {
		return fmt.Errorf("step %d: an episode has several segments, which the algorithm cannot learn from; choose another algorithm, such as grpo", t.state.Step+1)
	}
	if err := t.scorer.score(step); err != nil {
		return fmt.Errorf("step %d: %w", t.state.Step+1, err)
	}
	scoring := t.hooks.Time().Sub(began)
	m.Mean("time/logprobs", scoring.Seconds(), 1)
	if err := t.prepare(step, episodes); err != nil {
		return fmt.Errorf("step %d: %w", t.state.Step+1, err)
	}
	if step.Prefetched && t.needs.Weighs() {
		t.config.OffPolicy.weigh(step, t.needs.Ratio)
	}
	m.Last("learning_rate", t.updater.schedule.At(t.state.Step)*t.config.LearningRate)
	if t.config.KLCoef > 0 {
		m.Last("kl_coef", t.kl.Coef())
	}
	updates, err := t.updater.learn(step)
	if err != nil {
		return err
	}
	if e := t.state.Entropy; e != nil {
		m.Last("entropy_coef", e.Coef)
	}
	if updates > 0 {
		t.policy.Changed()
		t.state.Version++
	}
	if n := len(step.Samples); t.needs.Rewards && !t.needs.SharedValues && n > 0 {
		if kl := measureAdvantages(m, step.Samples); t.config.KLCoef > 0 {
			t.kl.Update(kl, n)
		}
	}
	if err := measureGPU(m); err != nil {
		return err
	}
	if far, ok := t.policy.(distant); ok {
		far.Measure(m)
	}
	t.state.Step++
	if err := t.scorer.renew(); err != nil {
		return err
	}
	spent := t.hooks.Time().Sub(began) - scoring
	m.Mean("time/update", spent.Seconds(), 1)
	m.Mean("time/step", spent.Seconds()+scoring.Seconds()+m.Get("time/generation")+m.Get("time/environment"), 1)
	if t.needs.Rewards && len(step.Samples) == 0 {
		step.Notes = append(step.Notes, fmt.Sprintf("warning: step %d has no sample to learn from; the policy does not change", t.state.Step))
	}
	return nil
}

// prepare sets the advantages of a step of episodes. Algorithms with values or a teacher's log π estimate those of each action; the
// others compare episodes, and the earlier segments of one have its advantage.
func (t *Trainer) prepare(step *rl.Step, episodes []*rl.Sample) error {
	if t.needs.Values || t.needs.Sampled {
		return t.algorithm.Prepare(step)
	}
	all := step.Samples
	step.Samples = episodes
	err := t.algorithm.Prepare(step)
	for _, x := range step.Samples {
		for _, e := range x.Earlier {
			if len(x.Advantage) > 0 {
				e.Fill(float64(x.Advantage[0]))
			}
		}
	}
	step.Samples = all
	return err
}

// checkpoint is what a checkpoint holds.
func (t *Trainer) checkpoint() *run.TrainingState {
	return &run.TrainingState{Weights: t.policy, Optimizer: t.updater.optimizer, Best: t.evaluator.best, State: &t.state}
}

// save makes a checkpoint.
func (t *Trainer) save() error {
	s := &t.state
	s.KL = t.kl.State()
	var err error
	if s.Source, err = json.Marshal(t.source.State()); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if a, ok := t.algorithm.(rl.Stateful); ok {
		if s.Algorithm, err = json.Marshal(a.State()); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	t.hooks.Phases.Begin(run.PhaseCheckpoint)
	c := t.checkpoint()
	c.Reference = t.scorer.reference.weights
	if t.scorer.copied != nil {
		if c.Teacher, err = run.TakeSnapshot(t.scorer.copied); err != nil {
			return fmt.Errorf("checkpoint: %w", err)
		}
	}
	return t.hooks.Save(s.Step, c.Save)
}

// resume restores what save saved.
func (t *Trainer) resume() error {
	c := t.checkpoint()
	if err := c.Restore(t.hooks.Resume); err != nil {
		return err
	}
	if t.state.Step > t.config.Steps {
		return fmt.Errorf("checkpoint is at step %d, past %d steps; raise the number of steps to continue", t.state.Step, t.config.Steps)
	}
	t.evaluator.best = c.Best
	t.kl.Restore(t.state.KL)
	if err := t.source.Restore(t.state.Source); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", t.hooks.Resume, err)
	}
	if a, ok := t.algorithm.(rl.Stateful); ok {
		if err := a.Restore(t.state.Algorithm); err != nil {
			return fmt.Errorf("checkpoint: %s: %w", t.hooks.Resume, err)
		}
	}
	t.scorer.reference = &reference{policy: t.config.Reference, weights: c.Reference}
	return t.scorer.takeTeacher(c.Teacher)
}

// stopped turns the end of a context into run.ErrStopped, and saves a checkpoint if it can. A step under way has changed
// nothing yet; before the first evaluation there is nothing to save.
func (t *Trainer) stopped(ctx context.Context, err error) error {
	e, stopped := t.config.Evaluate, run.ErrStopped
	if ctx.Err() == nil && !t.hooks.Deadline.IsZero() {
		stopped = run.ErrTimeUp
	}
	switch {
	case !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return err
	case t.hooks.Save == nil, t.scorer.reference == nil, e != nil && e.First && t.state.Judged.Before == nil:
		return stopped
	}
	return errors.Join(stopped, t.save())
}
