package rollout

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/internal/within"
	"github.com/rltrain/rltrain/rl"
)

// failures are the episodes of a step that failed or whose prompt is too long.
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

// report adds the failures to the figures and the notes of a step, counted from 0. It is an error if no prompt fits the
// model.
func (f *failures) report(step *rl.Step, number int, groups []rl.Group) error {
	step.Figures.Total("failed_episodes", float64(f.n))
	step.Figures.Total("timeouts", float64(f.timeouts))
	if f.n == 0 {
		return nil
	}
	begun := func(g rl.Group) bool {
		return slices.ContainsFunc(g, func(x *rl.Trajectory) bool { return len(x.Tokens) > 0 })
	}
	if f.tooLong == f.n && !slices.ContainsFunc(groups, begun) {
		return fmt.Errorf("no prompt of step %d fits the model; shorten the prompts or put fewer examples in them (few_shot); the first: %w", number+1, f.first)
	}
	step.Notes = append(step.Notes, fmt.Sprintf("warning: %d episodes of step %d failed and are dropped, %d of them because of the timeout; the first: %v", f.n, number+1, f.timeouts, f.first))
	return nil
}
