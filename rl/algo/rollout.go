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
}

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
	environment time.Duration // time spent on the episodes' side
}

// episode is one sample of an episode.
type episode struct {
	rl.Trajectory
	env      envs.Env
	stop     []string
	answered int // actions so far
	done     bool
}

func (r *rollout) play(ctx context.Context, task envs.Task, part envs.Part, indices []int) ([]rl.Group, error) {
	groups := make([]rl.Group, len(indices))
	var running []*episode
	prompts := make([][]int32, len(indices))
	streams := make([]uint64, len(indices))
	for i, index := range indices {
		for sample := range r.config.Samples {
			e, prompt, err := r.begin(ctx, task, part, index, sample)
			if err != nil {
				return nil, fmt.Errorf("episode %d: %w", index, err)
			}
			groups[i] = append(groups[i], &e.Trajectory)
			running = append(running, e)
			prompts[i] = prompt
		}
		streams[i] = uint64(index)
	}
	// The first action of all samples of an episode has one prompt, the later ones have their own.
	err := r.act(ctx, running, prompts, streams, r.config.Samples)
	for err == nil {
		running = unfinished(running, r.sampler.policy.MaxLength()-r.config.MaxNew)
		if len(running) == 0 {
			return groups, nil
		}
		prompts, streams = nil, nil
		for _, e := range running {
			prompts = append(prompts, e.Tokens)
			streams = append(streams, rl.Stream(uint64(e.Prompt), uint64(e.Sample), uint64(e.answered)).Uint64())
		}
		err = r.act(ctx, running, prompts, streams, 1)
	}
	return nil, err
}

// begin starts a sample and returns the tokens of what it shows.
func (r *rollout) begin(ctx context.Context, task envs.Task, part envs.Part, index, sample int) (*episode, []int32, error) {
	began := r.now()
	env, err := task.Episode(part, index)
	if err != nil {
		return nil, nil, err
	}
	shown, err := env.Reset(ctx)
	r.environment += r.now().Sub(began)
	if err != nil {
		return nil, nil, err
	}
	prompt, err := r.sampler.policy.observe(shown)
	if err != nil {
		return nil, nil, err
	}
	e := &episode{env: env, stop: shown.Stop, Trajectory: rl.Trajectory{Prompt: index, Sample: sample, Version: r.config.Version}}
	e.Give(prompt...)
	return e, prompt, nil
}

// act lets the policy write an action for each episode, samples of them behind each prompt, and hands it over.
func (r *rollout) act(ctx context.Context, running []*episode, prompts [][]int32, streams []uint64, samples int) error {
	c := r.config
	o := GenerateOptions{
		Samples: samples, MaxNew: c.MaxNew, Sampling: c.Sampling, Seed: rl.Stream(c.Seed, streamRollout, c.Step).Uint64(),
		Streams: streams, Adapter: true,
	}
	for _, e := range running {
		if o.Stop = running[0].stop; !slices.Equal(e.stop, o.Stop) {
			return fmt.Errorf("episodes %d and %d of a task have different stop strings, %q and %q", running[0].Prompt, e.Prompt, o.Stop, e.stop)
		}
	}
	return r.sampler.Generate(ctx, prompts, o, func(prompt int, completions []Completion) error {
		began := r.now()
		defer func() { r.environment += r.now().Sub(began) }()
		for sample, completion := range completions {
			e := running[prompt*samples+sample]
			if err := r.sampler.policy.answer(ctx, e, completion); err != nil {
				return fmt.Errorf("episode %d, sample %d: %w", e.Prompt, e.Sample, err)
			}
		}
		return nil
	})
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

// answer hands a completion over as an action and appends it and what follows to the trajectory.
func (p *TokenPolicy) answer(ctx context.Context, e *episode, c Completion) error {
	text, ends, err := p.spell(c.IDs)
	if err != nil {
		return err
	}
	action := envs.Action{Text: text, Stop: envs.StopEnd}
	if at, stop := firstStop(text, e.stop); at >= 0 {
		action = envs.Action{Text: text[:at+len(stop)], Stop: envs.StopString}
	} else if c.Reason == torch.ReasonLength {
		action.Stop = envs.StopLength
	}
	step, err := e.env.Step(ctx, action)
	if err != nil {
		return err
	}
	if step.Keep < 0 || step.Keep > len(action.Text) {
		return fmt.Errorf("the environment keeps %d bytes of an action of %d", step.Keep, len(action.Text))
	}
	if step.Keep == 0 && step.Append == "" && !step.Done {
		return errors.New("the environment takes an action back, adds nothing and goes on, which has no end")
	}
	kept := len(c.IDs)
	for kept > 0 && ends[kept-1] > step.Keep {
		kept--
	}
	if kept < len(c.IDs) {
		// Tokens that end within a character wrote it together with one that is taken back.
		for kept > 0 && ends[kept-1] == endBefore(ends, kept-1) {
			kept--
		}
	}
	for i, id := range c.IDs[:kept] {
		e.Draw(id, c.Drawn[i], c.LogProbs[i])
	}
	given, err := p.Tokenizer.EncodeRaw(text[endBefore(ends, kept):max(step.Keep, endBefore(ends, kept))]+step.Append, false)
	if err != nil {
		return err
	}
	e.Give(given...)
	e.Stop, e.Info, e.done = action.Stop, step.Info, step.Done
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

// EvaluateTask plays the first n episodes of the evaluation part once each, greedily, and counts the answers;
// fewer where the part has no more. Of c it takes what a greedy choice leaves open.
func (p *TokenPolicy) EvaluateTask(ctx context.Context, sampler *Sampler, task envs.Task, n int, c RolloutConfig) (rl.AnswerScores, error) {
	return p.evaluateTask(ctx, sampler, task, n, c.greedy())
}

// evaluateTask is EvaluateTask with answers drawn as c says, one each.
func (p *TokenPolicy) evaluateTask(ctx context.Context, sampler *Sampler, task envs.Task, n int, c RolloutConfig) (rl.AnswerScores, error) {
	if most := task.Len(envs.Eval); most > 0 {
		n = min(n, most)
	}
	indices := make([]int, n)
	for i := range indices {
		indices[i] = i
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
