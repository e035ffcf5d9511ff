package algo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"rltrain/envs"
	"rltrain/envs/chat"
	"rltrain/rl"
	"rltrain/torch"
	template "rltrain/torch/transformers/chat"
)

// RolloutConfig says how episodes are played.
type RolloutConfig struct {
	Samples  int // times each episode is played
	MaxNew   int // tokens of an action at most
	Sampling torch.Sampling
	Seed     uint64
	Step     uint64 // of the run: the same episode is played with other random numbers in another step
	Version  uint64 // of the policy, noted in the trajectories

	// Timeout of each Reset and Step of an episode; 0 = none. With one, episodes answer on goroutines of their
	// own, while the policy writes on: they must not compute with tensors.
	Timeout time.Duration
	// Failed hears of each episode that failed to answer, which ends there without a reward. nil = that ends
	// the rollout.
	Failed func(episode, sample int, err error)
}

// parallelEpisodes is how many episodes answer at the same time at most, where they have goroutines.
const parallelEpisodes = 64

// Rollout plays the episodes of a part and returns their samples, in the order of indices: what was shown,
// written and answered, as tokens, with the rewards and the sampler's log-probabilities. A sample is a
// function of the weights, the task and (Seed, Step, episode index, sample) alone, whatever else is asked for
// in the same call.
//
// An episode of several turns goes on behind its own tokens; it is given up, without a reward for the turn
// under way, where MaxNew more would be past the model's positions.
func (m *Sampler) Rollout(ctx context.Context, task envs.Task, part envs.Part, indices []int, c RolloutConfig) ([]rl.Group, error) {
	r := &rollout{sampler: m, config: c, now: Hooks{}.now}
	return r.play(ctx, task, part, indices)
}

// rollout is a rollout under way.
type rollout struct {
	sampler     *Sampler
	config      RolloutConfig
	now         func() time.Time
	environment time.Duration // time spent on the episodes' side, or waiting for it
	ahead       bool          // episodes answer on goroutines of their own
	slots       chan struct{} // of those goroutines

	groups  []rl.Group
	running []*episode     // those that go on
	first   [][]Completion // the first actions, by episode; none where no sample of it could begin
}

// episode is one sample of an episode.
type episode struct {
	rl.Trajectory
	env      envs.Env
	stop     []string
	action   *action // handed over, and not answered yet
	answered int     // actions so far
	done     bool
}

// action is a completion on its way through the environment.
type action struct {
	envs.Action
	Completion
	text   string // of the completion, of which the action may be the beginning
	ends   []int  // how long the text is after each token
	answer chan answer
}

type answer struct {
	envs.Step
	err error
}

func (r *rollout) play(ctx context.Context, task envs.Task, part envs.Part, indices []int) ([]rl.Group, error) {
	if err := r.start(ctx, task, part, indices, nil); err != nil {
		return nil, err
	}
	return r.finish(ctx)
}

// start begins the episodes and has the policy write their first actions; written, where it is not nil, is
// what it has written before.
func (r *rollout) start(ctx context.Context, task envs.Task, part envs.Part, indices []int, written [][]Completion) error {
	r.ahead = r.ahead || r.config.Timeout > 0
	r.slots = make(chan struct{}, parallelEpisodes)
	r.groups = make([]rl.Group, len(indices))
	var prompts [][]int32
	var streams []uint64
	for i, index := range indices {
		var prompt []int32
		var begun []*episode
		for sample := range r.config.Samples {
			e, shown, err := r.begin(ctx, task, part, index, sample)
			if err != nil {
				return fmt.Errorf("episode %d: %w", index, err)
			}
			if len(shown) > 0 {
				prompt = shown
			}
			r.groups[i] = append(r.groups[i], &e.Trajectory)
			begun = append(begun, e)
		}
		if prompt != nil {
			r.running = append(r.running, begun...)
			prompts, streams = append(prompts, prompt), append(streams, uint64(index))
		}
	}
	// The first action of all samples of an episode has one prompt, the later ones have their own.
	r.first = make([][]Completion, len(prompts))
	keep := func(prompt int, completions []Completion) error {
		r.first[prompt] = completions
		return r.hand(ctx, r.running[prompt*r.config.Samples:], completions)
	}
	if written == nil {
		return r.act(ctx, prompts, streams, r.config.Samples, keep)
	}
	if len(written) != len(prompts) {
		return fmt.Errorf("%d episodes begin that were %d before: the task has changed", len(prompts), len(written))
	}
	for prompt, completions := range written {
		if err := keep(prompt, completions); err != nil {
			return err
		}
	}
	return nil
}

// finish plays the episodes to their ends.
func (r *rollout) finish(ctx context.Context) ([]rl.Group, error) {
	for {
		for _, e := range r.running {
			if err := r.settle(ctx, e); err != nil {
				return nil, fmt.Errorf("episode %d, sample %d: %w", e.Prompt, e.Sample, err)
			}
		}
		r.running = unfinished(r.running, r.sampler.policy.MaxLength()-r.config.MaxNew)
		if len(r.running) == 0 {
			return r.groups, nil
		}
		var prompts [][]int32
		var streams []uint64
		for _, e := range r.running {
			prompts = append(prompts, e.Tokens)
			streams = append(streams, rl.Stream(uint64(e.Prompt), uint64(e.Sample), uint64(e.answered)).Uint64())
		}
		if err := r.act(ctx, prompts, streams, 1, func(prompt int, completions []Completion) error {
			return r.hand(ctx, r.running[prompt:], completions)
		}); err != nil {
			return nil, err
		}
	}
}

