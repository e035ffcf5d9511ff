package rollout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// action is a message that the environment answers, or its beginning.
type action struct {
	envs.Action
	policy.Completion
	text    string // of the message; the action may be its beginning
	ends    []int  // length of the text after each token
	before  int    // tokens of the message that the trajectory has already
	thought int    // bytes of the message's thought
	closed  bool   // the thought has ended
	answer  chan answer
}

type answer struct {
	envs.Step
	err error
}

// act generates actions after each prompt, samples of them, for the running episodes. limits are GenerateOptions.Limits.
func (r *rollout) act(ctx context.Context, prompts [][]int32, streams []uint64, limits []int, samples int, done func(prompt int, completions []policy.Completion) error) error {
	c := r.config
	o := policy.GenerateOptions{
		Samples: samples, MaxNew: c.MaxNew, Sampling: c.Sampling, Seed: rl.Stream(c.Seed, rl.StreamRollout, c.Step).Uint64(),
		Streams: streams, Limits: limits,
	}
	var named *episode // o has its stop strings
	for _, e := range r.running {
		if e.done {
			continue
		}
		if named == nil {
			named, o.Stop = e, e.shown.Stop
		}
		if !slices.Equal(e.shown.Stop, o.Stop) {
			return fmt.Errorf("episodes %d and %d of a task have different stop strings, %q and %q", named.Prompt, e.Prompt, o.Stop, e.shown.Stop)
		}
	}
	return r.sampler.Generate(ctx, prompts, o, done)
}

// hand gives completions to their episodes.
func (r *rollout) hand(ctx context.Context, episodes []*episode, completions []policy.Completion) error {
	for i, completion := range completions {
		e := episodes[i]
		if e.done {
			continue // it failed to begin
		}
		a, err := e.act(r.sampler.Policy(), completion)
		if err != nil {
			return err
		}
		e.action = a
		if r.goesOn(e, a) {
			continue
		}
		step := func() {
			s, err := asked(ctx, r, func(ctx context.Context) (envs.Step, error) { return e.env.Step(ctx, a.Action) })
			a.answer <- answer{s, err}
		}
		if !r.prefetched {
			began := r.now()
			step()
			r.environment += r.now().Sub(began)
			continue
		}
		go func() {
			r.slots <- struct{}{}
			defer func() { <-r.slots }()
			step()
		}()
	}
	return nil
}

// unfinished are the episodes that go on. An episode of more than limit tokens is cut off.
func unfinished(running []*episode, limit int) []*episode {
	var left []*episode
	for _, e := range running {
		switch {
		case e.done:
		case len(e.Context()) > limit:
			e.Stop = envs.StopLength
			if n := len(e.Turns); n == 0 || e.Turns[n-1].End < len(e.Tokens) {
				e.EndTurn(0)
			}
		default:
			left = append(left, e)
		}
	}
	return left
}

// settle waits for an episode's answer, and appends the action and the answer to its trajectory.
func (r *rollout) settle(ctx context.Context, e *episode) error {
	a := e.action
	if a == nil {
		return nil
	}
	if r.goesOn(e, a) {
		return r.goOn(e, a)
	}
	began := r.now()
	got := <-a.answer
	r.environment += r.now().Sub(began)
	e.action, e.Stop = nil, a.Stop
	if got.err != nil {
		e.done = true
		e.appendSampled(a)
		e.EndTurn(math.NaN())
		return r.fail(ctx, e, got.err)
	}
	return r.keep(e, a, got.Step)
}

// appendSampled appends all tokens of an action.
func (e *episode) appendSampled(a *action) {
	e.AppendRoutes(a.Routes, len(a.IDs), len(a.IDs))
	for i, id := range a.IDs {
		e.AppendSampled(id, a.BehaviorLogProbs[i], a.LogProbs[i])
	}
}

