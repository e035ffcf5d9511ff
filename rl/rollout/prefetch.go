package rollout

import (
	"context"
	"time"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/rl/policy"
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
	Written [][]policy.Completion `json:"written"` // null where servers had not written them in time
}

// collectPrefetched finishes the rollout of this step, after beginning those of the MaxStaleness steps to come:
// while their episodes answer, this step's samples are learnt from; servers write meanwhile, too. What a later step learns
// from was thus written by a policy up to MaxStaleness versions older.
func (t *Tokens) collectPrefetched(ctx context.Context, at rl.At) (collection, error) {
	c, s := t.config, &t.state
	began := c.Now()
	for i := len(t.flights); i < len(s.Flights); i++ { // of the run that this one resumes
		if s.Flights[i].Written == nil {
			s.Flights[i].Version = at.Version
		}
		if err := t.launch(ctx, s.Flights[i]); err != nil {
			return collection{}, err
		}
	}
	for len(t.flights) <= c.MaxStaleness && at.Step+len(t.flights) < c.Steps {
		state := flightState{Step: at.Step + len(t.flights), Version: at.Version, Cursor: s.Cursor}
		if err := t.launch(ctx, state); err != nil {
			return collection{}, err
		}
		if t.servers == nil {
			state.Written = t.flights[len(t.flights)-1].first
		}
		s.Flights = append(s.Flights, state)
		s.Cursor += c.PromptsPerStep
	}
	f := t.flights[0]
	if f.written != nil {
		if err := t.servers.Tend(ctx, f.written); err != nil {
			return collection{}, err
		}
		if f.err != nil {
			return collection{}, f.err
		}
		s.Flights[0].Written, f.sampler = f.first, t.servers // later turns are written by the policy as it is
	}
	played, err := f.finish(ctx)
	if err != nil {
		return collection{}, err
	}
	p := f.config.join([]part{played}, nil)
	t.flights, s.Flights = t.flights[1:], s.Flights[1:]
	r := collection{groups: p.Groups, kept: p.Groups, scores: p.Scores, failed: f.failed, environment: p.Environment}
	r.generation = c.Now().Sub(began) - r.environment
	return r, nil
}

// launch begins a flight.
func (t *Tokens) launch(ctx context.Context, state flightState) error {
	f := &flight{}
	f.rollout = &rollout{sampler: t.sampler, config: t.rollout(rl.At{Step: state.Step, Version: state.Version}), now: t.config.Now, prefetched: true}
	f.config.Failed = f.failed.add
	if err := f.open(ctx, t.task, envs.Train, upFrom(state.Cursor, t.config.PromptsPerStep)); err != nil {
		return err
	}
	if t.servers == nil || state.Written != nil {
		if err := f.start(ctx, state.Written); err != nil {
			return err
		}
		t.flights = append(t.flights, f)
		return nil
	}
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
	t.flights = append(t.flights, f)
	return nil
}

// flightPatience is how long a checkpoint waits for what servers are writing.
const flightPatience = time.Minute

// settleFlights puts what servers have written ahead into the state. What they do not write in time is written anew by a
// run that resumes, by the policy as it is then.
func (t *Tokens) settleFlights() {
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
