package reward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/within"
)

// Text is a list of rewards for completions of language models. It is safe for concurrent use; a program then handles one
// batch after the other.
type Text struct {
	pieces  []piece
	rewards []TextReward // one per piece
	timeout time.Duration
	counts  func() map[string]int // of the judge; nil = none
}

// ParseText reads a list of rewards; see the package documentation. own are the task's rewards by name. EXPR uses the
// language of github.com/expr-lang/expr; its value is a number or a condition, which counts as 1 or 0. Its names are
//
//	correct, formatted   1 or 0, from the task's verifier; also conditions
//	answer, truth        the extracted answer and the correct one
//	text                 the turn to score, without the model's thought
//	thinking             the thought, without its tags
//	completion           the turn as generated, with its thought
//	written              everything generated up to its end
//	prompt               the prompt: its text, or the last user message
//	calls failed malformed   of the episode: tool calls that could be read, those answered with an error, and
//	                     messages with a call that could not be read
//	length words lines   of the turn: characters, words between spaces, lines
//	+ - * / % ** ^   == != < <= > >=   and or not && || !   c ? a : b   in [a, b]
//	contains startsWith endsWith matches   text[i:j] (bytes)
//	abs ceil exp float floor int log max min pow round sqrt string
//	hasPrefix hasSuffix indexOf lastIndexOf len lower split trim trimPrefix trimSuffix upper
//
// There are no loops and no variables, so evaluation ends in time proportional to the text and the expression, which has
// at most 4,096 bytes. An expression that reads correct, formatted, answer or truth is 0 for a turn that does not end the
// episode, because the task verifies the end. For an episode that the task does not verify, they are an error.
//
// ParseText checks that programs exist and opens models. The first Score starts the programs.
//
// Errors name the reward and, in an expression, the column.
func ParseText(spec string, own []Definition, o Options) (*Text, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	known := slices.Clone(own)
	for _, d := range own {
		if err := checkName(d.Name); err != nil {
			return nil, fmt.Errorf("reward of the task: %w", err)
		}
	}
	for _, d := range Definitions() {
		taken := slices.ContainsFunc(own, func(o Definition) bool { return o.Name == d.Name })
		switch {
		case taken && d.Argument != "":
			return nil, fmt.Errorf("the task's reward %s has the name of the built-in %s; rename it", d.Name, d.Written())
		case !taken && d.Text != nil && !(d.NeedsTruth && o.NoTruth):
			known = append(known, d)
		}
	}
	r := &Text{timeout: o.Timeout}
	if counting, ok := o.Judge.(interface{ JudgeCount() map[string]int }); ok {
		r.counts = counting.JudgeCount
	}
	if r.pieces, err = parseList(spec, known); err != nil {
		return nil, err
	}
	for _, p := range r.pieces {
		setup := p.setup(o, nil)
		one, err := p.of.Text(setup)
		if err != nil {
			return nil, fmt.Errorf("reward %s: %w", hintQuote(p.name), err)
		}
		one.late = setup.Late
		r.rewards = append(r.rewards, one)
	}
	return r, nil
}

// Judged returns the first reward that asks a judge, or "".
func (r *Text) Judged() string {
	for _, p := range r.pieces {
		if p.of.NeedsJudge {
			return p.name
		}
	}
	return ""
}

// JudgeCount is what the judge has done since the last call, by name; nil if it does not count.
func (r *Text) JudgeCount() map[string]int {
	if r == nil || r.counts == nil {
		return nil
	}
	return r.counts()
}

// Names returns the rewards' names, in list order.
func (r *Text) Names() []string { return names(r.pieces) }

// Score computes every reward of every completion; see [Scores] for failures. It runs [TextReward.Each] on up to parallel
// completions at a time (at least 1), and abandons it after the timeout, even if it ignores its context. Errors and panics
// are failures. Score returns only errors of ctx.
func (r *Text) Score(ctx context.Context, completions []envs.Completion, parallel int) (Scores, error) {
	said := make([]results, len(r.rewards))
	var wait sync.WaitGroup
	for j, one := range r.rewards {
		wait.Go(func() { said[j] = one.score(ctx, completions, max(1, parallel), r.timeout) })
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return Scores{}, err
	}
	return weigh(r.pieces, said, len(completions)), nil
}

