package rl

import (
	"context"
	"encoding/json"
	"math"
	"slices"
)

// Sample is one sequence of tokens for one forward pass, with its M actions. An action is a token that a language model
// generated or is trained on, or the label of a text. A completion is one sample with many actions.
//
// Slices of length M have an entry per action. The source fills in the first part, the trainer the second, the algorithm the
// third.
type Sample struct {
	Tokens  []int32 // input of the policy; for a language model up to the last action at least
	Rows    []int   // [M] index of the token whose state predicts each action; nil if the entire text does (a label)
	Actions []int32 // [M] token ids, or the index of the label or option
	Options []int32 // of a decision: the tokens, or labels of a classifier, of the options that Actions[0] is one of
	Routes  Routes  // of the first of Tokens; nil if the router decides for all
	Truth   int32   // the correct label, if samples have labels

	Prompt  int    // number of the prompt or row
	Index   int    // number of the sample among those of its prompt
	Episode int    // number of its episode in the step; samples of an episode are consecutive
	Version uint64 // of the policy that acted

	Margin float64 // by how much it should be better than those after it in its unit, for reward models

	// Context is what a teacher reads in place of the tokens before the first action; nil = the same tokens.
	Context []int32

	// Earlier are the segments of the episode before this one, in their order: samples without rewards that have the episode's
	// advantage. Step.Samples and Step.Groups do not list them.
	Earlier []*Sample

	// Rewards has the reward of each action, [M], without penalties; NaN if it failed. A sample without actions, which others
	// are compared with, has one.
	Rewards          []float64
	Ends             []int     // actions that end a turn or a step, in order; nil for data
	Overlong         float64   // length penalty of the episode, at most 0
	Truncated        bool      // cut at the token limit
	BehaviorLogProbs []float32 // [M] log π of each action under the policy that sampled it; nil for data

	Old       []float32 // [M] log π before the step's updates
	Reference []float32 // [M] log π of the reference policy; nil without one
	Teacher   []float32 // [M] log π of the teacher at temperature 1 or the trainer's; nil without one
	Value     []float32 // [M] V before the step's updates; nil without a value head
	Penalty   []float64 // [M] KL penalty in the reward; nil if the reward has none

	Advantage []float32 // [M]
	Return    []float32 // [M] target of V; nil without a value head
}

// Len is the number of actions, M.
func (s *Sample) Len() int { return len(s.Actions) }

// Reward is the total reward without penalties; NaN if it failed.
func (s *Sample) Reward() float64 {
	sum := 0.0
	for _, r := range s.Rewards {
		sum += r
	}
	return sum
}

// Penalised is Reward with the penalties for length and KL.
func (s *Sample) Penalised() float64 {
	sum := s.Reward() + s.Overlong
	for _, p := range s.Penalty {
		sum -= p
	}
	return sum
}

// HasReward says whether the sample has a reward.
func (s *Sample) HasReward() bool { return !math.IsNaN(s.Reward()) }

// ForTeacher is the sample as a teacher reads it: with its Context.
func (s *Sample) ForTeacher() *Sample {
	if s.Context == nil {
		return s
	}
	first := s.Rows[0] + 1
	x := &Sample{Tokens: slices.Concat(s.Context, s.Tokens[first:]), Rows: make([]int, s.Len()), Actions: s.Actions}
	for i, row := range s.Rows {
		x.Rows[i] = row - first + len(s.Context)
	}
	return x
}

// end notes that the last action ends a turn or a step.
func (s *Sample) end() {
	if last := s.Len() - 1; len(s.Ends) == 0 || s.Ends[len(s.Ends)-1] != last {
		s.Ends = append(s.Ends, last)
	}
}

// Fill sets the advantage of all actions.
func (s *Sample) Fill(advantage float64) {
	s.Advantage = make([]float32, s.Len())
	for i := range s.Advantage {
		s.Advantage[i] = float32(advantage)
	}
}

// WithEarlier lists samples, each after its earlier segments.
func WithEarlier(samples []*Sample) []*Sample {
	if !slices.ContainsFunc(samples, func(x *Sample) bool { return x.Earlier != nil }) {
		return samples
	}
	var all []*Sample
	for _, x := range samples {
		all = append(append(all, x.Earlier...), x)
	}
	return all
}

// Minibatches divides n samples at random into count parts of nearly equal size or, if size is above 0, into parts of that
// size, the last of which may be smaller. It is a pure function of its arguments. Indices within a part are sorted, so that
// samples of a prompt stay together. No part is empty.
func Minibatches(seed uint64, step, epoch, n, count, size int) [][]int {
	if size > 0 {
		count = (n + size - 1) / size
	}
	order := Stream(seed, StreamMinibatch, uint64(step), uint64(epoch)).Perm(n)
	var parts [][]int
	for i := range count {
		from, to := i*n/count, (i+1)*n/count
		if size > 0 {
			from, to = i*size, min((i+1)*size, n)
		}
		if from < to {
			part := order[from:to:to]
			slices.Sort(part)
			parts = append(parts, part)
		}
	}
	return parts
}

// Step is what a source provides for one step of training.
type Step struct {
	Samples []*Sample // to learn from, by prompt; may be empty
	// Masked is how many more samples count in means over samples, although nothing is learned from them.
	Masked int
	// Groups has all samples by prompt, including those without a reward and those not learned from: algorithms compare the
	// rewards of a group. nil for supervised samples.
	Groups [][]*Sample
	// KLSamples get log-probabilities of the policy and its reference before the step, but are not learned from.
	KLSamples []*Sample
	Greedy    []float64 // reward of each group's greedy completion, NaN if it has none; nil unless the source provides them
	// Prefetched says that an earlier version of the policy, or a server, may have sampled, so samples get importance weights.
	Prefetched bool

	Figures Meter                  // metrics of the source
	Health  *Health                // for the alarms; nil without episodes
	Line    func(all Meter) string // log line after the update; nil = none
	Notes   []string               // warnings and samples to print after that line
	// Records returns the completions of the first prompts, of all if prompts is negative, with their advantages; nil = none.
	Records func(prompts int) ([]Record, error)
}

// At is the state of training when a source makes a step.
type At struct {
	Step    int    // steps finished
	Version uint64 // updates of the policy so far
}

// StepSource provides samples. The trainer calls Next once per step. If ctx ends, Next stops, and a checkpoint then continues
// as if it had not been called.
type StepSource interface {
	Stateful
	Next(ctx context.Context, at At) (*Step, error)
}

// Stateful is something that a checkpoint must hold.
type Stateful interface {
	State() any                          // survives JSON exactly
	Restore(state json.RawMessage) error // of a State
}

// Rewards returns the rewards of each group's samples, NaN if they failed.
func (s *Step) Rewards() [][]float64 { return s.rewards((*Sample).Reward) }

// Penalised returns the same with penalties.
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

// Spread sets the advantages of the samples, one per entry of Rewards.
func (s *Step) Spread(advantages [][]float64) {
	for g, group := range s.Groups {
		for i, x := range group {
			x.Fill(advantages[g][i])
		}
	}
}
