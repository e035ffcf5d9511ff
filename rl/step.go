package rl

import (
	"context"
	"encoding/json"
)

// Step is what a source of samples gives one step of training.
type Step struct {
	Samples []*Sample // to learn from, those of a prompt side by side; may be empty
	// Groups are all samples that were played, by prompt, those without a reward and those that are not learnt from
	// included: algorithms compare the rewards of a group. nil for samples to imitate.
	Groups [][]*Sample
	// KLSamples are samples that the policy and its reference are asked about before the step, and that are not learnt from.
	KLSamples []*Sample
	Greedy    []float64 // reward of each group's greedy answer, NaN where there is none; nil unless the source gives them
	// Prefetched says that an earlier version of the policy may have acted, or another program for it, so that samples are
	// weighted by what the policy thinks of them now.
	Prefetched bool

	Figures Meter                  // what the source measured, for the metrics
	Health  *Health                // what the alarms look at; nil where nothing was played
	Line    func(all Meter) string // what to say of the step once it is learnt from; nil = nothing
	Notes   []string               // warnings and samples to print behind that line
	// Records are the answers to the first so many prompts, or with a negative number to all, with what the algorithm
	// made of them; nil = there are none.
	Records func(prompts int) ([]Record, error)
}

// At is where training stands when a source is asked for a step.
type At struct {
	Step    int    // steps finished
	Version uint64 // how often the policy has changed
}

// StepSource is where the samples of a step come from. The trainer calls Next once a step, with the policy as that step is to
// find it. If ctx ends, Next gives up and leaves behind nothing that a checkpoint would miss.
type StepSource interface {
	Stateful
	Next(ctx context.Context, at At) (*Step, error)
}

// Stateful is what changes while a run goes on and has to be there when it is resumed.
type Stateful interface {
	State() any                          // encodes to JSON and comes back exactly
	Restore(state json.RawMessage) error // of a State
}

// Rewards are the rewards of each group's samples, NaN where judging failed.
func (s *Step) Rewards() [][]float64 { return s.rewards((*Sample).Reward) }

// Penalised are the same with penalties.
func (s *Step) Penalised() [][]float64 { return s.rewards((*Sample).Penalised) }

func (s *Step) rewards(of func(*Sample) float64) [][]float64 {
	all := make([][]float64, len(s.Groups))
	for g, group := range s.Groups {
		for _, x := range group {
			all[g] = append(all[g], of(x))
		}
	}
	return all
}

// Spread gives all actions of each sample the advantage of its reward: an entry for each of Rewards.
func (s *Step) Spread(advantages [][]float64) {
	for g, group := range s.Groups {
		for i, x := range group {
			x.Fill(advantages[g][i])
		}
	}
}
