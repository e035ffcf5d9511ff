package algo

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"rltrain/rl"
	"rltrain/torch"
)

// turnSample is a turn drawn from the buffer.
type turnSample struct {
	rl.Experience
	reference []float32 // log π_ref of its sampled tokens; nil without a reference
}

// replayFigures are what a step is judged by.
type replayFigures struct {
	updates    []turnFigures
	staleness  float64    // versions of the policy that a drawn turn is behind, the mean
	difference [2]float64 // of the sampler's and the trainer's log-probabilities: mean and maximum
	compared   int        // tokens of that comparison
	scoring    time.Duration
	updating   time.Duration
}

// turnFigures are of an update.
type turnFigures struct {
	Loss, Norm float64
	Entropy    float64 // nats, summed over tokens
	KL         float64 // (log π − log π_ref)/n, summed over tokens
	Tokens     float64
	Turns      float64
}

// keep puts the turns of a step into the buffer.
func (t *tokenReplay) keep(r *played) {
	for _, x := range r.trajectories {
		returns := rl.ReturnsToGo(x.Rewards(), t.config.Gamma)
		for i := range returns {
			if !sampledIn(x, i) {
				returns[i] = math.NaN()
			}
		}
		skipped := t.buffer.Add(x, returns)
		r.skipped += skipped
		r.turns += len(returns) - skipped
	}
}

// sampledIn says whether a turn has a sampled token.
func sampledIn(x *rl.Trajectory, turn int) bool {
	start := 0
	if turn > 0 {
		start = x.Turns[turn-1].End
	}
	return slices.Contains(x.Source[start:x.Turns[turn].End], rl.Sampled)
}

// learn draws turns and makes the policy better by them.
func (t *tokenReplay) learn() (replayFigures, error) {
	c, s := t.config, &t.state
	var f replayFigures
	drawn := gather(t.buffer.Draw(rl.Stream(c.Seed, streamReplay, uint64(s.Step)), min(c.Draws, t.buffer.Len())), func(e rl.Experience) *turnSample {
		return &turnSample{Experience: e}
	})
	if len(drawn) == 0 {
		return f, nil
	}
	for _, x := range drawn {
		f.staleness += float64(s.Version-min(s.Version, x.Trajectory.Version)) / float64(len(drawn))
	}
	began := t.hooks.now()
	err := t.refer(drawn)
	f.scoring = t.hooks.now().Sub(began)
	if err != nil {
		return f, fmt.Errorf("step %d: %w", s.Step+1, err)
	}
	rate := t.schedule.At(s.Step) * c.LearningRate
	for batch := range slices.Chunk(drawn, c.BatchSize) {
		u, err := t.gradient(batch, &f)
		if err != nil {
			return f, t.explain(batch, err)
		}
		if u.Norm, err = t.optimizer.Step([]float64{rate, rate}, c.MaxGradNorm); err != nil {
			return f, t.explain(batch, err)
		}
		f.updates = append(f.updates, u)
	}
	s.Version++
	return f, t.sampler.Refresh()
}

// refer asks the reference about the drawn turns, each once however often it was drawn.
func (t *tokenReplay) refer(drawn []*turnSample) (err error) {
	c := t.config
	if !c.refers() {
		return nil
	}
	type turn struct {
		trajectory *rl.Trajectory
		turn       int
	}
	known := map[turn]*turnSample{}
	var different []*turnSample
	for _, x := range drawn {
		if key := (turn{x.Trajectory, x.Turn}); known[key] == nil {
			known[key] = x
			different = append(different, x)
		}
	}
	p := c.Reference
	if p == nil {
		// The policy lends its own weights' place for the time of the question.
		p = t.policy
		own, err := takeSnapshot(p)
		if err != nil {
			return err
		}
		if err := t.reference.putBack(p); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, own.putBack(p)) }()
	}
	if err := t.forward(torch.NoGrad, different, func(s *torch.Scope, part []*turnSample, b *rl.Batch) {
		values := s.Read(p.scoreBatch(s, b, torch.Pass{Adapter: true}, c.Temperature).logProbs)
		for i, x := range part {
			x.reference, values = values[:b.Length[i]:b.Length[i]], values[b.Length[i]:]
		}
	}); err != nil {
		return err
	}
	for _, x := range drawn {
		x.reference = known[turn{x.Trajectory, x.Turn}].reference
	}
	return nil
}

