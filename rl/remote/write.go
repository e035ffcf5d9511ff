package remote

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/rltrain/rltrain/internal/transfer"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
)

// Generate samples completions with the current weights, as policy.Sampler.Generate does. It sends a prompt to the server
// with the fewest running requests and, if that fails, to another one with the same seed. If no server is available, it
// waits.
func (s *Servers) Generate(ctx context.Context, prompts [][]int32, o policy.GenerateOptions, done func(prompt int, completions []policy.Completion) error) error {
	pinned, err := s.Publish(ctx)
	if err != nil {
		return err
	}
	defer pinned.Release()
	defer s.tell()
	return s.write(ctx, pinned.version, prompts, o, true, done)
}

// Pinned samples with a fixed version of the weights, on any goroutine, while training continues.
type Pinned struct {
	servers *Servers
	version *version
}

// Publish pins the current weights; with several ranks, call Share first. Release it after use.
func (s *Servers) Publish(ctx context.Context) (*Pinned, error) {
	s.revive(ctx)
	if s.config.Group.Size() == 1 {
		if err := s.Share(ctx); err != nil {
			return nil, err
		}
	}
	if s.shared.of != s.policy.Version() {
		return nil, errNotShared
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.shared.users++
	return &Pinned{s, s.shared}, nil
}

// Policy returns the policy of these weights.
func (p *Pinned) Policy() *policy.CausalLM { return p.servers.policy }

// Generate samples completions as Servers.Generate does. Call Tend meanwhile, or failed servers never come back.
func (p *Pinned) Generate(ctx context.Context, prompts [][]int32, o policy.GenerateOptions, done func(prompt int, completions []policy.Completion) error) error {
	return p.servers.write(ctx, p.version, prompts, o, false, done)
}

// Release releases the weights.
func (p *Pinned) Release() {
	p.servers.lock.Lock()
	defer p.servers.lock.Unlock()
	p.version.users--
}

// result is the outcome of a prompt.
type result struct {
	prompt      int
	completions []policy.Completion
	err         error
}

// write samples completions, and tends the servers meanwhile if tend is true.
func (s *Servers) write(ctx context.Context, v *version, prompts [][]int32, o policy.GenerateOptions, tend bool, done func(prompt int, completions []policy.Completion) error) error {
	limit := s.policy.MaxLength()
	for i, ids := range prompts {
		if len(ids) == 0 || len(ids)+o.MaxNew > limit {
			return fmt.Errorf("generating: prompt %d has %d tokens, which with %d new ones exceed the context of %d tokens", i+1, len(ids), o.MaxNew, limit)
		}
	}
	ctx, stop := context.WithCancel(ctx)
	results := make(chan result)
	waits := len(prompts)
	defer func() {
		stop()
		for ; waits > 0; waits-- {
			<-results // no request is running after the return
		}
	}()
	for i, prompt := range prompts {
		one, stream := o.Prompt(i)
		// A seed per prompt: a server may run several engines.
		seed := int64(rl.Stream(o.Seed, stream).Uint64() >> 1)
		go func() {
			completions, err := s.one(ctx, v, prompt, one, seed)
			results <- result{i, completions, err}
		}()
	}
	look := time.NewTicker(s.config.Retry)
	defer look.Stop()
	finished, sampled := make([][]policy.Completion, len(prompts)), 0
	for next := 0; next < len(prompts); {
		select {
		case r := <-results:
			waits--
			if r.err != nil {
				return r.err
			}
			finished[r.prompt] = r.completions
			for _, c := range r.completions {
				sampled += len(c.IDs)
			}
			run.Working(ctx, (len(prompts)-waits)*o.Samples, len(prompts)*o.Samples, sampled)
		case <-look.C:
			if tend {
				s.revive(ctx)
			}
		}
		for next < len(prompts) && finished[next] != nil {
			if err := done(next, finished[next]); err != nil {
				return err
			}
			finished[next] = nil
			next++
		}
	}
	return nil
}

// tries is the number of attempts before a server with errors is marked as down.
const tries = 3

// one samples completions of a prompt on any server.
func (s *Servers) one(ctx context.Context, v *version, prompt []int32, o policy.GenerateOptions, seed int64) ([]policy.Completion, error) {
	for {
		server, err := s.pick(ctx)
		if err != nil {
			return nil, err
		}
		completions, err := s.ask(ctx, server, v, prompt, o, seed)
		s.put(server)
		switch {
		case err == nil:
			return completions, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !passing(err):
			return nil, fmt.Errorf("rollout server %s: %w", server.url, err)
		}
		s.down(server, err)
	}
}

// ask samples completions of a prompt on one server, and reloads the adapter if the server has lost it.
func (s *Servers) ask(ctx context.Context, one *server, v *version, prompt []int32, o policy.GenerateOptions, seed int64) (completions []policy.Completion, err error) {
	for try, pause := 1, 100*time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		name := one.base
		if !o.Base {
			name = v.name
			if err = s.ensure(ctx, one, v); err != nil {
				return nil, err
			}
		}
		completions, err = one.completions(ctx, s.policy, name, prompt, o, seed)
		switch {
		case err == nil:
			return completions, nil
		case is(err, http.StatusNotFound) && !o.Base:
			s.lock.Lock()
			delete(one.loaded, v.name)
			s.lock.Unlock()
			try++
		case is(err, http.StatusTooManyRequests): // busy, not broken
		case is(err, http.StatusInternalServerError):
			try++
		default:
			return nil, err
		}
		if try > tries {
			return nil, err
		}
		if err := transfer.Wait(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// pick waits for the server with the fewest running requests.
func (s *Servers) pick(ctx context.Context) (*server, error) {
	for {
		s.lock.Lock()
		var best *server
		for _, one := range s.servers {
			if one.up && one.flying < s.config.InFlight && (best == nil || one.flying < best.flying) {
				best = one
			}
		}
		if best != nil {
			best.flying++
			s.lock.Unlock()
			return best, nil
		}
		changed := s.changed
		s.lock.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *Servers) put(one *server) {
	s.lock.Lock()
	defer s.lock.Unlock()
	one.flying--
	s.rouse()
}
