// Package rollout plays the episodes of tasks with a policy: what it shows, writes and is paid becomes samples to learn
// from. Its sources give a trainer its steps: rollouts of language models, at once or fetched ahead, draws from a
// buffer of what was played before, and the choices of a classifier.
package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/within"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// Config says how episodes are played.
type Config struct {
	Samples  int // times each episode is played
	MaxNew   int // tokens of an action at most
	Sampling torch.Sampling
	Seed     uint64
	Step     uint64 // of the run: the same episode is played with other random numbers in another step
	Version  uint64 // of the policy, noted in the trajectories

	// Group are the ranks that play the episodes together; nil = this process plays all.
	Group *dist.Group

	// Rewards judge the turns instead of the episodes themselves; nil = the episodes do.
	Rewards *reward.Text
	Centre  *reward.Centre // of the models among them; nil = their scores as they are

	// Timeout of each Reset and Step of an episode; 0 = none. With one, episodes answer on goroutines of their
	// own, while the policy writes on: they must not compute with tensors.
	Timeout time.Duration
	// Failed hears of each episode that failed to answer, or that the policy cannot read, which ends there without
	// a reward. nil = that ends the rollout.
	Failed func(episode, sample int, err error)
}

// parallelEpisodes is how many episodes answer at the same time at most, where they have goroutines; the same
// number of completions is judged at the same time.
const parallelEpisodes = 64

// Writer writes for a policy: its own *policy.Sampler, or servers that have its weights, *remote.Servers.
type Writer interface {
	Policy() *policy.CausalLM
	// Generate completes prompts by the policy's weights as they are; done hears of the prompts in their order.
	Generate(ctx context.Context, prompts [][]int32, o policy.GenerateOptions, done func(prompt int, completions []policy.Completion) error) error
}

// Played is what a rollout gives.
type Played struct {
	Groups      []rl.Group    // the samples of each episode
	Scores      reward.Scores // of Config.Rewards; empty without them
	Environment time.Duration // spent on the episodes' side, or waiting for it; 0 without a clock
}

// Play plays the episodes of a part and returns their samples, in the order of indices: what was shown,
// written and answered, as tokens, with the rewards and the sampler's log-probabilities. A sample is a
// function of the weights, the task and (Seed, Step, episode index, sample) alone, whatever else is asked for
// in the same call.
//
// An episode of several turns goes on behind its own tokens. Where MaxNew more would be past the model's
// positions it ends as if it had been cut off by the limit of tokens, and a turn under way earns 0.
func Play(ctx context.Context, sampler Writer, task envs.Task, part envs.Part, indices []int, c Config) (Played, error) {
	return play(ctx, sampler, task, part, indices, c, run.Hooks{}.Time)
}

// rollout is a rollout under way.
type rollout struct {
	sampler     Writer
	config      Config
	now         func() time.Time
	environment time.Duration
	prefetched  bool          // episodes answer on goroutines of their own
	slots       chan struct{} // of those goroutines

	groups  []rl.Group
	prompts [][]int32             // of the episodes that begin
	streams []uint64              // of their random numbers
	running []*episode            // those that go on
	first   [][]policy.Completion // the first actions, by group; nil where no sample of it could begin
	judged  []judgedTurn          // finished turns, for Config.Rewards
	shown   []envs.Completion     // and what the rewards are to see of each
	failed  []failedEpisode
}

// episode is one sample of an episode.
type episode struct {
	rl.Trajectory
	group    int // of the rollout
	env      envs.Env
	shown    envs.Observation
	written  strings.Builder // the text so far, the environment's included
	action   *action         // handed over, and not answered yet
	answered int             // actions so far
	done     bool
}

// open begins the episodes.
func (r *rollout) open(ctx context.Context, task envs.Task, part envs.Part, indices []int) error {
	r.prefetched = r.prefetched || r.config.Timeout > 0
	r.slots = make(chan struct{}, parallelEpisodes)
	r.groups = make([]rl.Group, len(indices))
	for i, index := range indices {
		if err := ctx.Err(); err != nil {
			return err // beginning a million episodes takes long
		}
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
			e.group = i
			r.groups[i] = append(r.groups[i], &e.Trajectory)
			begun = append(begun, e)
		}
		if prompt != nil {
			r.running = append(r.running, begun...)
			r.prompts, r.streams = append(r.prompts, prompt), append(r.streams, uint64(index))
		}
	}
	return nil
}

