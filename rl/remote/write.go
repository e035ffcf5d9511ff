package remote

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// Generate completes prompts by the policy's weights as they are, as policy.Sampler.Generate does. A prompt goes to the
// server with the fewest under way; where that fails it goes to another, with the same seed. It waits for a server as
// long as there is none.
func (s *Servers) Generate(ctx context.Context, prompts [][]int32, o policy.GenerateOptions, done func(prompt int, completions []policy.Completion) error) error {
	pinned, err := s.Publish(ctx)
	if err != nil {
		return err
	}
	defer pinned.Release()
	defer s.tell()
	return s.write(ctx, pinned.version, prompts, o, true, done)
}

// Pinned writes by the weights of one time, on any goroutine, while the policy goes on learning.
type Pinned struct {
	servers *Servers
	version *version
}

// Publish pins the weights as they are, which several ranks have to Share before. Release it after use.
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

// Policy is the policy whose weights these were.
func (p *Pinned) Policy() *policy.CausalLM { return p.servers.policy }

// Generate completes prompts as Servers.Generate does. Somebody must Tend the servers meanwhile, or one that fails never
// comes back.
func (p *Pinned) Generate(ctx context.Context, prompts [][]int32, o policy.GenerateOptions, done func(prompt int, completions []policy.Completion) error) error {
	return p.servers.write(ctx, p.version, prompts, o, false, done)
}

// Release lets go of the weights.
func (p *Pinned) Release() {
	p.servers.lock.Lock()
	defer p.servers.lock.Unlock()
	p.version.users--
}

// result is what became of a prompt.
type result struct {
	prompt      int
	completions []policy.Completion
	err         error
}

// write completes prompts; with tend the servers are seen to meanwhile.
func (s *Servers) write(ctx context.Context, v *version, prompts [][]int32, o policy.GenerateOptions, tend bool, done func(prompt int, completions []policy.Completion) error) error {
	limit := s.policy.MaxLength()
	for i, ids := range prompts {
		if len(ids) == 0 || len(ids)+o.MaxNew > limit {
			return fmt.Errorf("generating: prompt %d has %d tokens, which with %d new ones do not fit the model's %d positions", i+1, len(ids), o.MaxNew, limit)
		}
	}
	ctx, stop := context.WithCancel(ctx)
	results := make(chan result)
	waits := len(prompts)
	defer func() {
		stop()
		for ; waits > 0; waits-- {
			<-results // nothing is under way when this returns
		}
	}()
	for i, prompt := range prompts {
		stream := uint64(i)
		if o.Streams != nil {
			stream = o.Streams[i]
		}
		// A seed of its own for each prompt: a server may be several engines that share one.
		seed := int64(rl.Stream(o.Seed, stream).Uint64() >> 1)
		go func() {
			completions, err := s.one(ctx, v, prompt, o, seed)
			results <- result{i, completions, err}
		}()
	}
	look := time.NewTicker(s.config.Retry)
	defer look.Stop()
	finished := make([][]policy.Completion, len(prompts))
	for next := 0; next < len(prompts); {
		select {
		case r := <-results:
			waits--
			if r.err != nil {
				return r.err
			}
			finished[r.prompt] = r.completions
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

// tries is how often a server is asked again before it is left out, where it answers that something is wrong with it.
const tries = 3

// one completes a prompt, by whichever server does.
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

// ask completes a prompt by one server, which gets the adapter again where it has lost it.
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
		case is(err, http.StatusTooManyRequests): // it is busy, not broken
		case is(err, http.StatusInternalServerError):
			try++
		default:
			return nil, err
		}
		if try > tries {
			return nil, err
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// pick waits for the server with the fewest requests under way.
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
