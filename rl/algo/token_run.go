package algo

import (
	"context"
	"errors"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/torch"
)

// tokenCourse is what a checkpoint keeps of every run that learns from the episodes of a task.
type tokenCourse struct {
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

func (s *tokenCourse) result() TokenRLResult {
	return TokenRLResult{
		Steps: s.Step, Version: s.Version, Generations: s.Generations, Tokens: s.Tokens, BestStep: s.BestStep,
		Before: s.Before, Best: s.Best, Last: s.Last,
	}
}

// tokenRun is what such a run is made of.
type tokenRun struct {
	policy    *TokenPolicy
	task      envs.Task
	hooks     Hooks
	schedule  rl.Schedule
	optimizer *torch.AdamW
	sampler   *Sampler
	best      snapshot // nil where nothing is evaluated
}

func (r *tokenRun) close() {
	r.optimizer.Close()
	if r.sampler != nil {
		r.sampler.Close()
	}
}

// A tokenLearner is a way of learning from episodes.
type tokenLearner interface {
	start() error                   // resumes, or makes what the first step needs
	step(ctx context.Context) error // plays, learns and reports
	evaluate(ctx context.Context) error
	save() error
}

// tokenPlan says for how many steps to learn, and what an evaluation is and when.
type tokenPlan struct {
	steps, evalSamples, evalEvery int
}

// run takes a learner through its steps, evaluates and saves where it is time, and gives the policy the best
// weights.
func (r *tokenRun) run(ctx context.Context, s *tokenCourse, plan tokenPlan, l tokenLearner) error {
	if err := r.steps(ctx, s, plan, l); err != nil {
		return r.stopped(err, plan, l)
	}
	if r.best == nil {
		return nil
	}
	return r.best.putBack(r.policy)
}

func (r *tokenRun) steps(ctx context.Context, s *tokenCourse, plan tokenPlan, l tokenLearner) error {
	if err := l.start(); err != nil {
		return err
	}
	if r.hooks.Resume == "" && plan.evalSamples > 0 {
		if err := l.evaluate(ctx); err != nil {
			return err
		}
		s.Before = s.Last
	}
	for s.Step < plan.steps {
		if err := l.step(ctx); err != nil {
			return err
		}
		last := s.Step == plan.steps
		if plan.evalSamples > 0 && (last || plan.evalEvery > 0 && s.Step%plan.evalEvery == 0) {
			if err := l.evaluate(context.WithoutCancel(ctx)); err != nil {
				return err
			}
		}
		if r.hooks.saveDue(s.Step) || r.hooks.Save != nil && last {
			if err := l.save(); err != nil {
				return err
			}
		}
	}
	return nil
}

// stopped makes a stop of what the end of a context has caused, and saves where it can. A step under way has
// not touched anything yet; before the first evaluation is finished there is nothing to save.
func (r *tokenRun) stopped(err error, plan tokenPlan, l tokenLearner) error {
	switch {
	case !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return err
	case r.hooks.Save == nil || plan.evalSamples > 0 && r.best == nil:
		return ErrStopped
	}
	return errors.Join(ErrStopped, l.save())
}

// judged remembers an evaluation, and the weights where they are the best so far.
func (r *tokenRun) judged(s *tokenCourse, scores rl.AnswerScores) (err error) {
	s.Last = scores
	if r.best == nil || scores.Accuracy > s.Best.Accuracy {
		s.Best, s.BestStep = scores, s.Step
		if r.best, err = takeSnapshot(r.policy); err != nil {
			return err
		}
	}
	return r.hooks.evaluated(s.Step, s.Version, s.BestStep, scores)
}
