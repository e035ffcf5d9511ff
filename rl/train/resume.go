package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// training is all that a checkpoint holds.
func (t *Trainer) training() *run.TrainingState {
	return &run.TrainingState{Weights: t.policy, Optimizer: t.optimizer, Best: t.best, State: &t.state}
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
	training := t.training()
	training.Reference = t.reference.weights
	return t.hooks.Save(s.Step, training.Save)
}

// resume puts back what save has saved.
func (t *Trainer) resume() (err error) {
	training := t.training()
	if err := training.Restore(t.hooks.Resume); err != nil {
		return err
	}
	if t.state.Step > t.config.Steps {
		return fmt.Errorf("the run has made %d steps already, and is to make %d", t.state.Step, t.config.Steps)
	}
	t.best = training.Best
	t.kl.Restore(t.state.KL)
	if err := t.source.Restore(t.state.Source); err != nil {
		return fmt.Errorf("checkpoint: %s: %w", t.hooks.Resume, err)
	}
	if a, ok := t.algorithm.(rl.Stateful); ok {
		if err := a.Restore(t.state.Algorithm); err != nil {
			return fmt.Errorf("checkpoint: %s: %w", t.hooks.Resume, err)
		}
	}
	t.reference = &reference{policy: t.config.Reference, weights: training.Reference}
	return nil
}

// stopped makes a stop of what the end of a context has caused, and saves where it can. A step under way has
// not touched anything yet; before the first evaluation is finished there is nothing to save.
func (t *Trainer) stopped(err error) error {
	e := t.config.Evaluate
	switch {
	case !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return err
	case t.hooks.Save == nil, t.reference == nil, e != nil && e.First && t.state.Judged.Before == nil:
		return run.ErrStopped
	}
	return errors.Join(run.ErrStopped, t.save())
}

// dropTimes removes what a run without a clock has not measured.
func dropTimes(row report.Row) {
	for name := range row {
		if strings.HasPrefix(name, "time/") {
			delete(row, name)
		}
	}
}
