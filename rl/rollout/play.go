// Package rollout plays the episodes of tasks with a policy. Play turns what the episodes show, the policy generates and the
// rewards give into trajectories. The sources make a trainer's steps of them: Tokens, rollouts of a language model, one step
// at a time or ahead; Replay, turns out of a replay buffer; Labels, the choices of a classifier, and LabelReplay, the same out
// of a replay buffer.
package rollout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
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
	Samples int // of each episode
	MaxNew  int // tokens that are sampled for a turn at most; if its actions use them up, each further one has a single token
	// MaxThinking is how many tokens of a message are sampled for its thought at most, below MaxNew; 0 = no limit. At the limit
	// the end tag of the thought is given.
	MaxThinking int
	Sampling    torch.Sampling
	Seed        uint64
	Step        uint64 // of the run: another step samples the same episode with other random numbers
	Version     uint64 // of the policy, noted in the trajectories

	// Group are the ranks that play the episodes together; nil = this process plays all.
	Group *dist.Group

	// Rewards score the turns instead of the episodes; nil = the episodes do.
	Rewards *reward.Text
	Centre  *reward.Centre // of the reward models among them; nil = their scores as they are

	// Teacher sets Teacher of finished trajectories; nil = there is none.
	Teacher func(ctx context.Context, all []*rl.Trajectory) error

	// Timeout of each Reset and Step of an episode; 0 = none. With a timeout, episodes run on goroutines while the policy
	// generates: they must not compute with tensors.
	Timeout time.Duration
	// Failed is called for each episode that failed, or that the policy cannot read; it ends there without a reward.
	// nil = the first one is Play's error.
	Failed func(episode, sample int, err error)
}

// parallelEpisodes is how many episodes run at the same time at most, and how many completions rewards score at a time.
const parallelEpisodes = 64

// Generator generates for a policy: its own *policy.Sampler, or servers that have its weights, *remote.Servers.
type Generator interface {
	Policy() *policy.CausalLM
	// Generate completes prompts with the policy's current weights and calls done for the prompts in their order.
	Generate(ctx context.Context, prompts [][]int32, o policy.GenerateOptions, done func(prompt int, completions []policy.Completion) error) error
}

// Played is what a rollout gives.
type Played struct {
	Groups      []rl.Group    // the samples of each episode
	Scores      reward.Scores // of Config.Rewards; empty without them
	Environment time.Duration // spent in the episodes and rewards, or waiting for them; 0 without a clock

	Unscored []turnID        // turns that Scores are of, in their order
	Steps    [][]rl.Turn     // within them, with the rewards that Scores.Total has of them; nil if no reward has steps
	Failed   []failedEpisode // for Config.Failed
}

// turnID is a turn that Config.Rewards score.
type turnID struct{ Group, Sample, Turn int }

// failedEpisode is a sample of an episode that failed. As an error it is one of failureKinds, on every rank.
type failedEpisode struct {
	Episode, Sample int
	Text            string
	Kind            int // index of failureKinds; -1 = another
}

// failureKinds are the errors of episodes that callers tell apart.
var failureKinds = []error{within.ErrTimeout, ErrTooLong, envs.ErrNotScored}

func (f failedEpisode) Error() string { return f.Text }

// Unwrap returns the kind of the failure.
func (f failedEpisode) Unwrap() error {
	if f.Kind < 0 {
		return nil
	}
	return failureKinds[f.Kind]
}

// Play plays the episodes of a part and returns their samples, in the order of indices: the tokens of what was shown,
// generated and answered, with the rewards and the sampler's log-probabilities. A sample is a function of the weights, the
// task and (Seed, Step, episode index, sample) alone, whatever else the call asks for.
//
// Episodes of several turns continue after their own tokens. An episode ends if MaxNew more tokens exceed the model's
// positions, as if the token limit had cut it off; a turn that has begun then has reward 0.
func Play(ctx context.Context, sampler Generator, task envs.Task, part envs.Part, indices []int, c Config) (Played, error) {
	return play(ctx, sampler, task, part, indices, c, run.Hooks{}.Time)
}

