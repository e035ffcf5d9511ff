package algo

import (
	"rltrain/rl"
	"rltrain/rl/policy"
	"rltrain/torch"
)

// kept is a forward pass of the policy as it scored the first part of a step. The first update finds the same weights,
// so that it goes back through this pass and does not run another.
type kept struct {
	held  *torch.Held
	part  []*rl.Sample
	batch *rl.Batch
	out   policy.Output
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
