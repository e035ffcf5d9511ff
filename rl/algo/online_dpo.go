package algo

import (
	"errors"
	"fmt"

	"rltrain/rl"
	"rltrain/torch"
)

// OnlineDPO is DPO on pairs of the policy's own answers (Guo et al. 2024, section 2): of the answers to a prompt the one
// with the highest reward is chosen and the one with the lowest rejected. Prompts whose answers all earn the same teach
// nothing, and are left out.
type OnlineDPO struct{ DPO }

// Check implements Algorithm.
func (a *OnlineDPO) Check(samples int) error {
	switch {
	case a.Unpaired():
		return errors.New("dpo_loss kto takes single answers, and answers of the policy's own are compared in pairs: choose another loss")
	case samples < 2:
		return fmt.Errorf("samples_per_prompt %d: a pair needs 2", samples)
	}
	return a.DPO.Check(samples)
}

// Needs implements Algorithm.
func (a *OnlineDPO) Needs() Needs {
	n := a.DPO.Needs()
	n.Rewards, n.Choose = true, choosePairs
	return n
}

// choosePairs leaves of each group the best and the worst answer, the first of equals, in this order.
func choosePairs(step *rl.Step) {
	learnt := map[*rl.Sample]bool{}
	for _, x := range step.Samples {
		learnt[x] = true
	}
	step.Samples = nil
	compared, ties := 0.0, 0.0
	for _, group := range step.Groups {
		var best, worst *rl.Sample
		for _, x := range group {
			if !learnt[x] {
				continue
			}
			if best == nil || x.Penalised() > best.Penalised() {
				best = x
			}
			if worst == nil || x.Penalised() < worst.Penalised() {
				worst = x
			}
		}
		if best == nil {
			continue
		}
		compared++
		if best.Penalised() == worst.Penalised() {
			ties++
			continue
		}
		best.Fill(1)
		worst.Fill(-1)
		step.Samples = append(step.Samples, best, worst)
	}
	step.Figures.Mean("ties", ties, compared)
}

// Loss implements Algorithm. The trainer notes it.
func (a *OnlineDPO) Loss(s *torch.Scope, b *Batch) torch.Tensor { return a.loss(s, b) }
