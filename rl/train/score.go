package train

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// scoredFirst says whether log π_old has to be known before the first update.
func (t *Trainer) scoredFirst() bool {
	c := t.config
	repeats := c.Epochs*c.Minibatches > 1 || c.MinibatchSize > 0
	return t.needs.Values && !t.needs.SharedValues || t.needs.Ratio != algo.NoRatio && repeats || c.KLCoef > 0 && c.KLInReward
}

// score asks the policy and its reference about the samples, in the minibatches of the first pass: forward passes in
// just these give log-probabilities that the first update reproduces bit by bit. A single update that needs neither
// values nor penalties before takes its own instead.
func (t *Trainer) score(samples []*rl.Sample) error {
	if len(samples) == 0 {
		return nil
	}
	c := t.config
	if t.scored {
		var asked [][]*rl.Sample
		noted := map[*rl.Sample]bool{} // by any rank: one that is drawn twice may be in the parts of two
		for i, batch := range t.minibatches(samples, 0) {
			if noted[batch[0]] || batch[0].Old != nil && (batch[0].Value != nil || !t.needs.Values) {
				continue // it is known already, as by the source
			}
			asked = append(asked, batch)
			for _, x := range batch {
				noted[x] = true
			}
			batch = t.own(batch)
			if err := t.withinMemory(func() error { return t.scorePart(batch, i == 0 && t.keeps()) }, batch); err != nil {
				return err
			}
		}
		if err := t.exchangeOld(asked); err != nil {
			return err
		}
	}
	if !t.refers() {
		return nil
	}
	if err := t.reference.ask(t.policy, func(p policy.Policy, base bool) error { return t.askReference(samples, p, base) }); err != nil {
		return err
	}
	if t.needs.Rewards && c.KLInReward {
		kind := rl.KLKind(c.KLType)
		for _, x := range samples {
			x.Penalty = make([]float64, x.Len())
			for i := range x.Penalty {
				x.Penalty[i] = t.kl.Coef() * kind.Value(float64(x.Old[i]), float64(x.Reference[i]))
			}
		}
	}
	return nil
}

// scorePart notes what the policy says of a minibatch; where keep is set, the pass of its first part is kept.
func (t *Trainer) scorePart(batch []*rl.Sample, keep bool) error {
	if keep && len(batch) > 0 {
		n, err := t.keep(batch)
		if err != nil {
			return err
		}
		batch = batch[n:]
	}
	return t.forward(torch.NoGrad, batch, func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
		t.noteOld(s, part, t.policy.Forward(s, b, t.pass()))
	})
}

// pass is that of a forward pass of the policy itself.
func (t *Trainer) pass() policy.Pass {
	return policy.Pass{Values: t.needs.Values, Through: t.needs.SharedValues, Checkpoint: t.config.Checkpoint, Temperature: t.config.Temperature}
}

// noteOld writes down what the policy says of a part before it learns.
func (t *Trainer) noteOld(s *torch.Scope, part []*rl.Sample, out policy.Output) {
	rl.PerSample(part, s.Read(out.LogProbs), func(x *rl.Sample, v []float32) { x.Old = v })
	if t.needs.Values {
		rl.PerSample(part, s.Read(out.Values), func(x *rl.Sample, v []float32) { x.Value = v })
	}
}

// exchangeOld exchanges what noteOld has written down.
func (t *Trainer) exchangeOld(asked [][]*rl.Sample) error {
	if len(asked) == 0 {
		return nil
	}
	if t.needs.Values {
		return t.exchange(asked, oldOf, valueOf)
	}
	return t.exchange(asked, oldOf)
}

// referencePass is how the reference is asked.
func referencePass(base bool, temperature float64) policy.Pass {
	return policy.Pass{Base: base, Temperature: temperature}
}

// askReference asks about each sample once, however often it was drawn.
func (t *Trainer) askReference(samples []*rl.Sample, p policy.Policy, base bool) error {
	known := map[*rl.Sample]bool{}
	var different []*rl.Sample
	for _, x := range samples {
		if !known[x] && !t.precomputed[x] {
			known[x] = true
			different = append(different, x)
		}
	}
	batches := t.minibatches(different, 0)
	for _, batch := range batches {
		if err := t.ask(t.own(batch), func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
			out := p.Forward(s, b, referencePass(base, t.config.Temperature))
			rl.PerSample(part, s.Read(out.LogProbs), func(x *rl.Sample, v []float32) { x.Reference = v })
		}); err != nil {
			return err
		}
	}
	return t.exchange(batches, referenceOf)
}

