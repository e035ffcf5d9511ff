package algo

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"rltrain/rl"
)

// Reductions of a loss over actions, as weight has them.
const (
	ReduceToken    = "token"
	ReduceSequence = "sequence"
	ReduceDrGRPO   = "dr_grpo"
)

// weight is the share of each of a sample's actions in the mean over a minibatch of n samples with actions in all:
//
//	token     1/actions           every action counts the same (Yu et al. 2025, DAPO, equation 12)
//	sequence  1/(n·length)        every sample counts the same (Shao et al. 2024, GRPO, equation 3)
//	dr_grpo   1/(n·longest)       and length has no say (Liu et al. 2025, Dr. GRPO, section 3.2)
//
// with longest the most actions that a sample may have.
func weight(reduction string, length, n, actions, longest int) float64 {
	switch reduction {
	case ReduceSequence:
		return 1 / (float64(n) * float64(length))
	case ReduceDrGRPO:
		return 1 / (float64(n) * float64(longest))
	}
	return 1 / float64(actions)
}

// Reduction says how the losses of actions are averaged.
type Reduction struct {
	Reduction string `option:"reduction" default:"auto" allowed:"auto,token,sequence,dr_grpo" help:"how tokens' losses are averaged: over all tokens (DAPO), first in each answer, or by the longest answer there may be (Dr. GRPO); auto = sequence for reinforce, token for grpo"`
}

func (r Reduction) or(auto string) string {
	if r.Reduction == "" || r.Reduction == "auto" {
		return auto
	}
	return r.Reduction
}

func (r Reduction) check() error {
	if !slices.Contains([]string{"", "auto", ReduceToken, ReduceSequence, ReduceDrGRPO}, r.Reduction) {
		return fmt.Errorf("reduction %q is unknown: choose auto, %s, %s or %s", r.Reduction, ReduceToken, ReduceSequence, ReduceDrGRPO)
	}
	return nil
}

// compare gives all actions of a sample the advantage of its reward over a baseline. Samples that are not learnt from
// take part in the comparison.
func compare(step *rl.Step, by rl.Advantages, given []float64) {
	penalised := step.Penalised()
	advantages := by.Of(penalised, step.Rewards(), given)
	step.Spread(advantages)
	if by.Scale != rl.ScaleNone {
		return
	}
	removed, n := 0.0, 0.0
	for g, rewards := range penalised {
		for i, r := range rewards {
			if !math.IsNaN(r) {
				removed += r - advantages[g][i]
				n++
			}
		}
	}
	step.Figures.Mean("baseline/mean", removed, n)
}

// moving is the moving-average baseline of an algorithm.
type moving struct{ average *rl.MovingAverage }

func (m *moving) State() any {
	if m.average == nil {
		return nil
	}
	return m.average.State()
}

func (m *moving) Restore(state json.RawMessage) error {
	if m.average == nil {
		return nil
	}
	var s rl.MovingAverageState
	if err := json.Unmarshal(state, &s); err != nil {
		return err
	}
	m.average.Restore(s)
	return nil
}
