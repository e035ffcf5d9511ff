// Package rollouttest has tasks for tests of rollouts, and of training on them.
package rollouttest

import (
	"context"
	"fmt"

	"github.com/rltrain/rltrain/envs"
)

// Endless is a task without a last episode; index makes its episodes.
type Endless func(part envs.Part, index int) envs.Env

// Len implements envs.Task.
func (Endless) Len(envs.Part) int { return 0 }

// Episode implements envs.Task.
func (e Endless) Episode(part envs.Part, index int) (envs.Env, error) { return e(part, index), nil }

// Spelling rewards each action that begins with a small letter with 1 and others with 0. With one action an episode, it is a bandit
// with many arms, a quarter of which are rewarded.
func Spelling(prompts, actions int, stop ...string) Endless {
	return func(part envs.Part, index int) envs.Env {
		return &Word{Shown: fmt.Sprintf("%s %d:", part, index%prompts), Stop: stop, Last: actions}
	}
}

// Word is an episode of Spelling.
type Word struct {
	Shown string
	Stop  []string // ends actions
	Last  int      // number of actions

	turns, right int
}

// Reset implements envs.Env.
func (w *Word) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: w.Shown, Stop: w.Stop}, nil
}

// Step implements envs.Env.
func (w *Word) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	w.turns++
	step := envs.Step{Keep: len(a.Text), Done: w.turns == w.Last}
	if Small(a.Text) {
		step.Reward = 1
		w.right++
	}
	if w.Last > 1 {
		step.Append = ";"
	}
	if step.Done {
		step.Info = &envs.Info{Correct: w.right == w.Last, FormatOK: a.Stop == envs.StopEnd, FoundBy: "letters"}
	}
	return step, nil
}

// Small says whether text begins with a small letter.
func Small(text string) bool { return text != "" && text[0] >= 'a' && text[0] <= 'z' }