// precompute asks the reference about samples once and for all. Where a run is resumed it does so again, in the same
// passes, with the same answers.
func (t *Trainer) precompute() error {
	samples := t.config.Precompute
	if len(samples) == 0 {
		return nil
	}
	t.precomputed = map[*rl.Sample]bool{}
	err := t.reference.ask(t.policy, func(p policy.Policy, base bool) error {
		for len(samples) > 0 {
			n := min(precomputedAtOnce, len(samples))
			if err := t.askReference(samples[:n], p, base); err != nil {
				return err
			}
			samples = samples[n:]
		}
		return nil
	})
	for _, x := range t.config.Precompute {
		t.precomputed[x] = true
	}
	return err
}

// precomputedAtOnce are samples that the reference is asked about in one go.
const precomputedAtOnce = 64

// askAside asks the policy and its reference about samples that are not learnt from.
func (t *Trainer) askAside(samples []*rl.Sample) error {
	if len(samples) == 0 {
		return nil
	}
	if err := t.ask(t.own(samples), func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
		out := t.policy.Forward(s, b, policy.Pass{Temperature: t.config.Temperature})
		rl.PerSample(part, s.Read(out.LogProbs), func(x *rl.Sample, v []float32) { x.Old = v })
	}); err != nil {
		return err
	}
	if err := t.exchange([][]*rl.Sample{samples}, oldOf); err != nil || !t.refers() {
		return err
	}
	return t.reference.ask(t.policy, func(p policy.Policy, base bool) error { return t.askReference(samples, p, base) })
}

// keeps says whether the first part is to be kept: not where a reference takes the place of the weights meanwhile, which
// backward would notice.
func (t *Trainer) keeps() bool {
	return !t.needs.Dropout && (t.reference == nil || t.reference.weights == nil)
}

// keep scores the first part of a batch, keeps the pass, and returns how many samples that are.
func (t *Trainer) keep(batch []*rl.Sample) (n int, err error) {
	t.letGo()
	k := &kept{part: t.parts(batch)[0]}
	k.held, err = torch.Hold(torch.Train, func(s *torch.Scope) error {
		k.batch = rl.NewBatch(k.part)
		k.out = t.policy.Forward(s, k.batch, t.pass())
		t.noteOld(s, k.part, k.out)
		return nil
	})
	if err != nil {
		return 0, err
	}
	t.kept = k
	return len(k.part), nil
}

// takeKept lets descend go back through the kept pass, if there is one and the samples begin with its own, and returns
// how many samples that are. The pass is used up.
func (t *Trainer) takeKept(samples []*rl.Sample, descend func(s *torch.Scope, part []*rl.Sample, b *rl.Batch, out policy.Output)) (int, error) {
	k := t.kept
	defer t.letGo()
	if k == nil || len(samples) < len(k.part) || samples[0] != k.part[0] {
		return 0, nil
	}
	return len(k.part), k.held.Do(func(s *torch.Scope) error {
		descend(s, k.part, k.batch, k.out)
		return nil
	})
}

// letGo frees the kept pass.
func (t *Trainer) letGo() {
	if t.kept != nil {
		t.kept.held.Close()
		t.kept = nil
	}
}

// diverge asks the teacher about the actions of a batch.
func (t *Trainer) diverge(s *torch.Scope, b *rl.Batch, weight torch.Tensor, student policy.Output, d policy.Divergence) (loss torch.Tensor) {
	if err := torch.Do(torch.NoGrad, func(asked *torch.Scope) (err error) {
		loss, err = policy.Diverge(s, student, t.config.Teacher.Forward(asked, b, policy.Pass{Temperature: t.config.Temperature}), d, s.Read(weight))
		return err
	}); err != nil {
		panic(err) // an operator's, which ends the pass around this one
	}
	return loss
}
