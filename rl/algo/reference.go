package algo

import (
	"errors"

	"rltrain/rl"
	"rltrain/rl/policy"
	"rltrain/rl/run"
	"rltrain/torch"
)

// reference is the policy that another one is held to.
type reference struct {
	policy  policy.Policy // another policy; nil where it is an earlier version of the trained one
	weights run.Snapshot  // of that version; nil where it is the policy without its adapter, or where nothing refers
}

// newReference takes the policy as it is for a reference, unless another is given or none is asked for. An adapter that
// was never trained needs no copy: without it the policy is the reference.
func newReference(p policy.Policy, c Config, refers bool) (*reference, error) {
	r := &reference{policy: c.Reference}
	if !refers || c.Reference != nil {
		return r, nil
	}
	fresh, err := p.Fresh()
	if err != nil {
		return nil, err
	}
	if fresh && c.ReferenceEvery == 0 {
		return r, nil
	}
	return r, r.take(p)
}

// take makes the policy as it is now the reference.
func (r *reference) take(p policy.Policy) (err error) {
	r.weights, err = run.TakeSnapshot(p)
	return err
}

// ask runs forward, a pass without gradient, with the reference's weights.
func (r *reference) ask(p policy.Policy, forward func(reference policy.Policy, base bool) error) (err error) {
	switch {
	case r.policy != nil:
		return forward(r.policy, false)
	case r.weights == nil:
		return forward(p, true)
	}
	// The policy lends its own weights' place for the time of the question.
	own, err := run.TakeSnapshot(p)
	if err != nil {
		return err
	}
	if err := r.weights.PutBack(p); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.PutBack(p)) }()
	return forward(p, false)
}

// referencePass is how the reference is asked.
func referencePass(base bool, temperature float64) policy.Pass {
	return policy.Pass{Base: base, Temperature: temperature}
}

// lossOfKL is Σ w·k(log π − log π_ref) over actions, all [M]. Below −20 the third estimator goes on along its tangent:
// it stays finite, and still pulls back the actions that have run away, which a clamp would let go.
func lossOfKL(s *torch.Scope, kind string, logProbs, reference, weight torch.Tensor) torch.Tensor {
	return s.Sum(s.Mul(weight, klOf(s, kind, s.Sub(logProbs, reference))))
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
		if err := t.forward(torch.NoGrad, t.own(batch), func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
			out := p.Forward(s, b, referencePass(base, t.config.Temperature))
			spread(part, s.Read(out.LogProbs), func(x *rl.Sample, v []float32) { x.Reference = v })
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
	if err := t.forward(torch.NoGrad, t.own(samples), func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
		out := t.policy.Forward(s, b, policy.Pass{Temperature: t.config.Temperature})
		spread(part, s.Read(out.LogProbs), func(x *rl.Sample, v []float32) { x.Old = v })
	}); err != nil {
		return err
	}
	if err := t.exchange([][]*rl.Sample{samples}, oldOf); err != nil || !t.refers() {
		return err
	}
	return t.reference.ask(t.policy, func(p policy.Policy, base bool) error { return t.askReference(samples, p, base) })
}