// play is Play with a clock.
func play(ctx context.Context, sampler Generator, task envs.Task, part envs.Part, indices []int, c Config, now func() time.Time) (Played, error) {
	p, err := share(ctx, c.Group, sampler, len(indices), func(ctx context.Context, from, to int) (Played, error) {
		r := &rollout{sampler: sampler, config: c, now: now}
		defer r.close()
		for r.groups == nil || r.begun < (to-from)*c.Samples {
			if err := r.open(ctx, task, part, indices[from:to]); err != nil {
				return Played{}, err
			}
			if err := r.start(ctx, nil); err != nil {
				return Played{}, err
			}
			if err := r.playOut(ctx); err != nil {
				return Played{}, err
			}
			r.close() // so that others can begin
		}
		return r.finish(ctx)
	})
	if err != nil {
		return Played{}, err
	}
	return p.settled(c), nil
}

// settled reports the failed episodes, and gives the turns the rewards of Config.Rewards.
func (p Played) settled(c Config) Played {
	for _, f := range p.Failed {
		c.Failed(f.Episode, f.Sample, f)
	}
	if c.Rewards == nil {
		return p
	}
	if c.Centre != nil {
		c.Centre.Apply(&p.Scores)
	}
	for i, at := range p.Unscored {
		x := p.Groups[at.Group][at.Sample]
		total := p.Scores.Total[i]
		if p.Steps != nil && !math.IsNaN(total) {
			for _, step := range p.Steps[i] {
				total -= step.Reward
			}
			x.Steps = append(x.Steps, p.Steps[i]...)
		}
		x.Turns[at.Turn].Reward += total
		for n, one := range p.Scores.Rewards {
			if n == len(x.Parts) {
				x.Parts = append(x.Parts, rl.RecordedValue{Name: one.Name})
			}
			x.Parts[n].Value += rl.Number(one.Values[i])
		}
	}
	return p
}

// rollout is a rollout in progress.
type rollout struct {
	sampler     Generator
	config      Config
	now         func() time.Time
	environment time.Duration
	prefetched  bool          // episodes run on goroutines
	slots       chan struct{} // of those goroutines

	groups   []rl.Group
	begun    int                   // samples of the episodes so far, in their order
	width    int                   // how many of them begin at the same time at most
	prompts  [][]int32             // of the episodes that begin
	streams  []uint64              // of their random numbers
	each     bool                  // the samples of an episode begin with prompts of their own, or not all of them at the same time
	running  []*episode            // those that go on
	first    [][]policy.Completion // the first actions, by group; nil if no sample of the group could begin
	unscored []turnID              // finished turns, for Config.Rewards
	shown    []envs.Completion     // what the rewards see of each
	messages []message             // the message of each
	failed   []failedEpisode
	closers  []io.Closer // episodes that have something to close
}

// episode is one sample of an episode.
type episode struct {
	rl.Trajectory
	group    int // of the rollout
	env      envs.Env
	shown    envs.Observation
	written  strings.Builder // the text so far, with the environment's
	action   *action         // given to the environment, which has not answered yet
	answered int             // actions so far
	spent    int             // tokens sampled in the turn that goes on, those that the environment dropped included
	begun    begunMessage
	thoughts []string // of the turn that goes on
	done     bool
}

// close closes the episodes.
func (r *rollout) close() {
	var wait sync.WaitGroup
	for _, closer := range r.closers {
		wait.Go(func() { _ = closer.Close() })
	}
	wait.Wait()
	r.closers = nil
}

