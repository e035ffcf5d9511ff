package algo

import (
	"context"
	"errors"
	"fmt"
	"math"

	"rltrain/envs"
	"rltrain/rl"
)

// importanceCap bounds the weights of samples that an older policy drew, as truncated importance sampling does
// (Ionides 2008; the bound is TRL's).
const importanceCap = 3

// flight is the rollout of a coming step, whose first actions are written and being answered.
type flight struct {
	*rollout
	failed failures
}

// flightState is all that a flight needs to be taken up again: the policy that wrote the first actions is
// gone by then, the episodes begin anew and are given the same actions.
type flightState struct {
	Step    int            `json:"step"`
	Version uint64         `json:"version"`
	Cursor  int            `json:"cursor"` // its first episode
	Written [][]Completion `json:"written"`
}

// failures are the episodes that did not answer.
type failures struct {
	n, timeouts int
	first       error
}

func (f *failures) add(episode, sample int, err error) {
	if f.n++; f.n == 1 {
		f.first = fmt.Errorf("episode %d, sample %d: %w", episode, sample, err)
	}
	if errors.Is(err, rl.ErrTimeout) {
		f.timeouts++
	}
}

// collectAhead finishes the rollout of this step, after beginning those of the MaxStaleness steps to come:
// while their episodes answer, this step's samples are learnt from. What a later step learns from was thus
// written by a policy up to MaxStaleness versions older.
func (t *tokenRL) collectAhead(ctx context.Context) (collection, error) {
	c, s := t.config, &t.state
	began := t.hooks.now()
	for i := len(t.flights); i < len(s.Flights); i++ { // of the run that this one resumes
		if err := t.launch(ctx, s.Flights[i]); err != nil {
			return collection{}, err
		}
	}
	for len(t.flights) <= c.MaxStaleness && s.Step+len(t.flights) < c.Steps {
		state := flightState{Step: s.Step + len(t.flights), Version: s.Version, Cursor: s.Cursor}
		if err := t.launch(ctx, state); err != nil {
			return collection{}, err
		}
		state.Written = t.flights[len(t.flights)-1].first
		s.Flights = append(s.Flights, state)
		s.Cursor += c.PromptsPerStep
	}
	f := t.flights[0]
	groups, err := f.finish(ctx)
	if err != nil {
		return collection{}, err
	}
	t.flights, s.Flights = t.flights[1:], s.Flights[1:]
	r := collection{played: groups, groups: groups, cursor: s.Cursor, failed: f.failed, environment: f.environment}
	r.generation = t.hooks.now().Sub(began) - r.environment
	return r, nil
}

// launch begins a flight.
func (t *tokenRL) launch(ctx context.Context, state flightState) error {
	f := &flight{}
	f.rollout = &rollout{sampler: t.sampler, config: t.config.rollout(state.Step, state.Version), now: t.hooks.now, ahead: true}
	f.config.Failed = f.failed.add
	indices := make([]int, t.config.PromptsPerStep)
	for i := range indices {
		indices[i] = state.Cursor + i
	}
	if err := f.start(ctx, t.task, envs.Train, indices, state.Written); err != nil {
		return err
	}
	t.flights = append(t.flights, f)
	return nil
}

// correct weighs each advantage by π_old/π_sampler, of the token, or of the completion where that is what the
// loss has the ratio of, up to importanceCap. It returns the least, the mean and the greatest weight before
// that bound.
func (t *tokenRL) correct(samples []*TokenSample) (ratios [3]float64) {
	n := 0.0
	ratios[0] = math.Inf(1)
	for _, x := range samples {
		weights := make([]float64, len(x.Old))
		sum := 0.0
		for i, sampled := range x.sampledLogProbs(t.config.Temperature) {
			weights[i] = float64(x.Old[i]) - float64(sampled)
			sum += weights[i]
		}
		for i := range weights {
			if t.algorithm.Ratio == SequenceRatio {
				weights[i] = sum
			}
			w := math.Exp(weights[i])
			x.Advantage[i] *= float32(min(w, importanceCap))
			ratios[0], ratios[1], ratios[2] = min(ratios[0], w), ratios[1]+w, max(ratios[2], w)
			n++
		}
	}
	ratios[1] /= n
	return ratios
}

// sampledLogProbs are the sampler's log-probabilities of the sampled tokens, as the trainer has them: of the
// whole distribution.
func (x *TokenSample) sampledLogProbs(temperature float64) []float32 {
	all := x.Trajectory.LogProb
	if temperature == 1 {
		all = x.Raw // whatever was filtered
	}
	var sampled []float32
	for token, source := range x.Source {
		if source == rl.Sampled {
			sampled = append(sampled, all[token])
		}
	}
	return sampled
}
