package train

import (
	"errors"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
)

// reference is the policy that another one is held to.
type reference struct {
	policy  policy.Policy // another policy; nil where it is an earlier version of the trained one
	weights run.Snapshot  // of that version; nil where it is the policy without its adapter, or where nothing refers
}

// newReference takes the policy as it is for a reference, unless another is given or none is asked for. An adapter that
// was never trained needs no copy, unless one is taken again later: without it the policy is the reference.
func newReference(p, other policy.Policy, again, refers bool) (*reference, error) {
	r := &reference{policy: other}
	if !refers || other != nil {
		return r, nil
	}
	fresh, err := p.Fresh()
	if err != nil {
		return nil, err
	}
	if fresh && !again {
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
