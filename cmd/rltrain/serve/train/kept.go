package train

import (
	"slices"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// kept is a forward pass over the first examples of a request. Clients with a loss of their own ask for the gradient of the same
// examples next, which goes back through this pass instead of running another.
type kept struct {
	run      *run
	part     []example
	held     *torch.Held
	logProbs torch.Tensor
}

// keep runs visit on a forward pass over examples and keeps it. There is one at a time.
func (r *run) keep(part []example, how policy.Pass, visit func(s *torch.Scope, logProbs torch.Tensor) error) (err error) {
	k := &kept{run: r, part: part}
	k.held, err = torch.Hold(torch.Train, func(s *torch.Scope) error {
		k.logProbs = r.policy.Forward(s, batch(part), how).LogProbs
		return visit(s, k.logProbs)
	})
	if err == nil {
		r.trainer.kept = k
	}
	return err
}

// fits says whether k is a pass of a run over examples.
func (k *kept) fits(r *run, part []example) bool {
	return k != nil && k.run == r && slices.EqualFunc(k.part, part, func(a, b example) bool {
		return slices.Equal(a.sample.Tokens, b.sample.Tokens) && slices.Equal(a.sample.Rows, b.sample.Rows) && slices.Equal(a.sample.Actions, b.sample.Actions)
	})
}

// back runs visit on the pass again.
func (k *kept) back(visit func(s *torch.Scope, logProbs torch.Tensor) error) error {
	return k.held.Do(func(s *torch.Scope) error { return visit(s, k.logProbs) })
}

// release frees the kept pass. Weights that it reads must not change before.
func (t *Trainer) release() {
	if t.kept != nil {
		t.kept.held.Close()
		t.kept = nil
	}
}