// keep appends an action and the step that answers it.
func (r *rollout) keep(e *episode, a *action, step envs.Step) error {
	if step.Keep < 0 || step.Keep > len(a.Action.Text) {
		return fmt.Errorf("the environment keeps %d bytes of an action of %d", step.Keep, len(a.Action.Text))
	}
	if step.Keep == 0 && step.Append+step.Reply == "" && step.Results == nil && step.Anew == nil && !step.Done {
		return errors.New("the environment keeps none of an action, appends nothing and continues, which would never end")
	}
	if math.IsInf(step.Reward, 0) {
		return fmt.Errorf("the environment gives the reward %v; a reward is finite, or NaN if there is none", step.Reward)
	}
	step.Keep += a.thought
	kept := keptTokens(a.ends, step.Keep) - a.before
	if kept < 0 {
		return errors.New("the environment keeps only a part of what the model generated before the limit of thinking; leave out max_thinking_tokens")
	}
	written := message{len(e.Tokens) - a.before, a.ends[:a.before+kept]}
	e.AppendRoutes(a.Routes, len(a.IDs), kept)
	for i, id := range a.IDs[:kept] {
		if step.Masked {
			e.AppendGiven(id)
			continue
		}
		e.AppendSampled(id, a.BehaviorLogProbs[i], a.LogProbs[i])
	}
	at := endBefore(a.ends, a.before+kept)
	given, err := r.sampler.Policy().Tokenizer.EncodeRaw(a.text[at:max(step.Keep, at)]+step.Append, false)
	if err != nil {
		return err
	}
	e.AppendGiven(given...)
	anew := r.anew(e, a, &step)
	switch replies := step.Replies(); {
	case anew != nil:
		e.shown.TemplateInputs, e.shown.Stop = anew.TemplateInputs, anew.Stop
		prompt, err := r.sampler.Policy().EncodeObservation(*anew)
		if err != nil {
			return err
		}
		e.BeginSegment(prompt...)
	case replies != nil:
		reply, err := r.sampler.Policy().EncodeReply(e.shown.TemplateInputs, replies, a.Action.Stop == envs.StopEnd)
		if err != nil {
			return err
		}
		e.AppendGiven(reply...)
	}
	e.Info, e.Tools, e.done = step.Info, step.Tools, step.Done
	e.thinks(a)
	e.answered++
	e.written.WriteString(a.text[:step.Keep])
	e.spent += len(a.IDs)
	if step.Done || !step.Continues {
		e.spent = 0
	}
	switch {
	case !step.Done && step.Continues:
	case r.config.Rewards == nil:
		e.EndTurn(step.Reward)
	default:
		e.EndTurn(0) // until it is scored
		r.unscored = append(r.unscored, turnID{e.group, e.Index, len(e.Turns) - 1})
		r.messages = append(r.messages, written)
		r.shown = append(r.shown, envs.Completion{
			Observation: e.shown, Text: e.written.String(), Generated: a.text[:step.Keep], Info: step.Info, Reward: step.Reward, Continues: !step.Done,
			Action: envs.Action{Text: a.Action.Text, Stop: a.Action.Stop, Thinking: strings.Join(e.thoughts, "\n")}, Said: step.Said, Tools: step.Tools,
		})
	}
	if !step.Continues {
		e.thoughts = nil
	}
	e.written.WriteString(step.Added())
	return nil
}

// anew is the conversation that the model reads next where it does not go on after its tokens, so that a segment begins: the
// environment has written it anew, or the chat template drops a thought of it; else nil.
func (r *rollout) anew(e *episode, a *action, step *envs.Step) *envs.Observation {
	replies := step.Replies()
	switch {
	case step.Done:
		return nil
	case step.Anew != nil:
		return step.Anew
	case replies == nil || a.thought == 0 || e.shown.Messages == nil || len(step.Said) == 0 || !r.sampler.Policy().DropsThoughts(replies[0].Role):
		return nil
	}
	o := e.shown
	o.Messages = step.Said
	return &o
}

// keptTokens is how many of the tokens whose texts have these ends are within the first bytes.
func keptTokens(ends []int, bytes int) int {
	kept := len(ends)
	for kept > 0 && ends[kept-1] > bytes {
		kept--
	}
	if kept < len(ends) {
		// Tokens that end within a character share it with a token that is taken back.
		for kept > 0 && ends[kept-1] == endBefore(ends, kept-1) {
			kept--
		}
	}
	return kept
}

// endBefore is the length of the text of the first n tokens.
func endBefore(ends []int, n int) int {
	if n == 0 {
		return 0
	}
	return ends[n-1]
}