// begin starts a sample and returns the tokens of what it shows; none where the episode failed.
func (r *rollout) begin(ctx context.Context, task envs.Task, part envs.Part, index, sample int) (*episode, []int32, error) {
	e := &episode{Trajectory: rl.Trajectory{Prompt: index, Sample: sample, Version: r.config.Version}}
	began := r.now()
	env, err := task.Episode(part, index)
	if err != nil {
		return nil, nil, err
	}
	shown, err := asked(ctx, r, env.Reset)
	r.environment += r.now().Sub(began)
	if err != nil {
		e.done = true
		return e, nil, r.fail(ctx, e, err)
	}
	prompt, err := r.sampler.policy.observe(shown)
	if err != nil {
		return nil, nil, err
	}
	e.env, e.stop = env, shown.Stop
	e.Give(prompt...)
	return e, prompt, nil
}

// asked is what an environment answers within the time it has.
func asked[T any](ctx context.Context, r *rollout, do func(ctx context.Context) (T, error)) (T, error) {
	if !r.ahead {
		return do(ctx)
	}
	return rl.Within(ctx, r.config.Timeout, do)
}

// fail tells of an episode that did not answer.
func (r *rollout) fail(ctx context.Context, e *episode, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case r.config.Failed == nil:
		return err
	}
	r.config.Failed(e.Prompt, e.Sample, err)
	return nil
}

// act lets the policy write samples actions behind each prompt, of the running episodes.
func (r *rollout) act(ctx context.Context, prompts [][]int32, streams []uint64, samples int, done func(prompt int, completions []Completion) error) error {
	c := r.config
	o := GenerateOptions{
		Samples: samples, MaxNew: c.MaxNew, Sampling: c.Sampling, Seed: rl.Stream(c.Seed, streamRollout, c.Step).Uint64(),
		Streams: streams, Adapter: true,
	}
	var named *episode // whose stop strings o has
	for _, e := range r.running {
		if e.done {
			continue
		}
		if named == nil {
			named, o.Stop = e, e.stop
		}
		if !slices.Equal(e.stop, o.Stop) {
			return fmt.Errorf("episodes %d and %d of a task have different stop strings, %q and %q", named.Prompt, e.Prompt, o.Stop, e.stop)
		}
	}
	return r.sampler.Generate(ctx, prompts, o, done)
}

