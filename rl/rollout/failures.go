package rollout

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/internal/within"
	"github.com/rltrain/rltrain/rl"
)

// failures are the episodes of a step that did not answer, or that the policy cannot read.
type failures struct {
	n, timeouts, tooLong int
	first                error
}

func (f *failures) add(episode, sample int, err error) {
	if f.n++; f.n == 1 {
		f.first = fmt.Errorf("episode %d, sample %d: %w", episode, sample, err)
	}
	if errors.Is(err, within.ErrTimeout) {
		f.timeouts++
	}
	if errors.Is(err, ErrTooLong) {
		f.tooLong++
	}
}

// tell puts the failures into the figures and the notes of a step, counted from 0. That not one prompt fits the model
// is an error.
func (f *failures) tell(step *rl.Step, number int, groups []rl.Group) error {
	step.Figures.Total("failed_episodes", float64(f.n))
	step.Figures.Total("timeouts", float64(f.timeouts))
	if f.n == 0 {
		return nil
	}
	begun := func(g rl.Group) bool {
		return slices.ContainsFunc(g, func(x *rl.Trajectory) bool { return len(x.Tokens) > 0 })
	}
	if f.tooLong == f.n && !slices.ContainsFunc(groups, begun) {
		return fmt.Errorf("no prompt of step %d fits the model; the first: %w; shorten the prompts or give fewer examples in them (few_shot)", number+1, f.first)
	}
	step.Notes = append(step.Notes, fmt.Sprintf("warning: %d episodes of step %d failed, %d of them by running out of time, and are left out; the first: %v", f.n, number+1, f.timeouts, f.first))
	return nil
}
