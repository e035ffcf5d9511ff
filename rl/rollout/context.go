package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
)

// clue is what a teacher reads besides a prompt.
type clue struct{ solution, feedback string }

// checkContext refuses demonstrations of a task that has none.
func (c TokensConfig) checkContext(task envs.Task) error {
	if c.Context.Kind != algo.Demonstration {
		return nil
	}
	episode, err := task.Episode(envs.Train, 0)
	if err != nil {
		return err
	}
	if _, ok := episode.(envs.Demonstrator); !ok {
		return envs.OptionErrorf("teacher_context", "a demonstration needs a task with solutions; rows of task prompts have them in a column solution or completion")
	}
	return envs.Close(episode)
}

// contexts sets Context of the samples of a step for which there is a clue.
func (t *Tokens) contexts(ctx context.Context, step *rl.Step, groups []rl.Group, at rl.At) error {
	if !t.config.Context.Used() {
		return nil
	}
	solved, fed, long := 0, 0, 0
	for g, group := range groups {
		samples, from := step.Groups[g], group[0].Prompt
		if slices.ContainsFunc(group, func(x *rl.Trajectory) bool { return x.Segments != nil }) {
			return envs.OptionErrorf("teacher_context", "episode %d has several segments, each with a prompt of its own: leave teacher_context out, or choose another task", from)
		}
		shown, clues, err := t.read(ctx, group)
		if err != nil {
			return fmt.Errorf("episode %d: the teacher's prompt: %w", from, err)
		}
		if slices.ContainsFunc(clues, func(c clue) bool { return c.solution != "" }) {
			solved++
		}
		prompts := map[clue][]int32{}
		for i, x := range samples {
			known := clues[i]
			if known == (clue{}) || x.Len() == 0 {
				continue
			}
			if prompts[known] == nil {
				if prompts[known], err = t.teacherPrompt(shown, known); err != nil {
					return fmt.Errorf("episode %d: the teacher's prompt: %w", from, err)
				}
			}
			if known.feedback != "" {
				fed++
			}
			x.Context = prompts[known]
			if len(x.ForTeacher().Tokens) > t.sampler.Policy().MaxLength() {
				long, x.Context = long+1, nil
			}
		}
	}
	m, n := step.Figures, float64(len(groups))
	if t.config.Context.Kind == algo.Sibling {
		m.Mean("teacher/solved_ratio", float64(solved), n)
	}
	if t.config.Context.Feedback {
		m.Mean("teacher/feedback_ratio", float64(fed), n*float64(t.config.SamplesPerPrompt))
	}
	m.Total("teacher/too_long", float64(long))
	if long > 0 {
		step.Notes = append(step.Notes, fmt.Sprintf("warning: shorten the solutions or max_new_tokens: %d completions of step %d are not learned from, because they and the teacher's prompt exceed the model's %d positions",
			long, at.Step+1, t.sampler.Policy().MaxLength()))
	}
	return nil
}

// read is what the first prompt of a group shows, and the clues for its completions.
func (t *Tokens) read(ctx context.Context, group rl.Group) (shown envs.Observation, clues []clue, err error) {
	c := t.config.Context
	clues = make([]clue, len(group))
	if c.Kind == algo.Sibling {
		if clues, err = t.siblings(group); err != nil || !slices.ContainsFunc(clues, func(c clue) bool { return c != clue{} }) {
			return shown, clues, err
		}
	}
	episode, shown, err := envs.Begin(ctx, t.task, envs.Train, group[0].Prompt)
	if d, ok := episode.(envs.Demonstrator); ok && err == nil && c.Kind == algo.Demonstration {
		for i := range clues {
			clues[i].solution = strings.TrimSpace(d.Solution())
		}
	}
	return shown, clues, cmp.Or(err, envs.Close(episode))
}

// siblings are the clues from the others of a group: the first other one that succeeded, and what the tests said.
func (t *Tokens) siblings(group rl.Group) ([]clue, error) {
	c := t.config.Context
	var good []int // the first two
	for i, x := range group {
		if len(good) < 2 && x.Reward() >= c.Success && x.Len() > 0 {
			good = append(good, i)
		}
	}
	texts := map[int]string{}
	for _, i := range good {
		text, err := t.response(group[i])
		if err != nil {
			return nil, err
		}
		texts[i] = strings.TrimSpace(text)
	}
	clues := make([]clue, len(group))
	for i, x := range group {
		if at := slices.IndexFunc(good, func(j int) bool { return j != i }); at >= 0 {
			clues[i].solution = texts[good[at]]
		}
		if c.Feedback && x.Info != nil && x.Info.Tests != nil && !(x.Reward() >= c.Success) {
			clues[i].feedback = strings.TrimSpace(x.Info.Tests.Message)
		}
	}
	return clues, nil
}

// response is the text after the prompt of an episode, with the environment's.
func (t *Tokens) response(x *rl.Trajectory) (string, error) {
	text, _, err := t.sampler.Policy().DecodeEnds(completed(x))
	return text, err
}

// teacherPrompt is what a teacher reads in place of what an episode shows: the last message of the user with the clue, or the text.
func (t *Tokens) teacherPrompt(shown envs.Observation, known clue) ([]int32, error) {
	fill := func(prompt string) string { return t.config.Context.Fill(prompt, known.solution, known.feedback) }
	if len(shown.Messages) == 0 {
		shown.Text = fill(shown.Text)
		return t.sampler.Policy().EncodeObservation(shown)
	}
	shown.Messages = slices.Clone(shown.Messages)
	for i, m := range slices.Backward(shown.Messages) {
		if m.Role != envs.RoleUser {
			continue
		}
		if m.Fields != nil {
			return nil, errors.New("the last message of the user is not only a text")
		}
		shown.Messages[i].Content = fill(m.Content)
		return t.sampler.Policy().EncodeObservation(shown)
	}
	return nil, errors.New("the conversation has no message of the user")
}
