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

// tokenFigures are what a step is judged by.
type tokenFigures struct {
	samples    []*TokenSample // that were learnt from
	minibatch  []updateFigures
	stopped    bool    // by the target KL
	baseline   float64 // mean of what was subtracted from rewards; NaN without one
	scoring    time.Duration
	updating   time.Duration
	kl         [3]float64 // k1, k2, k3 of a token, means
	klSequence float64    // k1 of a sequence, mean
	ratios     [3]float64 // π_old to the sampler's: least, mean, greatest; with Async
	difference [2]float64 // of the sampler's and the trainer's log-probabilities: mean and maximum
}

// explained says how well the values foresaw the returns.
func (f *tokenFigures) explained() float64 {
	return rl.ExplainedVariance(
		flatten(f.samples, func(x *TokenSample) []float32 { return x.Value }),
		flatten(f.samples, func(x *TokenSample) []float32 { return x.Return }))
}

// updateFigures are sums over an update's minibatch.
type updateFigures struct {
	Loss, Policy, Value, Entropy float64 // the terms of the loss as they are weighted there; entropy in nats, summed
	KL                           float64 // ρ − 1 − log ρ
	Low, High                    float64 // ratios that the clip holds back
	Ratios, Tokens               float64 // how many there are
	Norm                         float64
	Idle                         bool // there is no gradient
}

