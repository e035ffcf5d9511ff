package algo

import (
	"errors"

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
