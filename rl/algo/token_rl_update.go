package algo

import (
	"errors"
	"fmt"
	"math"
	"time"

	"rltrain/rl"
	"rltrain/torch"
)

// tokenSample is a trajectory with what the updates of a step read of it: an entry for each sampled token.
type tokenSample struct {
	*rl.Trajectory
	overlong  float64   // penalty of its length, at most 0
	old       []float32 // log π_old
	reference []float32 // log π_ref; nil without one
	penalty   []float64 // KL penalty in the reward
	advantage []float32
	value     []float32 // ppo
	returns   []float32 // ppo
}

// tokenFigures are what a step is judged by.
type tokenFigures struct {
	samples    []*tokenSample // that were learnt from
	minibatch  []updateFigures
	stopped    bool    // by the target KL
	baseline   float64 // mean of what was subtracted from rewards; NaN without one
	explained  float64 // ppo
	scoring    time.Duration
	updating   time.Duration
	kl         [3]float64 // k1, k2, k3 of a token, means
	klSequence float64    // k1 of a sequence, mean
	difference [2]float64 // of the sampler's and the trainer's log-probabilities: mean and maximum
}

// updateFigures are sums over an update's minibatch.
type updateFigures struct {
	Loss, Policy, Value, Entropy float64 // the terms of the loss as they are weighted there; entropy in nats, summed
	KL                           float64 // ρ − 1 − log ρ
	Low, High                    float64 // ratios that the clip holds back
	Ratios, Tokens               float64 // how many there are
	Norm                         float64
}

// learn makes the policy better by a collection.
func (t *tokenRL) learn(r collection) (tokenFigures, error) {
	c := t.config
	f := tokenFigures{baseline: math.NaN()}
	f.samples = t.samples(r)
	began := t.hooks.now()
	err := t.score(f.samples)
	f.scoring = t.hooks.now().Sub(began)
	if err != nil {
		return f, fmt.Errorf("step %d: %w", t.state.Step+1, err)
	}
	if c.Algorithm == TokenPPO {
		f.explained = estimateAdvantages(f.samples, c.Gamma, c.Lambda)
	} else {
		f.baseline = t.compare(r, f.samples)
	}
	if len(f.samples) > 0 {
		if err := t.updates(&f); err != nil {
			return f, err
		}
		if err := t.sampler.Refresh(); err != nil {
			return f, err
		}
		t.state.Version++
		f.measure(c)
		t.kl.Update(f.klSequence, len(f.samples))
	}
	return f, nil
}

// samples are the trajectories that a loss may learn from.
func (t *tokenRL) samples(r collection) []*tokenSample {
	var samples []*tokenSample
	for _, g := range r.groups {
		allowed := rl.OverlongMask(g)
		for i, x := range g {
			n := x.Length()
			if math.IsNaN(x.Reward()) || n == 0 || t.config.MaskOverlong && !allowed[i] {
				continue
			}
			samples = append(samples, &tokenSample{Trajectory: x, overlong: t.overlong(x), penalty: make([]float64, n)})
		}
	}
	return samples
}

func (t *tokenRL) overlong(x *rl.Trajectory) float64 {
	if t.config.OverlongBuffer == 0 {
		return 0
	}
	return rl.OverlongPenalty(x.Length(), t.config.MaxNew, t.config.OverlongBuffer)
}

// minibatches divides the samples for one epoch.
func (t *tokenRL) minibatches(samples []*tokenSample, epoch int) [][]*tokenSample {
	order := rl.Stream(t.config.Seed, streamMinibatch, uint64(t.state.Step), uint64(epoch)).Perm(len(samples))
	var batches [][]*tokenSample
	for i := range t.config.Minibatches {
		from, to := i*len(order)/t.config.Minibatches, (i+1)*len(order)/t.config.Minibatches
		if from < to {
			batches = append(batches, gather(order[from:to], func(at int) *tokenSample { return samples[at] }))
		}
	}
	return batches
}