// start generates the first actions, or takes those of written unless it is nil.
func (r *rollout) start(ctx context.Context, written [][]policy.Completion) error {
	// The first actions of all samples of an episode usually have one prompt, later ones have their own.
	r.first = make([][]policy.Completion, len(r.groups))
	if written == nil && r.each {
		for _, e := range r.running {
			r.first[e.group] = make([]policy.Completion, r.config.Samples)
		}
		return r.next(ctx, func(e *episode, c policy.Completion) { r.first[e.group][e.Index] = c })
	}
	keep := func(prompt int, completions []policy.Completion) error {
		running := r.running[prompt*r.config.Samples:]
		r.first[running[0].group] = completions
		return r.hand(ctx, running, completions)
	}
	if written == nil {
		limits := make([]int, len(r.prompts))
		for i := range limits {
			limits[i] = r.limit(&episode{})
		}
		return r.act(ctx, r.prompts, r.streams, limits, r.config.Samples, keep)
	}
	begun := 0
	for _, completions := range written {
		if len(completions) > 0 {
			begun++
		}
	}
	if begun != len(r.prompts) {
		return fmt.Errorf("%d episodes begin, %d began before the run was stopped: the task has changed", len(r.prompts), begun)
	}
	for prompt := range r.prompts {
		completions := written[r.running[prompt*r.config.Samples].group]
		if len(completions) != r.config.Samples {
			return fmt.Errorf("an episode has %d saved completions, want %d: the task has changed", len(completions), r.config.Samples)
		}
		if err := keep(prompt, completions); err != nil {
			return err
		}
	}
	return nil
}

// finish plays the episodes to their ends and scores their turns.
func (r *rollout) finish(ctx context.Context) (Played, error) {
	if err := r.playOut(ctx); err != nil {
		return Played{}, err
	}
	p := Played{Groups: r.groups, Unscored: r.unscored, Failed: r.failed}
	if r.config.Rewards != nil {
		began := r.now()
		var err error
		if p.Scores, err = r.config.Rewards.Score(ctx, r.shown, parallelEpisodes); err != nil {
			return Played{}, err
		}
		p.Steps = stepsOf(p.Scores.Steps, r.messages)
		r.environment += r.now().Sub(began)
	}
	if r.config.Teacher != nil {
		began := r.now()
		if err := r.config.Teacher(ctx, slices.Concat(r.groups...)); err != nil {
			return Played{}, err
		}
		r.environment += r.now().Sub(began)
	}
	p.Environment = r.environment
	return p, nil
}

// playOut plays the episodes that have begun to their ends.
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
		if err := r.next(ctx, func(*episode, policy.Completion) {}); err != nil {
			return err
		}
	}
}

// next generates the next action of each episode after its own tokens; see is called with each.
func (r *rollout) next(ctx context.Context, see func(*episode, policy.Completion)) error {
	r.running = slices.DeleteFunc(r.running, func(e *episode) bool { return e.done })
	var prompts [][]int32
	var streams []uint64
	var limits []int
	for _, e := range r.running {
		limits = append(limits, r.limit(e))
		prompts = append(prompts, e.Context())
		streams = append(streams, rl.Stream(uint64(e.Prompt), uint64(e.Index), uint64(e.answered)).Uint64())
	}
	return r.act(ctx, prompts, streams, limits, 1, func(prompt int, completions []policy.Completion) error {
		see(r.running[prompt], completions[0])
		return r.hand(ctx, r.running[prompt:], completions)
	})
}

// asked is what an environment answers within its timeout.
func asked[T any](ctx context.Context, r *rollout, do func(ctx context.Context) (T, error)) (T, error) {
	if !r.prefetched {
		return do(ctx)
	}
	return within.Do(ctx, r.config.Timeout, do)
}

// fail notes an episode that failed, for Config.Failed.
func (r *rollout) fail(ctx context.Context, e *episode, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case r.config.Failed == nil:
		return err
	}
	kind := slices.IndexFunc(failureKinds, func(kind error) bool { return errors.Is(err, kind) })
	r.failed = append(r.failed, failedEpisode{e.Prompt, e.Index, err.Error(), kind})
	return nil
}
