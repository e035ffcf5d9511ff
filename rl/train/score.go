package train

import (
	"errors"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// scorer computes what an algorithm needs to know of samples before the updates: log π_old, values, log π_ref.
type scorer struct {
	*passes
	reference *reference
	known     map[*rl.Sample]bool // samples of Config.Precompute whose Reference is computed
}

// takeReference makes the policy as it is now the reference, unless another model is, and precomputes its answers.
func (r *scorer) takeReference() (err error) {
	r.reference, err = newReference(r.policy, r.config.Reference, r.config.renews(), r.refers())
	if err != nil {
		return err
	}
	if err := r.takeTeacher(nil); err != nil {
		return err
	}
	return r.precompute()
}

// renew moves the reference to the policy, or towards it, and so its teacher, if that is due.
func (r *scorer) renew() error {
	if err := r.renewTeacher(); err != nil {
		return err
	}
	every, alpha := r.config.ReferenceEvery, 1.0
	if r.config.Sync {
		every, alpha = r.config.Every, r.config.Alpha
	}
	if every == 0 || r.state.Step == 0 || r.state.Step%every != 0 || r.reference.weights == nil {
		return nil
	}
	return r.reference.follow(r.policy, float32(alpha))
}

// score evaluates the policy and its reference on the samples of a step, in the minibatches of the first pass: the first
// update then reproduces these log-probabilities bit by bit. Without scored, the first update computes log π_old itself.
func (r *scorer) score(step *rl.Step) error {
	if err := r.scoreOld(step.Samples); err != nil {
		return err
	}
	if r.refers() && len(step.Samples) > 0 {
		if err := r.reference.ask(r.policy, func(p policy.Policy, base bool) error { return r.askReference(step.Samples, p, base) }); err != nil {
			return err
		}
		r.penalise(step.Samples)
	}
	if r.needs.Sampled && len(step.Samples) > 0 {
		if err := r.askTeacher(step.Samples); err != nil {
			return err
		}
	}
	return r.askAside(step.KLSamples)
}

// scoreOld sets Old, and Value if the algorithm needs values.
func (r *scorer) scoreOld(samples []*rl.Sample) error {
	if !r.scored || len(samples) == 0 {
		return nil
	}
	var asked [][]*rl.Sample
	noted := map[*rl.Sample]bool{} // by any rank: a sample that was sampled twice may be in two ranks' shares
	for i, whole := range r.minibatches(samples, 0) {
		batch := slices.DeleteFunc(slices.Clone(whole), func(x *rl.Sample) bool {
			return noted[x] || x.Old != nil && (x.Value != nil || !r.needs.Values) // the source has set it
		})
		if len(batch) == 0 {
			continue
		}
		asked = append(asked, batch)
		for _, x := range batch {
			noted[x] = true
		}
		keep := i == 0 && len(batch) == len(whole) && r.keeps()
		batch = r.own(batch)
		if err := r.withinMemory(func() error { return r.scoreBatch(batch, keep) }, batch); err != nil {
			return err
		}
	}
	switch {
	case len(asked) == 0:
		return nil
	case r.needs.Values:
		return r.exchange(asked, oldOf, valueOf)
	}
	return r.exchange(asked, oldOf)
}

// scoreBatch scores a minibatch, and with keep keeps the pass of its first part.
func (r *scorer) scoreBatch(batch []*rl.Sample, keep bool) error {
	if keep && len(batch) > 0 {
		n, err := r.keep(batch, r.noteOld)
		if err != nil {
			return err
		}
		batch = batch[n:]
	}
	return r.forward(torch.NoGrad, batch, func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
		r.noteOld(s, part, r.policy.Forward(s, b, r.pass()))
	})
}

// keeps says whether the pass of the first part can be kept. Backward would notice that the weights of a reference took
// the place of the policy's meanwhile.
func (r *scorer) keeps() bool {
	return !r.needs.Dropout && (r.reference == nil || r.reference.weights == nil)
}

