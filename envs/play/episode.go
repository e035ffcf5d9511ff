package play

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
)

// episode is one game.
type episode struct {
	*world
	game game

	said      []envs.Message
	turn      int
	total     float64 // of the rewards
	done      bool
	used      envs.ToolUse
	malformed bool // a message was no action
}

// game is what answers the messages of an episode.
type game interface {
	reset(ctx context.Context) (answer, error)
	step(ctx context.Context, a envs.Action) (answer, error)
	// release gives up what the episode holds; after it, reset begins another one.
	release()
	// close is release for good. It may come while a step is late.
	close()
}

// answer is what an environment answers.
type answer struct {
	observation []envs.Message // what the model reads next: the user's, or results of tools; nil = none
	reward      float64
	done        bool
	correct     *bool

	said      envs.Message // the message that is answered, if it has tool calls
	used      envs.ToolUse // of the episode so far
	malformed bool         // the message is no action
}

// Reset implements envs.Env.
func (e *episode) Reset(ctx context.Context) (envs.Observation, error) {
	e.said, e.turn, e.total, e.done, e.malformed = nil, 0, 0, false, false
	e.game.release()
	a, err := e.game.reset(ctx)
	if errors.Is(err, envs.ErrFull) {
		return envs.Observation{}, err
	}
	if err == nil && (a.observation == nil || a.done) {
		err = errors.New("the answer to reset has no observation, or is done")
	}
	if err != nil {
		return envs.Observation{}, e.fail(err)
	}
	e.said, e.used = a.observation, a.used
	if e.system != "" && e.said[0].Role != envs.RoleSystem {
		e.said = append([]envs.Message{{Role: envs.RoleSystem, Content: e.system}}, e.said...)
	}
	if e.asText {
		return envs.Observation{Text: textOf(e.said) + "\n"}, nil
	}
	o := envs.Observation{Messages: slices.Clone(e.said)}
	o.Tools = e.tools
	return o, nil
}

// Step implements envs.Env. Each turn has the reward that the environment gives it.
func (e *episode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
	if e.done {
		return envs.Step{}, errors.New("the episode has ended; call Reset")
	}
	step := envs.Step{Keep: len(a.Text)}
	if a.Stop == envs.StopCancelled {
		e.done, step.Done, step.Reward = true, true, math.NaN()
		e.game.release()
		return step, nil
	}
	e.turn++
	got, err := e.game.step(ctx, a)
	if err != nil {
		return envs.Step{}, e.fail(err)
	}
	if got.said.Role == "" {
		got.said = a.Message()
	}
	e.said = append(e.said, got.said)
	step.Reward = got.reward
	e.total += got.reward
	e.used, e.malformed = got.used, e.malformed || got.malformed
	e.done = got.done || e.turn == e.options.MaxTurns
	if !e.done && got.observation == nil {
		return envs.Step{}, e.fail(errors.New("the answer to step has no observation, and is not done"))
	}
	if e.done {
		step.Done, step.Info = true, &envs.Info{Correct: e.total > 0, FreeForm: e.free, FormatOK: !e.malformed, FoundBy: "environment", Kind: e.kind}
		if got.correct != nil {
			step.Info.Correct = *got.correct
		}
		e.game.release()
	} else if text := textOf(got.observation); e.asText {
		step.Append = "\n" + text + "\n"
	} else if got.observation[0].Role == envs.RoleTool {
		step.Results = got.observation
	} else {
		step.Reply = text
	}
	e.said = append(e.said, got.observation...)
	step.Said, step.Tools = slices.Clone(e.said), e.used
	return step, nil
}

// fail ends the episode.
func (e *episode) fail(err error) error {
	e.done = true
	e.game.release()
	return fmt.Errorf("environment: %w", err)
}

// Close ends the episode.
func (e *episode) Close() error {
	e.game.close()
	return nil
}

// textOf joins the texts of an observation.
func textOf(messages []envs.Message) string {
	texts := make([]string, len(messages))
	for i, m := range messages {
		texts[i] = m.Content
	}
	return strings.Join(texts, "\n")
}