// Observe passes a rollout's rewards to stateful rewards. Call it once per rollout.
func (r *Text) Observe(s Scores) {
	for j, one := range r.rewards {
		if one.Observe != nil {
			one.Observe(s.Rewards[j].Values)
		}
	}
}

// State returns the state of all rewards, for a checkpoint.
func (r *Text) State() State {
	return stateOf(r.pieces, func(i int) func() any { return r.rewards[i].State })
}

// Restore continues from s. A state of other rewards is an error.
func (r *Text) Restore(s State) error {
	return s.restore(r.pieces, func(i int) func(json.RawMessage) error { return r.rewards[i].Restore })
}

// Close stops the programs. They cannot score anything afterwards.
func (r *Text) Close() {
	for _, one := range r.rewards {
		if one.Close != nil {
			one.Close()
		}
	}
}

// score scores completions; those interrupted by ctx get an error.
func (r TextReward) score(ctx context.Context, completions []envs.Completion, parallel int, timeout time.Duration) results {
	if r.Steps != nil {
		steps, errs := r.Steps(ctx, completions)
		return stepped(steps, errs, len(completions))
	}
	if r.Batch != nil {
		values, errs := r.Batch(ctx, completions)
		return batched(values, errs, len(completions))
	}
	said := newResults(len(completions))
	slots := make(chan struct{}, parallel)
	var wait sync.WaitGroup
	for i, c := range completions {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			said.values[i], said.errs[i] = within.Do(ctx, timeout, func(ctx context.Context) (float64, error) { return r.Each(ctx, c) })
			if r.late != nil && errors.Is(said.errs[i], within.ErrTimeout) {
				r.late(said.errs[i])
			}
		})
	}
	wait.Wait()
	return said
}

// textQuestion is the question to a program.
type textQuestion struct {
	ID        uint64  `json:"id"`
	Prompt    string  `json:"prompt"`
	Text      string  `json:"text"`
	Thinking  string  `json:"thinking,omitempty"`
	Generated string  `json:"completion,omitempty"` // if it has a thought
	Written   string  `json:"written"`
	Answer    *string `json:"answer"`
	Truth     *string `json:"truth"`
	Correct   *bool   `json:"correct"`
	Formatted *bool   `json:"formatted"`

	Messages []envs.Message `json:"messages,omitempty"` // of episodes of several messages
	Tools    *envs.ToolUse  `json:"tools,omitempty"`    // of episodes with tools
}

// textProgram is the reward cmd:PROGRAM of completions.
func textProgram(s Setup) (TextReward, error) {
	p, err := program.New(s.Argument, s.Timeout, s.Late)
	if err != nil {
		return TextReward{}, err
	}
	return TextReward{Close: p.Close, Batch: func(ctx context.Context, completions []envs.Completion) ([]float64, []error) {
		return program.Ask(ctx, p, len(completions), func(i int, id uint64) any {
			c := completions[i]
			q := textQuestion{ID: id, Prompt: prompt(c.Observation), Text: c.Action.Text, Written: c.Text, Messages: c.Said}
			if q.Thinking = c.Action.Thinking; q.Thinking != "" {
				q.Generated = c.Generated
			}
			if c.Tools.Offered {
				q.Tools = &c.Tools
			}
			if c.Info != nil {
				q.Answer, q.Truth, q.Correct, q.Formatted = &c.Info.Answer, &c.Info.Truth, &c.Info.Correct, &c.Info.FormatOK
			}
			return q
		}, decode)
	}}, nil
}

// prompt is what the episode showed: its text, or the last user message.
func prompt(o envs.Observation) string {
	for _, m := range slices.Backward(o.Messages) {
		if m.Role == envs.RoleUser {
			return m.Content
		}
	}
	return o.Text
}
