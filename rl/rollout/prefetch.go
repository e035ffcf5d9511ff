package rollout

import (
	"context"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/rl/policy"
)

// flight is the rollout of a coming step, whose first actions are written and being answered.
type flight struct {
	*rollout
	failed failures
}

// flightState is all that a flight needs to be taken up again: the policy that wrote the first actions is
// gone by then, the episodes begin anew and are given the same actions.
type flightState struct {
	Step    int                   `json:"step"`
	Version uint64                `json:"version"`
	Cursor  int                   `json:"cursor"` // its first episode
	Written [][]policy.Completion `json:"written"`
}

// collectPrefetched finishes the rollout of this step, after beginning those of the MaxStaleness steps to come:
// while their episodes answer, this step's samples are learnt from. What a later step learns from was thus
// written by a policy up to MaxStaleness versions older.
func (t *Tokens) collectPrefetched(ctx context.Context, at rl.At) (collection, error) {
	c, s := t.config, &t.state
	began := c.Now()
	for i := len(t.flights); i < len(s.Flights); i++ { // of the run that this one resumes
		if err := t.launch(ctx, s.Flights[i]); err != nil {
			return collection{}, err
		}
	}
	for len(t.flights) <= c.MaxStaleness && at.Step+len(t.flights) < c.Steps {
		state := flightState{Step: at.Step + len(t.flights), Version: at.Version, Cursor: s.Cursor}
		if err := t.launch(ctx, state); err != nil {
			return collection{}, err
		}
		state.Written = t.flights[len(t.flights)-1].first
		s.Flights = append(s.Flights, state)
		s.Cursor += c.PromptsPerStep
	}
	f := t.flights[0]
	p, err := f.finish(ctx)
	if err != nil {
		return collection{}, err
	}
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
	if err := f.start(ctx, t.task, envs.Train, upFrom(state.Cursor, t.config.PromptsPerStep), state.Written); err != nil {
		return err
	}
	t.flights = append(t.flights, f)
	return nil
}