// forward runs visit on each part of a batch.
func (t *tokenRL) forward(mode torch.Mode, batch []*tokenSample, visit func(s *torch.Scope, part []*tokenSample, b *rl.Batch)) error {
	ids := gather(batch, func(x *tokenSample) []int32 { return x.Tokens })
	for _, bounds := range microBatches(ids, t.config.MicroTokens) {
		part := batch[bounds[0]:bounds[1]]
		b, err := rl.NewBatch(gather(part, func(x *tokenSample) *rl.Trajectory { return x.Trajectory }))
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

func (p *TokenPolicy) scoreBatch(s *torch.Scope, b *rl.Batch, pass torch.Pass, temperature float64) scored {
	return p.scoreRows(s, b.Sequences, b.Rows, b.Targets, pass, temperature)
}

// score asks the policy and its reference about the samples, in the batches of the first epoch: forward passes
// in just these give log-probabilities that the first update reproduces bit by bit. A single update that needs
// neither values nor penalties before takes its own instead.
func (t *tokenRL) score(samples []*tokenSample) error {
	c := t.config
	if len(samples) == 0 {
		return nil
	}
	ppo := c.Algorithm == TokenPPO
	ahead := ppo || c.UpdateEpochs*c.Minibatches > 1 || c.KLCoef > 0 && c.KLInReward
	reference, pass := t.policy, torch.Pass{Adapter: false}
	if c.Reference != nil {
		reference, pass = c.Reference, torch.Pass{Adapter: true}
	}
	for _, batch := range t.minibatches(samples, 0) {
		if err := t.forward(torch.NoGrad, batch, func(s *torch.Scope, part []*tokenSample, b *rl.Batch) {
			if ahead {
				out := t.policy.scoreBatch(s, b, torch.Pass{Adapter: true}, c.Temperature)
				spread(part, s.Read(out.logProbs), func(x *tokenSample, v []float32) { x.old = v })
				if ppo {
					spread(part, s.Read(t.policy.values(s, out.hidden)), func(x *tokenSample, v []float32) { x.value = v })
				}
			}
			if c.KLCoef > 0 {
				out := reference.scoreBatch(s, b, pass, c.Temperature)
				spread(part, s.Read(out.logProbs), func(x *tokenSample, v []float32) { x.reference = v })
			}
		}); err != nil {
			return err
		}
	}
	if c.KLCoef > 0 && c.KLInReward {
		for _, x := range samples {
			for i := range x.penalty {
				x.penalty[i] = t.kl.Coef() * c.KLKind.Value(float64(x.old[i]), float64(x.reference[i]))
			}
		}
	}
	return nil
}

// spread hands each sample its share of values, one a token.
func spread(part []*tokenSample, values []float32, take func(x *tokenSample, v []float32)) {
	for _, x := range part {
		n := len(x.penalty)
		take(x, values[:n:n])
		values = values[n:]
	}
}

// compare gives each sample the advantage of its reward, penalties included, over the baseline, and returns
// the baseline's mean. Samples that are not learnt from take part with the reward they have.
func (t *tokenRL) compare(r collection, samples []*tokenSample) float64 {
	c := t.config
	penalty := map[*rl.Trajectory]float64{}
	for _, x := range samples {
		for _, p := range x.penalty {
			penalty[x.Trajectory] += p
		}
	}
	rewards := make([][]float64, len(r.groups))
	for g, group := range r.groups {
		rewards[g] = gather(group, func(x *rl.Trajectory) float64 { return x.Reward() + t.overlong(x) - penalty[x] })
	}
	given := r.greedy
	if c.Baseline == rl.BaselineMoving {
		given = make([]float64, len(rewards))
		for g := range given {
			given[g] = t.moving.Value()
		}
	}
	advantages := rl.Advantages{Baseline: c.Baseline, Scale: c.Scale}.Of(rewards, given)
	byTrajectory := map[*rl.Trajectory]float64{}
	baseline, n := 0.0, 0.0
	for g, group := range r.groups {
		for i, x := range group {
			byTrajectory[x] = advantages[g][i]
			if c.Scale == rl.ScaleNone && !math.IsNaN(rewards[g][i]) {
				baseline += rewards[g][i] - advantages[g][i]
				n++
			}
		}
	}
	for _, x := range samples {
		x.advantage = make([]float32, len(x.penalty))
		for i := range x.advantage {
			x.advantage[i] = float32(byTrajectory[x.Trajectory])
		}
	}
	t.moving.Update(flatten(rewards, func(r []float64) []float64 { return r }))
	return baseline / n
}

// flatten lays the lists of items end to end.
func flatten[T, V any](items []T, list func(item T) []V) []V {
	var all []V
	for _, item := range items {
		all = append(all, list(item)...)
	}
	return all
}

// updates descends on the loss in epochs of minibatches.
func (t *tokenRL) updates(f *tokenFigures) error {
	c := t.config
	for epoch := range c.UpdateEpochs {
		kl, tokens := 0.0, 0.0
		for _, batch := range t.minibatches(f.samples, epoch) {
			u, err := t.gradient(batch)
			if err != nil {
				return t.explain(batch, err)
			}
			// A minibatch alone is too small a sample to stop at.
			kl, tokens = kl+u.KL, tokens+u.Tokens
			if c.TargetKL > 0 && kl/tokens > 1.5*c.TargetKL {
				f.stopped = true
				return torch.ZeroGrad(t.policy.params())
			}
			rate := t.schedule.At(t.state.Step)
			rates := []float64{rate * c.LearningRate, rate * c.LearningRate}
			if c.Algorithm == TokenPPO {
				rates = append(rates, rate*c.ValueRate)
			}
			if u.Norm, err = t.optimizer.Step(rates, c.MaxGradNorm); err != nil {
				return t.explain(batch, err)
			}
			f.minibatch = append(f.minibatch, u)
		}
	}
	return nil
}

// gradient accumulates the gradient of a minibatch's loss.
func (t *tokenRL) gradient(batch []*tokenSample) (updateFigures, error) {
	c, p := t.config, t.policy
	var f updateFigures
	tokens := 0
	for _, x := range batch {
		tokens += len(x.penalty)
	}
	f.Tokens = float64(tokens)
	err := t.forward(torch.Train, batch, func(s *torch.Scope, part []*tokenSample, b *rl.Batch) {
		out := p.scoreBatch(s, b, torch.Pass{Adapter: true, Checkpoint: c.Checkpoint}, c.Temperature)
		m := int64(len(b.Rows))
		vector := func(list func(x *tokenSample) []float32) torch.Tensor { return s.Floats(flatten(part, list), m) }
		now := s.Read(out.logProbs)
		var old torch.Tensor
		if part[0].old == nil {
			old = s.Detach(out.logProbs)
			spread(part, now, func(x *tokenSample, v []float32) { x.old = v })
		} else {
			old = vector(func(x *tokenSample) []float32 { return x.old })
		}
		weight := s.Floats(b.Spread(gather(part, func(x *tokenSample) float64 {
			return tokenWeight(c.Reduction, len(x.penalty), len(batch), tokens, c.MaxNew)
		})), m)
		advantage := vector(func(x *tokenSample) []float32 { return x.advantage })
		var policy, loss torch.Tensor
		switch c.Algorithm {
		case Reinforce:
			policy = reinforceLoss(s, out.logProbs, advantage, weight)
		case RLOO:
			first := s.Floats(gather(part, func(x *tokenSample) float32 { return x.advantage[0] }), int64(len(part)))
			policy = s.Scale(rlooLoss(s, out.logProbs, old, membership(s, b), first, c.ClipLow, c.ClipHigh), 1/float64(len(batch)))
		case GRPO:
			policy = grpoLoss(s, out.logProbs, old, advantage, weight, c.ClipLow, c.ClipHigh)
		case TokenPPO:
			var value torch.Tensor
			policy, value = tokenPPOLoss(s, out.logProbs, old, advantage, p.values(s, out.hidden),
				vector(func(x *tokenSample) []float32 { return x.value }), vector(func(x *tokenSample) []float32 { return x.returns }), c)
			policy, value = s.Scale(policy, 1/f.Tokens), s.Scale(value, 1/f.Tokens)
			f.Value += s.Item(value)
			loss = s.Add(policy, s.Scale(value, c.ValueCoef))
		}
		if c.Algorithm != TokenPPO {
			loss = policy
		}
		if c.EntropyCoef != 0 {
			loss = s.Sub(loss, s.Scale(s.Sum(s.Mul(weight, out.entropy)), c.EntropyCoef))
		}
		if c.KLCoef > 0 && !c.KLInReward {
			reference := vector(func(x *tokenSample) []float32 { return x.reference })
			loss = s.Add(loss, s.Scale(klLoss(s, c.KLKind, out.logProbs, reference, weight), t.kl.Coef()))
		}
		f.Policy += s.Item(policy)
		f.Loss += s.Item(loss)
		f.Entropy += s.Item(s.Sum(out.entropy))
		f.count(part, now, c)
		s.Backward(loss)
	})
	return f, err
}

// membership [S, M] is 1 where a token is of a sequence.
func membership(s *torch.Scope, b *rl.Batch) torch.Tensor {
	n, m := len(b.Sequences), len(b.Sequence)
	member := make([]float32, n*m)
	for i, sequence := range b.Sequence {
		member[sequence*m+i] = 1
	}
	return s.Floats(member, int64(n), int64(m))
}

// count adds the ratios of a part: of tokens, or of sequences where they are what is clipped.
func (f *updateFigures) count(part []*tokenSample, now []float32, c TokenRLConfig) {
	clip := func(d, advantage float64) {
		switch ratio := math.Exp(d); {
		case ratio < 1-c.ClipLow && advantage < 0:
			f.Low++
		case ratio > 1+c.ClipHigh && advantage > 0:
			f.High++
		}
		f.Ratios++
	}
	spread(part, now, func(x *tokenSample, v []float32) {
		sum := 0.0
		for i := range v {
			d := float64(v[i]) - float64(x.old[i])
			f.KL += math.Expm1(d) - d
			sum += d
			if c.Algorithm != RLOO {
				clip(d, float64(x.advantage[i]))
			}
		}
		if c.Algorithm == RLOO {
			clip(sum, float64(x.advantage[0]))
		}
	})
}

// explain names the samples of a minibatch whose gradient is not finite.
func (t *tokenRL) explain(batch []*tokenSample, err error) error {
	var nonFinite *torch.NonFiniteError
	if !errors.As(err, &nonFinite) {
		return fmt.Errorf("step %d: %w", t.state.Step+1, err)
	}
	return t.hooks.broken(t.state.Step+1, gather(batch, func(x *tokenSample) int { return x.Prompt }), map[string]any{
		"samples":    gather(batch, func(x *tokenSample) int { return x.Sample }),
		"tokens":     gather(batch, func(x *tokenSample) []int32 { return x.Tokens }),
		"rewards":    gather(batch, func(x *tokenSample) float64 { return x.Reward() }),
		"advantages": gather(batch, func(x *tokenSample) float32 { return x.advantage[0] }),
	}, err)
}