// noteOld sets Old and Value of a part.
func (r *scorer) noteOld(s *torch.Scope, part []*rl.Sample, out policy.Output) {
	rl.PerSample(part, s.Read(out.LogProbs), func(x *rl.Sample, v []float32) { x.Old = v })
	if r.needs.Values {
		rl.PerSample(part, s.Read(out.Values), func(x *rl.Sample, v []float32) { x.Value = v })
	}
}

// askReference sets Reference of samples.
func (r *scorer) askReference(samples []*rl.Sample, p policy.Policy, base bool) error {
	return r.askOther(samples, r.known, referenceOf, func(s *torch.Scope, _ []*rl.Sample, b *rl.Batch) policy.Output {
		return p.Forward(s, b, policy.Pass{Base: base, Temperature: r.config.Temperature})
	})
}

// askTeacher sets Teacher of samples, unless their source has done so.
func (r *scorer) askTeacher(samples []*rl.Sample) error {
	known := map[*rl.Sample]bool{}
	for _, x := range samples {
		known[x] = x.Teacher != nil
		if !known[x] && r.config.Teacher == nil {
			return errors.New("the samples of this source have no log-probabilities of the teacher: leave teacher_url out, or choose another source")
		}
	}
	return r.askOther(samples, known, teacherOf, r.teach)
}

// askOther sets a field of each sample to its log π under another policy, once, however often it was sampled, unless it is known.
func (r *scorer) askOther(samples []*rl.Sample, known map[*rl.Sample]bool, field func(x *rl.Sample) *[]float32, ask func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) policy.Output) error {
	seen := map[*rl.Sample]bool{}
	var different []*rl.Sample
	for _, x := range samples {
		if !seen[x] && !known[x] {
			seen[x] = true
			different = append(different, x)
		}
	}
	batches := r.minibatches(different, 0)
	for _, batch := range batches {
		if err := r.ask(r.own(batch), func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
			rl.PerSample(part, s.Read(ask(s, part, b).LogProbs), func(x *rl.Sample, v []float32) { *field(x) = v })
		}); err != nil {
			return err
		}
	}
	return r.exchange(batches, field)
}

// penalise sets Penalty of samples if the KL is part of the reward.
func (r *scorer) penalise(samples []*rl.Sample) {
	if !r.needs.Rewards || !r.config.KLInReward {
		return
	}
	kind := rl.KLKind(r.config.KLType)
	for _, x := range samples {
		x.Penalty = make([]float64, x.Len())
		for i := range x.Penalty {
			x.Penalty[i] = r.kl.Coef() * kind.Value(float64(x.Old[i]), float64(x.Reference[i]))
		}
	}
}

// precomputedAtOnce is how many samples of Config.Precompute are evaluated together.
const precomputedAtOnce = 64

// precompute sets Reference of the samples of Config.Precompute. A resumed run does so again, in the same passes and with
// the same results.
func (r *scorer) precompute() error {
	samples := r.config.Precompute
	if len(samples) == 0 {
		return nil
	}
	r.known = map[*rl.Sample]bool{}
	err := r.reference.ask(r.policy, func(p policy.Policy, base bool) error {
		for len(samples) > 0 {
			n := min(precomputedAtOnce, len(samples))
			if err := r.askReference(samples[:n], p, base); err != nil {
				return err
			}
			samples = samples[n:]
		}
		return nil
	})
	for _, x := range r.config.Precompute {
		r.known[x] = true
	}
	return err
}

// askAside sets Old and Reference of samples that are not learned from.
func (r *scorer) askAside(samples []*rl.Sample) error {
	if len(samples) == 0 {
		return nil
	}
	if err := r.ask(r.own(samples), func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
		out := r.policy.Forward(s, b, policy.Pass{Temperature: r.config.Temperature})
		rl.PerSample(part, s.Read(out.LogProbs), func(x *rl.Sample, v []float32) { x.Old = v })
	}); err != nil {
		return err
	}
	if err := r.exchange([][]*rl.Sample{samples}, oldOf); err != nil || !r.refers() {
		return err
	}
	return r.reference.ask(r.policy, func(p policy.Policy, base bool) error { return r.askReference(samples, p, base) })
}