// hand gives completions to the episodes that they continue, in their order.
func (r *rollout) hand(ctx context.Context, episodes []*episode, completions []Completion) error {
	for i, completion := range completions {
		e := episodes[i]
		if e.done {
			continue // it failed to begin
		}
		text, ends, err := r.sampler.policy.spell(completion.IDs)
		if err != nil {
			return err
		}
		a := &action{Completion: completion, Action: envs.Action{Text: text, Stop: envs.StopEnd}, text: text, ends: ends, answer: make(chan answer, 1)}
		if at, stop := firstStop(text, e.stop); at >= 0 {
			a.Action = envs.Action{Text: text[:at+len(stop)], Stop: envs.StopString}
		} else if completion.Reason == torch.ReasonLength {
			a.Stop = envs.StopLength
		}
		e.action = a
		step := func() {
			s, err := asked(ctx, r, func(ctx context.Context) (envs.Step, error) { return e.env.Step(ctx, a.Action) })
			a.answer <- answer{s, err}
		}
		if !r.ahead {
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

// unfinished are the episodes that go on. One with more than limit tokens is given up.
func unfinished(running []*episode, limit int) []*episode {
	var left []*episode
	for _, e := range running {
		switch {
		case e.done:
		case len(e.Tokens) > limit:
			e.Stop = envs.StopCancelled
			if n := len(e.Turns); n == 0 || e.Turns[n-1].End < len(e.Tokens) {
				e.EndTurn(math.NaN())
			}
		default:
			left = append(left, e)
		}
	}
	return left
}

// observe is the tokens of what an episode shows first.
func (p *TokenPolicy) observe(o envs.Observation) ([]int32, error) {
	if len(o.Messages) == 0 {
		return p.Prompt(chat.Content{Text: o.Text})
	}
	if p.Templates == nil {
		return nil, fmt.Errorf("the task shows messages, but %s %w", p.model.Dir, template.ErrNone)
	}
	messages, opening := o.Messages, ""
	if last := messages[len(messages)-1]; last.Role == envs.RoleAssistant {
		messages, opening = messages[:len(messages)-1], last.Content
	}
	converted := make([]template.Message, len(messages))
	for i, m := range messages {
		converted[i] = template.NewMessage(m.Role, m.Content)
	}
	rendered, err := p.Templates.Render(converted, template.Options{AddGenerationPrompt: true, Special: p.Tokenizer.Special()})
	if err != nil {
		return nil, err
	}
	return p.Tokenizer.EncodeRaw(rendered.Text+opening, false)
}

// settle waits for what an episode answers, and appends the action and what follows to its trajectory.
func (r *rollout) settle(ctx context.Context, e *episode) error {
	a := e.action
	if a == nil {
		return nil
	}
	began := r.now()
	said := <-a.answer
	r.environment += r.now().Sub(began)
	e.action, e.Stop = nil, a.Stop
	if said.err != nil {
		e.done = true
		for i, id := range a.IDs {
			e.Draw(id, a.Drawn[i], a.LogProbs[i])
		}
		e.EndTurn(math.NaN())
		return r.fail(ctx, e, said.err)
	}
	return r.sampler.policy.settle(e, a, said.Step)
}

// settle appends an action and the step that answers it.
func (p *TokenPolicy) settle(e *episode, a *action, step envs.Step) error {
	if step.Keep < 0 || step.Keep > len(a.Action.Text) {
		return fmt.Errorf("the environment keeps %d bytes of an action of %d", step.Keep, len(a.Action.Text))
	}
	if step.Keep == 0 && step.Append == "" && !step.Done {
		return errors.New("the environment takes an action back, adds nothing and goes on, which has no end")
	}
	if math.IsInf(step.Reward, 0) {
		return fmt.Errorf("the environment gives the reward %v; a reward is finite, or NaN where there is none", step.Reward)
	}
	ends := a.ends
	kept := len(a.IDs)
	for kept > 0 && ends[kept-1] > step.Keep {
		kept--
	}
	if kept < len(a.IDs) {
		// Tokens that end within a character wrote it together with one that is taken back.
		for kept > 0 && ends[kept-1] == endBefore(ends, kept-1) {
			kept--
		}
	}
	for i, id := range a.IDs[:kept] {
		e.Draw(id, a.Drawn[i], a.LogProbs[i])
	}
	given, err := p.Tokenizer.EncodeRaw(a.text[endBefore(ends, kept):max(step.Keep, endBefore(ends, kept))]+step.Append, false)
	if err != nil {
		return err
	}
	e.Give(given...)
	e.Info, e.done = step.Info, step.Done
	e.answered++
	if step.Done || !step.Continues {
		e.EndTurn(step.Reward)
	}
	return nil
}

// endBefore is how much of the text the first n tokens wrote.
func endBefore(ends []int, n int) int {
	if n == 0 {
		return 0
	}
	return ends[n-1]
}

// spell is the text of tokens, and how long it is after each of them. A special token has no text.
func (p *TokenPolicy) spell(ids []int32) (text string, ends []int, err error) {
	var b strings.Builder
	decoder := p.Tokenizer.NewDecoder(true)
	for i, id := range ids {
		piece, err := decoder.Push(id)
		if err != nil {
			return "", nil, err
		}
		if i == len(ids)-1 {
			rest, err := decoder.Flush()
			if err != nil {
				return "", nil, err
			}
			piece += rest
		}
		b.WriteString(piece)
		ends = append(ends, b.Len())
	}
	return b.String(), ends, nil
}

// firstStop is where the first of the stop strings in text begins, and which it is.
func firstStop(text string, stop []string) (at int, found string) {
	at = firstOf(text, stop)
	for _, s := range stop {
		if at >= 0 && len(text) >= at+len(s) && text[at:at+len(s)] == s && len(s) > len(found) {
			found = s
		}
	}
	return at, found
}

// EvaluateTask plays n episodes of the evaluation part from the first on, once each, greedily, and counts the
// answers; fewer where the part has no more. Of c it takes what a greedy choice leaves open.
func (p *TokenPolicy) EvaluateTask(ctx context.Context, sampler *Sampler, task envs.Task, first, n int, c RolloutConfig) (rl.AnswerScores, error) {
	return p.TryTask(ctx, sampler, task, first, n, c.greedy())
}

// TryTask is EvaluateTask with answers drawn as c says, one each.
func (p *TokenPolicy) TryTask(ctx context.Context, sampler *Sampler, task envs.Task, first, n int, c RolloutConfig) (rl.AnswerScores, error) {
	if most := task.Len(envs.Eval); most > 0 {
		n = max(0, min(n, most-first))
	}
	indices := make([]int, n)
	for i := range indices {
		indices[i] = first + i
	}
	groups, err := sampler.Rollout(ctx, task, envs.Eval, indices, c)
	if err != nil {
		return rl.AnswerScores{}, fmt.Errorf("evaluating: %w", err)
	}
	infos := make([]*envs.Info, n)
	for i, g := range groups {
		infos[i] = g[0].Info
	}
	return rl.ScoreAnswers(infos), nil
}

// greedy is c with one sample of the likeliest tokens.
func (c RolloutConfig) greedy() RolloutConfig {
	c.Samples = 1
	c.Sampling = torch.Sampling{RepetitionPenalty: c.Sampling.RepetitionPenalty}
	return c
}