// updates of the weights: one a minibatch that there was something to learn from.
func (f *tokenFigures) updates() int {
	n := 0
	for _, u := range f.minibatch {
		if !u.Idle {
			n++
		}
	}
	return n
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
	f.baseline = t.judge(r, f.samples)
	if c.Async {
		f.ratios = t.correct(f.samples)
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
func (t *tokenRL) samples(r collection) []*TokenSample {
	var samples []*TokenSample
	for _, g := range r.groups {
		allowed := rl.OverlongMask(g)
		for i, x := range g {
			n := x.Length()
			if math.IsNaN(x.Reward()) || n == 0 || t.config.MaskOverlong && !allowed[i] {
				continue
			}
			samples = append(samples, &TokenSample{Trajectory: x, Overlong: t.overlong(x), Penalty: make([]float64, n)})
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

// minibatches divides the samples for one epoch, those of a prompt side by side.
func (t *tokenRL) minibatches(samples []*TokenSample, epoch int) [][]*TokenSample {
	order := rl.Stream(t.config.Seed, streamMinibatch, uint64(t.state.Step), uint64(epoch)).Perm(len(samples))
	var batches [][]*TokenSample
	for i := range t.config.Minibatches {
		from, to := i*len(order)/t.config.Minibatches, (i+1)*len(order)/t.config.Minibatches
		if from < to {
			slices.Sort(order[from:to])
			batches = append(batches, gather(order[from:to], func(at int) *TokenSample { return samples[at] }))
		}
	}
	return batches
}

// forward runs visit on each part of a batch.
func (t *tokenRL) forward(mode torch.Mode, batch []*TokenSample, visit func(s *torch.Scope, part []*TokenSample, b *rl.Batch)) error {
	if len(batch) == 0 {
		return nil
	}
	ids := gather(batch, func(x *TokenSample) []int32 { return x.Tokens })
	for _, bounds := range microBatches(ids, t.config.MicroTokens) {
		part := batch[bounds[0]:bounds[1]]
		b, err := rl.NewBatch(gather(part, func(x *TokenSample) *rl.Trajectory { return x.Trajectory }))
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

// LogProbs is log π of the sampled tokens of a batch and the entropy of their distributions, in nats, [M] each.
// The logits are divided by temperature, as they were when the tokens were drawn. In mode torch.Train the
// gradient goes to the policy's weights.
func (p *TokenPolicy) LogProbs(s *torch.Scope, b *rl.Batch, temperature float64) (logProbs, entropy torch.Tensor) {
	out := p.scoreBatch(s, b, torch.Pass{Adapter: true}, temperature)
	return out.logProbs, out.entropy
}

func (p *TokenPolicy) scoreBatch(s *torch.Scope, b *rl.Batch, pass torch.Pass, temperature float64) scored {
	return p.scoreRows(s, b.Sequences, b.Rows, b.Targets, pass, temperature)
}

// score asks the policy and its reference about the samples, in the batches of the first epoch: forward passes
// in just these give log-probabilities that the first update reproduces bit by bit. A single update that needs
// neither values nor penalties before takes its own instead.
func (t *tokenRL) score(samples []*TokenSample) error {
	c := t.config
	if len(samples) == 0 {
		return nil
	}
	values, ahead := t.algorithm.ValueLoss != nil, t.ahead()
	reference, pass := t.policy, torch.Pass{Adapter: false}
	if c.Reference != nil {
		reference, pass = c.Reference, torch.Pass{Adapter: true}
	}
	for _, batch := range t.minibatches(samples, 0) {
		if err := t.forward(torch.NoGrad, batch, func(s *torch.Scope, part []*TokenSample, b *rl.Batch) {
			if ahead {
				out := t.policy.scoreBatch(s, b, torch.Pass{Adapter: true}, c.Temperature)
				spread(part, s.Read(out.logProbs), func(x *TokenSample, v []float32) { x.Old = v })
				if values {
					spread(part, s.Read(t.policy.values(s, out.hidden)), func(x *TokenSample, v []float32) { x.Value = v })
				}
			}
			if c.KLCoef > 0 {
				out := reference.scoreBatch(s, b, pass, c.Temperature)
				spread(part, s.Read(out.logProbs), func(x *TokenSample, v []float32) { x.Reference = v })
			}
		}); err != nil {
			return err
		}
	}
	if c.KLCoef > 0 && c.KLInReward {
		for _, x := range samples {
			for i := range x.Penalty {
				x.Penalty[i] = t.kl.Coef() * c.KLKind.Value(float64(x.Old[i]), float64(x.Reference[i]))
			}
		}
	}
	return nil
}

// spread hands each sample its share of values, one a token.
func spread(part []*TokenSample, values []float32, take func(x *TokenSample, v []float32)) {
	for _, x := range part {
		n := len(x.Penalty)
		take(x, values[:n:n])
		values = values[n:]
	}
}

// judge lets the algorithm give each sample its advantages, and returns what was taken off the rewards.
func (t *tokenRL) judge(r collection, samples []*TokenSample) (removed float64) {
	c := t.config
	penalty := map[*rl.Trajectory]float64{}
	for _, x := range samples {
		for _, p := range x.Penalty {
			penalty[x.Trajectory] += p
		}
	}
	step := &Step{Groups: r.groups, Rewards: make([][]float64, len(r.groups)), Given: r.greedy, Samples: samples, Removed: math.NaN()}
	for g, group := range r.groups {
		step.Rewards[g] = gather(group, func(x *rl.Trajectory) float64 { return x.Reward() + t.overlong(x) - penalty[x] })
	}
	if c.Baseline == rl.BaselineMoving {
		step.Given = make([]float64, len(step.Rewards))
		for g := range step.Given {
			step.Given[g] = t.moving.Value()
		}
	}
	t.algorithm.Advantages(c, step)
	t.moving.Update(flatten(step.Rewards, func(r []float64) []float64 { return r }))
	return step.Removed
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
			if !u.Idle { // a step of the momentum alone would lead away from what was learnt
				if u.Norm, err = t.optimizer.Step(t.rates(), c.MaxGradNorm); err != nil {
					return t.explain(batch, err)
				}
			}
			f.minibatch = append(f.minibatch, u)
		}
	}
	return nil
}

// rates are those of the policy's weights, by group, and of the value head.
func (t *tokenRL) rates() []float64 {
	rate := t.schedule.At(t.state.Step)
	rates := []float64{rate * t.config.LearningRate, rate * t.config.LearningRate}
	if t.algorithm.ValueLoss != nil {
		rates = append(rates, rate*t.config.ValueRate)
	}
	return rates
}

// ahead says whether log π_old has to be known before the first update.
func (t *tokenRL) ahead() bool {
	c := t.config
	return t.algorithm.ValueLoss != nil || c.Async || c.UpdateEpochs*c.Minibatches > 1 || c.KLCoef > 0 && c.KLInReward
}

// idle divides a batch into the samples that have a part in the gradient and those that have none: where the
// answers to a prompt all earn the same, there is nothing to learn from them. Log-probabilities that were asked for
// ahead are reproduced by the whole batch only, so it is not divided then.
func (t *tokenRL) idle(batch []*TokenSample) (learning, idle []*TokenSample) {
	c := t.config
	if !t.algorithm.ByAdvantage || t.algorithm.ValueLoss != nil || c.EntropyCoef != 0 || c.KLCoef > 0 {
		return batch, nil
	}
	for _, x := range batch {
		if slices.ContainsFunc(x.Advantage, func(a float32) bool { return a != 0 }) {
			learning = append(learning, x)
		} else {
			idle = append(idle, x)
		}
	}
	if t.ahead() && len(learning) > 0 {
		return batch, nil
	}
	return learning, idle
}

// gradient accumulates the gradient of a minibatch's loss.
func (t *tokenRL) gradient(batch []*TokenSample) (updateFigures, error) {
	c, p := t.config, t.policy
	var f updateFigures
	tokens := 0
	for _, x := range batch {
		tokens += len(x.Penalty)
	}
	f.Tokens = float64(tokens)
	learning, idle := t.idle(batch)
	f.Idle = len(learning) == 0
	if err := t.forward(torch.NoGrad, idle, func(s *torch.Scope, part []*TokenSample, b *rl.Batch) {
		out := p.scoreBatch(s, b, torch.Pass{Adapter: true}, c.Temperature)
		now := s.Read(out.logProbs)
		if part[0].Old == nil {
			spread(part, now, func(x *TokenSample, v []float32) { x.Old = v })
		}
		f.Entropy += s.Item(s.Sum(out.entropy))
		f.count(part, now, t.algorithm.Ratio, c)
	}); err != nil {
		return f, err
	}
	err := t.forward(torch.Train, learning, func(s *torch.Scope, part []*TokenSample, b *rl.Batch) {
		out := p.scoreBatch(s, b, torch.Pass{Adapter: true, Checkpoint: c.Checkpoint}, c.Temperature)
		m := int64(len(b.Rows))
		vector := func(list func(x *TokenSample) []float32) torch.Tensor { return s.Floats(flatten(part, list), m) }
		now := s.Read(out.logProbs)
		var old torch.Tensor
		if part[0].Old == nil {
			old = s.Detach(out.logProbs)
			spread(part, now, func(x *TokenSample, v []float32) { x.Old = v })
		} else {
			old = vector(func(x *TokenSample) []float32 { return x.Old })
		}
		l := &LossBatch{
			LogProb: out.logProbs, Old: old, Advantage: vector(func(x *TokenSample) []float32 { return x.Advantage }),
			N: len(batch), Tokens: tokens, part: part, rows: b,
			Weight: s.Floats(b.Spread(gather(part, func(x *TokenSample) float64 {
				return tokenWeight(c.Reduction, len(x.Penalty), len(batch), tokens, c.MaxNew)
			})), m),
		}
		policy := t.algorithm.Loss(s, l, c)
		loss := policy
		if t.algorithm.ValueLoss != nil {
			l.Value = p.values(s, out.hidden)
			l.OldValue, l.Return = vector(func(x *TokenSample) []float32 { return x.Value }), vector(func(x *TokenSample) []float32 { return x.Return })
			value := t.algorithm.ValueLoss(s, l, c)
			f.Value += s.Item(value)
			loss = s.Add(loss, s.Scale(value, c.ValueCoef))
		}
		if c.EntropyCoef != 0 {
			loss = s.Sub(loss, s.Scale(s.Sum(s.Mul(l.Weight, out.entropy)), c.EntropyCoef))
		}
		if c.KLCoef > 0 && !c.KLInReward {
			reference := vector(func(x *TokenSample) []float32 { return x.Reference })
			loss = s.Add(loss, s.Scale(klLoss(s, c.KLKind, out.logProbs, reference, l.Weight), t.kl.Coef()))
		}
		f.Policy += s.Item(policy)
		f.Loss += s.Item(loss)
		f.Entropy += s.Item(s.Sum(out.entropy))
		f.count(part, now, t.algorithm.Ratio, c)
		s.Backward(loss)
	})
	return f, err
}

// count adds the ratios of a part: of tokens, or of sequences where they are what is clipped.
func (f *updateFigures) count(part []*TokenSample, now []float32, of Ratio, c TokenRLConfig) {
	clip := func(d, advantage float64) {
		switch ratio := math.Exp(d); {
		case ratio < 1-c.ClipLow && advantage < 0:
			f.Low++
		case ratio > 1+c.ClipHigh && advantage > 0:
			f.High++
		}
		f.Ratios++
	}
	spread(part, now, func(x *TokenSample, v []float32) {
		sum := 0.0
		for i := range v {
			d := float64(v[i]) - float64(x.Old[i])
			f.KL += math.Expm1(d) - d
			sum += d
			if of != SequenceRatio {
				clip(d, float64(x.Advantage[i]))
			}
		}
		if of == SequenceRatio {
			clip(sum, float64(x.Advantage[0]))
		}
	})
}

// explain names the samples of a minibatch whose gradient is not finite.
func (t *tokenRL) explain(batch []*TokenSample, err error) error {
	var nonFinite *torch.NonFiniteError
	if !errors.As(err, &nonFinite) {
		return fmt.Errorf("step %d: %w", t.state.Step+1, err)
	}
	return t.hooks.broken(t.state.Step+1, gather(batch, func(x *TokenSample) int { return x.Prompt }), map[string]any{
		"samples":    gather(batch, func(x *TokenSample) int { return x.Sample }),
		"tokens":     gather(batch, func(x *TokenSample) []int32 { return x.Tokens }),
		"rewards":    gather(batch, func(x *TokenSample) float64 { return x.Reward() }),
		"advantages": gather(batch, func(x *TokenSample) float32 { return x.Advantage[0] }),
	}, err)
}
