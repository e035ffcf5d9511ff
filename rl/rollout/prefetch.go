package rollout

import (
	"context"
	"slices"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/policy"
)

// flight is the rollout of a coming step, whose first actions are written and being answered.
type flight struct {
	*rollout
	failed failures

	// Of a flight that servers write while the policy learns.
	written chan struct{} // closed once the first actions are there, or err is
	err     error
}

// flightState is all that a flight needs to be taken up again: the policy that wrote the first actions is
// gone by then, the episodes begin anew and are given the same actions.
type flightState struct {
	Step    int                   `json:"step"`
	Version uint64                `json:"version"`
	Cursor  int                   `json:"cursor"`  // its first episode
	Written [][]policy.Completion `json:"written"` // of all ranks, by episode; null where servers had not written them in time
}

// collectPrefetched finishes the rollout of this step, after beginning those of the MaxStaleness steps to come:
// while their episodes answer, this step's samples are learnt from; servers write meanwhile, too. What a later step learns
// from was thus written by a policy up to MaxStaleness versions older.
func (t *Tokens) collectPrefetched(ctx context.Context, at rl.At) (collection, error) {
	c, s := t.config, &t.state
	began := c.Now()
	if t.servers != nil {
		if err := t.servers.Share(ctx); err != nil {
			return collection{}, err
		}
	}
	for i := len(t.flights); i < len(s.Flights); i++ { // of the run that this one resumes
		if s.Flights[i].Written == nil {
			s.Flights[i].Version = at.Version
		}
		if _, err := t.launch(ctx, s.Flights[i]); err != nil {
			return collection{}, err
		}
	}
	for len(t.flights) <= c.MaxStaleness && at.Step+len(t.flights) < c.Steps {
		state := flightState{Step: at.Step + len(t.flights), Version: at.Version, Cursor: s.Cursor}
		var err error
		if state.Written, err = t.launch(ctx, state); err != nil {
			return collection{}, err
		}
		s.Flights = append(s.Flights, state)
		s.Cursor += c.PromptsPerStep
	}
	f := t.flights[0]
	own, err := t.land(dist.Until(ctx), f)
	parts, err := dist.Together(c.Group, own, err)
	if err != nil {
		return collection{}, err
	}
	p := f.config.join(parts, f.failed.add)
	t.flights, s.Flights = t.flights[1:], s.Flights[1:]
	r := collection{groups: p.Groups, kept: p.Groups, scores: p.Scores, failed: f.failed, environment: p.Environment}
	r.generation = c.Now().Sub(began) - r.environment
	return r, nil
}

// land plays this rank's share of a flight to its end.
func (t *Tokens) land(ctx context.Context, f *flight) (part, error) {
	if f.written != nil {
		if err := t.servers.Tend(ctx, f.written); err != nil {
			return part{}, err
		}
		if f.err != nil {
			return part{}, f.err
		}
		if t.config.Group.Size() == 1 {
			t.state.Flights[0].Written = f.first
		}
		f.sampler = t.servers // later turns are written by the policy as it is
	}
	return f.finish(ctx)
}

// launch begins this rank's share of a flight, and returns what all ranks' shares begin with; nil where servers write it.
func (t *Tokens) launch(ctx context.Context, state flightState) ([][]policy.Completion, error) {
	f := &flight{}
	f.rollout = &rollout{sampler: t.sampler, config: t.rollout(rl.At{Step: state.Step, Version: state.Version}), now: t.config.Now, prefetched: true}
	f.config.Failed = f.note
	from, to := t.config.Group.Share(t.config.PromptsPerStep)
	begin := func(ctx context.Context) error {
		if err := f.open(ctx, t.task, envs.Train, upFrom(state.Cursor+from, to-from)); err != nil {
			return err
		}
		switch {
		case state.Written != nil:
			return f.start(ctx, state.Written[from:to])
		case t.servers == nil:
			return f.start(ctx, nil)
		}
		return t.order(ctx, f)
	}
	err := begin(dist.Until(ctx))
	var first [][]policy.Completion
	if f.written == nil {
		first = f.first
	}
	parts, err := dist.Together(t.config.Group, first, err)
	if err != nil {
		return nil, err
	}
	t.flights = append(t.flights, f)
	return slices.Concat(parts...), nil
}

// order has servers write what a flight begins with, while the policy learns.
func (t *Tokens) order(ctx context.Context, f *flight) error {
	pinned, err := t.servers.Publish(ctx)
	if err != nil {
		return err
	}
	f.sampler, f.written = pinned, make(chan struct{})
	go func() {
		defer close(f.written)
		defer pinned.Release()
		// A run that stops takes what is under way into its checkpoint: the servers' own end is the end of this.
		f.err = f.start(t.servers.Context(), nil)
	}()
	return nil
}

// flightPatience is how long a checkpoint waits for what servers are writing.
const flightPatience = time.Minute

// settleFlights puts what servers have written ahead into the state. What they do not write in time is written anew by a
// run that resumes, by the policy as it is then; so is all that they write for several ranks, of which each has its share.
func (t *Tokens) settleFlights() {
	if t.config.Group.Size() > 1 {
		return
	}
	patience := time.NewTimer(flightPatience)
	defer patience.Stop()
	for i, f := range t.flights {
		if f.written == nil || t.state.Flights[i].Written != nil {
			continue
		}
		select {
		case <-f.written:
			if f.err == nil {
				t.state.Flights[i].Written = f.first
			}
		case <-patience.C:
			return
		}
	}
}
