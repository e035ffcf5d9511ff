package rl

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// Step is one action of a rollout.
type Step struct {
	Sample  int     // index of the row or prompt that was acted on
	Action  int     // what was done: a label index
	LogProb float32 // log π(action) under the policy that acted, nats
	Value   float32 // the value head's estimate of the state
	Reward  float32
	Done    bool // the step ended its episode
}

// Buffer holds rollouts for on-policy learning, one slice a quantity, oldest step first.
// All slices have Len entries; Advantage and Return are nil until Finish has run and
// again after the next Add. Callers may read the slices and must not resize them.
//
// A Buffer is not safe for concurrent use.
type Buffer struct {
	Sample    []int
	Action    []int
	LogProb   []float32
	Value     []float32
	Reward    []float32
	Done      []bool
	Advantage []float32
	Return    []float32

	capacity int
}

// NewBuffer returns an empty buffer. When capacity is above 0, adding to a full buffer
// drops the oldest step; 0 means unbounded. It panics on a negative capacity.
func NewBuffer(capacity int) *Buffer {
	if capacity < 0 {
		panic(fmt.Sprintf("rl.NewBuffer: capacity %d is negative", capacity))
	}
	return &Buffer{capacity: capacity}
}

// Len is the number of steps held.
func (b *Buffer) Len() int { return len(b.Sample) }

// Add appends a step, and drops the oldest one when the buffer is full.
func (b *Buffer) Add(s Step) {
	if b.capacity > 0 && b.Len() == b.capacity {
		b.Sample, b.Action = b.Sample[1:], b.Action[1:]
		b.LogProb, b.Value, b.Reward = b.LogProb[1:], b.Value[1:], b.Reward[1:]
		b.Done = b.Done[1:]
	}
	b.Sample = append(b.Sample, s.Sample)
	b.Action = append(b.Action, s.Action)
	b.LogProb = append(b.LogProb, s.LogProb)
	b.Value = append(b.Value, s.Value)
	b.Reward = append(b.Reward, s.Reward)
	b.Done = append(b.Done, s.Done)
	b.Advantage, b.Return = nil, nil
}

// Finish fills Advantage and Return by GAE. last is the value of the state after the
// newest step; it counts only when that step is not done.
func (b *Buffer) Finish(gamma, lambda float64, last float32) {
	b.Advantage, b.Return = GAE(b.Reward, b.Value, b.Done, last, gamma, lambda)
}

// Whiten whitens Advantage over the whole buffer (see the function Whiten); Return
// keeps its scale, being the value head's target.
func (b *Buffer) Whiten() { Whiten(b.Advantage) }

// Minibatches deals the indices 0…Len−1 in random order into batches of size; every
// index occurs once and the last batch may be short. It panics when size is below 1.
func (b *Buffer) Minibatches(rng *rand.Rand, size int) [][]int {
	if size < 1 {
		panic(fmt.Sprintf("rl.Buffer.Minibatches: size %d is below 1", size))
	}
	return slices.Collect(slices.Chunk(rng.Perm(b.Len()), size))
}

// Reset drops all steps and keeps the capacity.
func (b *Buffer) Reset() { *b = Buffer{capacity: b.capacity} }

// BufferState is all of a Buffer, for a checkpoint. Finite values come back exactly
// from JSON.
type BufferState struct {
	Capacity  int       `json:"capacity"`
	Sample    []int     `json:"sample"`
	Action    []int     `json:"action"`
	LogProb   []float32 `json:"logprob"`
	Value     []float32 `json:"value"`
	Reward    []float32 `json:"reward"`
	Done      []bool    `json:"done"`
	Advantage []float32 `json:"advantage,omitempty"`
	Return    []float32 `json:"return,omitempty"`
}

// State returns a copy of everything the buffer holds.
func (b *Buffer) State() BufferState {
	return BufferState{
		Capacity: b.capacity,
		Sample:   slices.Clone(b.Sample), Action: slices.Clone(b.Action),
		LogProb: slices.Clone(b.LogProb), Value: slices.Clone(b.Value), Reward: slices.Clone(b.Reward),
		Done:      slices.Clone(b.Done),
		Advantage: slices.Clone(b.Advantage), Return: slices.Clone(b.Return),
	}
}

// Restore replaces what the buffer holds, capacity included, by a copy of s. A state
// whose parts do not fit together is an error and leaves the buffer as it was.
func (b *Buffer) Restore(s BufferState) error {
	n := len(s.Sample)
	if s.Capacity < 0 || s.Capacity > 0 && n > s.Capacity {
		return fmt.Errorf("restoring a rollout buffer: capacity %d does not fit %d steps", s.Capacity, n)
	}
	for _, part := range []struct {
		name   string
		length int
	}{
		{"action", len(s.Action)}, {"logprob", len(s.LogProb)}, {"value", len(s.Value)},
		{"reward", len(s.Reward)}, {"done", len(s.Done)},
	} {
		if part.length != n {
			return fmt.Errorf("restoring a rollout buffer: field %s has %d entries, sample has %d", part.name, part.length, n)
		}
	}
	if a, r := len(s.Advantage), len(s.Return); a != r || a != 0 && a != n {
		return fmt.Errorf("restoring a rollout buffer: fields advantage and return have %d and %d entries, want %d or none", a, r, n)
	}
	*b = Buffer{
		capacity: s.Capacity,
		Sample:   slices.Clone(s.Sample), Action: slices.Clone(s.Action),
		LogProb: slices.Clone(s.LogProb), Value: slices.Clone(s.Value), Reward: slices.Clone(s.Reward),
		Done:      slices.Clone(s.Done),
		Advantage: slices.Clone(s.Advantage), Return: slices.Clone(s.Return),
	}
	return nil
}
