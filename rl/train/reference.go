package train

import (
	"errors"

	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
)

// reference is the policy that the KL is measured to.
type reference struct {
	policy  policy.Policy // another model; nil = an earlier version of the trained policy
	weights run.Snapshot  // of that version; nil = the policy without its adapter, or no reference is needed
}

// newReference makes other the reference, or the policy as it is now. A new adapter needs no snapshot unless again says
// that more will be taken: without the adapter, the policy is the reference.
func newReference(p, other policy.Policy, again, refers bool) (*reference, error) {
	copied, err := copiesReference(p, other, again, refers)
	if err != nil {
		return nil, err
	}
	r := &reference{policy: other}
	if !copied {
		return r, nil
	}
	return r, r.take(p)
}

// copiesReference says whether newReference keeps a copy of the policy's weights.
func copiesReference(p, other policy.Policy, again, refers bool) (bool, error) {
	if !refers || other != nil {
		return false, nil
	}
	fresh, err := p.Fresh()
	return !fresh || again, err
}

// Copies is how many copies of the trained weights training has in memory at most, beside the policy's own.
func (c Config) Copies(p policy.Policy, a algo.Algorithm) (n int64, err error) {
	needs := a.Needs()
	if c.Evaluate != nil {
		n++ // the best
	}
	copied, err := copiesReference(p, c.Reference, c.renews(), c.refers(needs))
	if copied {
		n += 2 // the reference, and the policy while it has the reference's weights
	}
	if needs.Teacher == algo.TeacherSelf && needs.Self.Kind != algo.TeacherLive {
		n++
		if needs.Self.Kind != algo.TeacherBase {
			n += 3 // the next teacher is the mean of two; an earlier one is freed late
		}
	}
	return n, err
}

// refers says whether log π_ref is needed.
func (c Config) refers(needs algo.Needs) bool { return needs.Reference || c.KLCoef > 0 }

// renews says whether the reference changes.
func (c Config) renews() bool { return c.ReferenceEvery > 0 || c.Sync }

// take makes the policy as it is now the reference.
func (r *reference) take(p policy.Policy) (err error) {
	r.weights, err = run.TakeSnapshot(p)
	return err
}

// follow moves the weights of the reference to alpha times those of the policy plus 1 - alpha times its own.
func (r *reference) follow(p policy.Policy, alpha float32) error {
	was := r.weights
	if err := r.take(p); err != nil || alpha == 1 {
		return err
	}
	mix(r.weights, was, alpha)
	return nil
}

// mix makes now alpha times itself plus 1 - alpha times was.
func mix(now, was run.Snapshot, alpha float32) {
	for i, values := range now {
		for j, w := range values {
			values[j] = alpha*w + (1-alpha)*was[i][j]
		}
	}
}

// ask runs forward, passes without gradients, with the weights of the reference.
func (r *reference) ask(p policy.Policy, forward func(reference policy.Policy, base bool) error) (err error) {
	switch {
	case r.policy != nil:
		return forward(r.policy, false)
	case r.weights == nil:
		return forward(p, true)
	}
	// The policy holds the reference's weights meanwhile.
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
