package rollout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
)

// open begins the episodes that have not begun, or as many of them as run at the same time. Episodes that wait for programs or
// servers begin together.
func (r *rollout) open(ctx context.Context, task envs.Task, part envs.Part, indices []int) error {
	r.prefetched = r.prefetched || r.config.Timeout > 0 || waits(task)
	r.slots = make(chan struct{}, parallelEpisodes)
	if r.groups == nil {
		r.groups, r.width = make([]rl.Group, len(indices)), 1
		if r.prefetched {
			r.width = parallelEpisodes
		}
	}
	r.prompts, r.streams, r.running, r.each = nil, nil, nil, r.begun%r.config.Samples > 0
	first, all := r.begun, len(indices)*r.config.Samples
	var g opening
	for r.begun < all {
		if err := ctx.Err(); err != nil {
			return err // beginning a million episodes takes long
		}
		tried, err := r.resets(ctx, task, part, indices, min(r.width, all-r.begun))
		if err != nil {
			return err
		}
		began := slices.IndexFunc(tried, func(b *beginning) bool { return errors.Is(b.err, envs.ErrFull) })
		if began < 0 {
			began = len(tried)
		} else if later := closed(tried[began:]); later > 0 { // they had the places of those before them
			r.width = later
		} else if r.begun+began > first {
			r.width = max(1, r.begun+began-first)
			all = r.begun + began
		} else if r.width > 1 {
			r.width = 1
		} else {
			began = 1
		}
		for i, b := range tried[:began] {
			if err := r.began(ctx, b, &g); err != nil {
				closed(tried[i+1:])
				return fmt.Errorf("episode %d: %w", b.Prompt, err)
			}
		}
	}
	r.each = r.each || len(g.begun) > 0
	r.group(&g)
	return nil
}

// waits tells whether the episodes of a task run at the same time because they wait.
func waits(task envs.Task) bool {
	conversing, ok := task.(envs.Conversing)
	return ok && conversing.Waits()
}

// beginning is a sample that begins.
type beginning struct {
	*episode
	err error // of its start
}

// opening is a group whose samples begin.
type opening struct {
	begun  []*episode
	prompt []int32 // of a sample that did not fail; nil = none so far
}

// resets starts the next n samples.
func (r *rollout) resets(ctx context.Context, task envs.Task, part envs.Part, indices []int, n int) ([]*beginning, error) {
	tried := make([]*beginning, n)
	for i := range tried {
		at := r.begun + i
		group, sample := at/r.config.Samples, at%r.config.Samples
		e := &episode{Trajectory: rl.Trajectory{Prompt: indices[group], Index: sample, Version: r.config.Version}, group: group}
		var err error
		if e.env, err = task.Episode(part, e.Prompt); err != nil {
			closed(tried[:i])
			return nil, fmt.Errorf("episode %d: %w", e.Prompt, err)
		}
		tried[i] = &beginning{episode: e}
	}
	began := r.now()
	var wait sync.WaitGroup
	for _, b := range tried {
		reset := func() { b.shown, b.err = asked(ctx, r, b.env.Reset) }
		if n == 1 {
			reset()
		} else {
			wait.Go(reset)
		}
	}
	wait.Wait()
	r.environment += r.now().Sub(began)
	return tried, nil
}

// closed closes samples, which begin again later, and returns how many of them had begun.
func closed(tried []*beginning) (begun int) {
	var wait sync.WaitGroup
	for _, b := range tried {
		if b.err == nil {
			begun++
		}
		if closer, ok := b.env.(io.Closer); ok {
			wait.Go(func() { _ = closer.Close() })
		}
	}
	wait.Wait()
	return begun
}

// began takes a sample that has begun, or failed to, into its group.
func (r *rollout) began(ctx context.Context, b *beginning, g *opening) error {
	e := b.episode
	if closer, ok := e.env.(io.Closer); ok && !errors.Is(b.err, envs.ErrFull) {
		r.closers = append(r.closers, closer)
	}
	if b.err != nil {
		e.done = true
		if err := r.fail(ctx, e, b.err); err != nil {
			return err
		}
	} else if err := r.show(ctx, e); err != nil {
		return err
	}
	r.begun++
	r.groups[e.group] = append(r.groups[e.group], &e.Trajectory)
	g.begun = append(g.begun, e)
	if len(e.Tokens) > 0 {
		r.each = r.each || g.prompt != nil && !slices.Equal(g.prompt, e.Tokens)
		g.prompt = e.Tokens
	}
	if r.begun%r.config.Samples == 0 {
		r.group(g)
	}
	return nil
}

// group has the samples of a group run.
func (r *rollout) group(g *opening) {
	if g.prompt != nil {
		r.running = append(r.running, g.begun...)
		r.prompts, r.streams = append(r.prompts, g.prompt), append(r.streams, uint64(g.begun[0].Prompt))
	}
	*g = opening{}
}

// show begins the trajectory of a sample with the tokens of what it shows. A prompt that is too long fails it.
func (r *rollout) show(ctx context.Context, e *episode) error {
	prompt, err := r.sampler.Policy().EncodeObservation(e.shown)
	if err != nil {
		return err
	}
	if limit := r.sampler.Policy().MaxLength(); len(prompt)+r.config.MaxNew > limit {
		e.done = true
		return r.fail(ctx, e, fmt.Errorf("%w: %d prompt tokens and %d new ones exceed the model's %d positions", ErrTooLong, len(prompt), r.config.MaxNew, limit))
	}
	e.AppendGiven(prompt...)
	return nil
}

// ErrTooLong is the error of an episode whose prompt the policy cannot read.
var ErrTooLong = errors.New("prompt too long")