// start has the policy write the first actions; written, where it is not nil, is what it has written before.
func (r *rollout) start(ctx context.Context, written [][]policy.Completion) error {
	// The first action of all samples of an episode has one prompt, the later ones have their own.
	r.first = make([][]policy.Completion, len(r.groups))
	keep := func(prompt int, completions []policy.Completion) error {
		running := r.running[prompt*r.config.Samples:]
		r.first[running[0].group] = completions
		return r.hand(ctx, running, completions)
	}
	if written == nil {
		return r.act(ctx, r.prompts, r.streams, r.config.Samples, keep)
	}
	begun := 0
	for _, completions := range written {
		if len(completions) > 0 {
			begun++
		}
	}
	if begun != len(r.prompts) {
		return fmt.Errorf("%d episodes begin that were %d before: the task has changed", len(r.prompts), begun)
	}
	for prompt := range r.prompts {
		completions := written[r.running[prompt*r.config.Samples].group]
		if len(completions) != r.config.Samples {
			return fmt.Errorf("%d answers were kept of an episode that is to have %d: the task has changed", len(completions), r.config.Samples)
		}
		if err := keep(prompt, completions); err != nil {
			return err
		}
	}
	return nil
}

// finish plays the episodes to their ends, and has them judged.
func (r *rollout) finish(ctx context.Context) (part, error) {
	if err := r.playOut(ctx); err != nil {
		return part{}, err
	}
	p := part{Groups: r.groups, Judged: r.judged, Failed: r.failed}
	for _, g := range r.groups {
		for _, x := range g {
			p.Informed = append(p.Informed, x.Info != nil)
		}
	}
	if r.config.Rewards != nil {
		began := r.now()
		var err error
		if p.Scores, err = r.config.Rewards.Score(ctx, r.shown, parallelEpisodes); err != nil {
			return part{}, err
		}
		r.environment += r.now().Sub(began)
	}
	p.Environment = r.environment
	return p, nil
}

// note adds what each reward gave a turn to what it gave those before.
func note(t *rl.Trajectory, scores reward.Scores, i int) {
	for n, one := range scores.Rewards {
		if n == len(t.Parts) {
			t.Parts = append(t.Parts, rl.RecordedValue{Name: one.Name})
		}
		t.Parts[n].Value += rl.Number(one.Values[i])
	}
}

func (r *rollout) playOut(ctx context.Context) error {
	for {
		for _, e := range r.running {
			if err := r.settle(ctx, e); err != nil {
				return fmt.Errorf("episode %d, sample %d: %w", e.Prompt, e.Index, err)
			}
		}
		r.running = unfinished(r.running, r.sampler.Policy().MaxLength()-r.config.MaxNew)
		if len(r.running) == 0 {
			return nil
		}
		var prompts [][]int32
		var streams []uint64
		for _, e := range r.running {
			prompts = append(prompts, e.Tokens)
			streams = append(streams, rl.Stream(uint64(e.Prompt), uint64(e.Index), uint64(e.answered)).Uint64())
		}
		if err := r.act(ctx, prompts, streams, 1, func(prompt int, completions []policy.Completion) error {
			return r.hand(ctx, r.running[prompt:], completions)
		}); err != nil {
			return err
		}
	}
}

// begin starts a sample and returns the tokens of what it shows; none where the episode failed.
func (r *rollout) begin(ctx context.Context, task envs.Task, part envs.Part, index, sample int) (*episode, []int32, error) {
	e := &episode{Trajectory: rl.Trajectory{Prompt: index, Index: sample, Version: r.config.Version}}
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
	prompt, err := r.sampler.Policy().Observe(shown)
	if err != nil {
		return nil, nil, err
	}
	if limit := r.sampler.Policy().MaxLength(); len(prompt)+r.config.MaxNew > limit {
		e.done = true
		return e, nil, r.fail(ctx, e, fmt.Errorf("%w: its prompt has %d tokens, which with %d new ones is more than the model's %d positions", ErrTooLong, len(prompt), r.config.MaxNew, limit))
	}
	e.env, e.shown = env, shown
	e.Give(prompt...)
	return e, prompt, nil
}

// ErrTooLong is the error of an episode whose prompt the policy cannot read.
var ErrTooLong = errors.New("too long")

// asked is what an environment answers within the time it has.
func asked[T any](ctx context.Context, r *rollout, do func(ctx context.Context) (T, error)) (T, error) {
	if !r.prefetched {
		return do(ctx)
	}
	return within.Do(ctx, r.config.Timeout, do)
}

// fail tells of an episode that did not answer.
func (r *rollout) fail(ctx context.Context, e *episode, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case r.config.Failed == nil:
		return err
	}
	r.config.Failed(e.Prompt, e.Index, err)
	return nil
}