// forward runs visit on each part of a batch.
func (t *tokenReplay) forward(mode torch.Mode, batch []*turnSample, visit func(s *torch.Scope, part []*turnSample, b *rl.Batch)) error {
	ids := gather(batch, func(x *turnSample) []int32 { return x.Trajectory.Tokens[:x.Trajectory.Turns[x.Turn].End] })
	for _, bounds := range microBatches(ids, t.config.MicroTokens) {
		part := batch[bounds[0]:bounds[1]]
		b, err := rl.NewTurnBatch(gather(part, func(x *turnSample) rl.Experience { return x.Experience }))
		if err != nil {
			return err
		}
		if err := torch.Do(mode, func(s *torch.Scope) error {
			visit(s, part, b)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// gradient accumulates the gradient of an update's loss, the mean over its turns.
func (t *tokenReplay) gradient(batch []*turnSample, f *replayFigures) (turnFigures, error) {
	c := t.config
	u := turnFigures{Turns: float64(len(batch))}
	err := t.forward(torch.Train, batch, func(s *torch.Scope, part []*turnSample, b *rl.Batch) {
		out := t.policy.scoreBatch(s, b, torch.Pass{Adapter: true, Checkpoint: c.Checkpoint}, c.Temperature)
		m := int64(len(b.Rows))
		share := make([]float64, len(part))
		returns := make([]float64, len(part))
		for i, x := range part {
			share[i] = 1 / float64(b.Length[i])
			returns[i] = min(max(x.Return, c.ReturnMin), c.ReturnMax)
		}
		each := s.Floats(b.Spread(share), m)
		weight := s.Scale(each, 1/u.Turns)
		g := s.Floats(b.Spread(returns), m)
		var reference torch.Tensor
		if c.refers() {
			reference = s.Floats(flatten(part, func(x *turnSample) []float32 { return x.reference }), m)
		}
		var loss torch.Tensor
		switch {
		case !c.refers():
			loss = reinforceLoss(s, out.logProbs, g, weight)
		case c.Loss == ReplayStable:
			loss = stableLoss(s, out.logProbs, reference, g, weight, each, c.KLCoef)
		case c.Loss == ReplayDistiller:
			loss = distillerLoss(s, out.logProbs, reference, g, weight, c.NLLCoef)
		}
		u.Loss += s.Item(loss)
		u.Entropy += s.Item(s.Sum(out.entropy))
		u.Tokens += float64(m)
		if c.refers() {
			u.KL += s.Item(s.Sum(s.Mul(each, s.Sub(out.logProbs, reference))))
		}
		if len(f.updates) == 0 {
			f.compare(part, b, s.Read(out.logProbs), t.state.Version, c.Temperature)
		}
		s.Backward(loss)
	})
	return u, err
}

// compare holds what the sampler said about the turns of this version of the policy against the trainer.
func (f *replayFigures) compare(part []*turnSample, b *rl.Batch, now []float32, version uint64, temperature float64) {
	sampler := b.LogProb
	if temperature == 1 {
		sampler = b.Raw // of the same distribution, computed the same way
	}
	for i, sequence := range b.Sequence {
		if part[sequence].Trajectory.Version != version {
			continue
		}
		gap := math.Abs(float64(now[i]) - float64(sampler[i]))
		f.compared++
		f.difference[0] += (gap - f.difference[0]) / float64(f.compared)
		f.difference[1] = max(f.difference[1], gap)
	}
}

// explain names the turns of an update whose gradient is not finite.
func (t *tokenReplay) explain(batch []*turnSample, err error) error {
	var nonFinite *torch.NonFiniteError
	if !errors.As(err, &nonFinite) {
		return fmt.Errorf("step %d: %w", t.state.Step+1, err)
	}
	return t.hooks.broken(t.state.Step+1, gather(batch, func(x *turnSample) int { return x.Trajectory.Prompt }), map[string]any{
		"turns":   gather(batch, func(x *turnSample) int { return x.Turn }),
		"tokens":  gather(batch, func(x *turnSample) []int32 { return x.Trajectory.Tokens }),
		"returns": gather(batch, func(x *turnSample) float64 { return x.Return }),
	}, err)
}
