package text

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
)

// task turns rows into one-step episodes.
type task struct {
	labels      []string
	template    string // "" = default
	match       match
	text        bool // prompts are text; else messages
	seed        uint64
	train, held []dataset.Row // held: validation rows, then test rows
}

// Len implements envs.Task.
func (t *task) Len(part envs.Part) int {
	if part == envs.Eval {
		return len(t.held)
	}
	return len(t.train)
}

// Episode implements envs.Task. Training rows are shuffled anew each epoch.
func (t *task) Episode(part envs.Part, index int) (envs.Env, error) {
	if part == envs.Eval {
		if index >= len(t.held) {
			return nil, fmt.Errorf("episode %d is out of range: there are %d held-out rows", index, len(t.held))
		}
		return &episode{task: t, row: t.held[index]}, nil
	}
	n := len(t.train)
	order := rand.New(rand.NewPCG(t.seed, uint64(index/n))).Perm(n)
	return &episode{task: t, row: t.train[order[index%n]]}, nil
}

// Choices implements envs.Choosing.
func (t *task) Choices() []string { return t.labels }

// episode is one row.
type episode struct {
	*task
	row  dataset.Row
	done bool
}

// Reset implements envs.Env.
func (e *episode) Reset(context.Context) (envs.Observation, error) {
	e.done = false
	return shown(e.template, e.labels, e.row.Text, e.text), nil
}

// textMark is the placeholder for the text in a template.
const textMark = "{text}"

// shown builds the prompt. The completion of a text prompt stops at the end of the line.
func shown(template string, labels []string, text string, asText bool) envs.Observation {
	if template != "" {
		prompt := strings.NewReplacer(textMark, text, "{labels}", quoted(labels)).Replace(template)
		if asText {
			return envs.Observation{Text: prompt, Stop: []string{"\n"}}
		}
		return envs.Observation{Messages: []envs.Message{{Role: envs.RoleUser, Content: prompt}}}
	}
	if asText {
		return envs.Observation{
			Text: "Classify the following text as " + quoted(labels) + ".\n\nText: \"" + text + "\"\n\nClassification:",
			Stop: []string{"\n"},
		}
	}
	return envs.Observation{Messages: []envs.Message{
		{Role: envs.RoleSystem, Content: "Classify the text that you are given as " + quoted(labels) + ". Answer with the label ONLY."},
		{Role: envs.RoleUser, Content: text},
	}}
}

// quoted formats names as "a" or "b" or "c".
func quoted(labels []string) string {
	names := make([]string, len(labels))
	for i, label := range labels {
		names[i] = strconv.Quote(label)
	}
	return strings.Join(names, " or ")
}

// Solution implements envs.Demonstrator.
func (e *episode) Solution() string {
	if e.text {
		return " " + e.row.Label
	}
	return e.row.Label
}

// Step implements envs.Env: the reward is 1 if the response names the right label and no other; see [match.find].
func (e *episode) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	if e.done {
		return envs.Step{}, errors.New("the episode has ended; call Reset")
	}
	e.done = true
	info := &envs.Info{FoundBy: "none", Truth: e.row.Label}
	if label, by := e.match.find(a.Text, e.labels); label != "" {
		info.Answer, info.FoundBy, info.FormatOK, info.Correct = label, by, by == byLabel, label == e.row.Label
	}
	step := envs.Step{Keep: len(a.Text), Done: true, Info: info}
	if info.Correct {
		step.Reward = 1
	}
	return step, nil
}
