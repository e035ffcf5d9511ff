package rl

import (
	"math"
	"slices"
)

// Sample is one sequence of tokens for one forward pass, with the M actions in it that a loss reads. An action
// is a token that a language model wrote or is to imitate, or the label of a text. A completion is one sample
// with many actions; an episode of classifications is several samples, one after the other, with one action
// each.
//
// Slices of length M have an entry for each action, in order. The source of samples fills in the first part,
// the trainer the second, the algorithm the third.
type Sample struct {
	Tokens  []int32 // what the policy reads; for a language model up to the last action at least
	Rows    []int   // [M] index of the token whose state predicts each action; nil where the whole text does (a label)
	Actions []int32 // [M] ids of tokens, or the index of the label
	Truth   int32   // the right label, where samples have labels

	Prompt  int    // which prompt or row of the task this is, for messages and logs
	Index   int    // which sample of its prompt
	Episode int    // number of its episode in the step; samples of an episode lie side by side, in order
	Version uint64 // of the policy that acted

	Margin float64 // by which it should be better than those behind it in its unit, for reward models

	// Rewards are what each action earned, [M], without penalties; NaN where judging failed. A sample without actions,
	// which others are compared with, has one.
	Rewards          []float64
	Overlong         float64   // penalty of the episode's length, at most 0
	Truncated        bool      // cut off by a limit of tokens
	BehaviorLogProbs []float32 // [M] log π of each action as the policy had it that acted; nil where nothing acted

	Old       []float32 // [M] log π at the start of the step's updates
	Reference []float32 // [M] log π of the reference policy; nil without one
	Value     []float32 // [M] V at the start of the step's updates; nil without a value head
	Penalty   []float64 // [M] of the divergence from the reference, where it is part of the reward; nil without

	Advantage []float32 // [M]
	Return    []float32 // [M] what V is to become; nil without a value head
}

// Len is the number of actions, M.
func (s *Sample) Len() int { return len(s.Actions) }

// Reward is what the sample earned in all, without penalties; NaN where judging failed.
func (s *Sample) Reward() float64 {
	sum := 0.0
	for _, r := range s.Rewards {
		sum += r
	}
	return sum
}

// Penalised is Reward with the penalties of length and of the divergence from the reference.
func (s *Sample) Penalised() float64 {
	sum := s.Reward() + s.Overlong
	for _, p := range s.Penalty {
		sum -= p
	}
	return sum
}

// HasReward says whether the sample has a reward.
func (s *Sample) HasReward() bool { return !math.IsNaN(s.Reward()) }

// Fill gives all actions the same advantage.
func (s *Sample) Fill(advantage float64) {
	s.Advantage = make([]float32, s.Len())
	for i := range s.Advantage {
		s.Advantage[i] = float32(advantage)
	}
}

// Minibatches divides n samples for one pass over a step into count parts of nearly equal size, or, where size
// is above 0, into parts of size, the last of which may be smaller. The division is a function of the arguments
// alone. Indices within a part are sorted, so that samples of one prompt stay side by side. There are no empty
// parts.
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
