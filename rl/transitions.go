package rl

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
)

// Transition is one choice of a label policy and its reward.
type Transition struct {
	Tokens  []int32 `json:"tokens"` // what the policy read
	Action  int32   `json:"action"`
	Reward  float64 `json:"reward"`
	Prompt  int     `json:"prompt"`
	Truth   int32   `json:"truth"`
	Version uint64  `json:"version"` // of the policy that acted
}

// TransitionOf is the choice of a sample with one action and a reward.
func TransitionOf(x *Sample) *Transition {
	return &Transition{Tokens: x.Tokens, Action: x.Actions[0], Reward: x.Reward(), Prompt: x.Prompt, Truth: x.Truth, Version: x.Version}
}

// Sample is the transition as a sample to learn from.
func (x *Transition) Sample() *Sample {
	return &Sample{
		Tokens: x.Tokens, Actions: []int32{x.Action}, Truth: x.Truth, Prompt: x.Prompt, Version: x.Version, Rewards: []float64{x.Reward},
	}
}

// Transitions is a replay buffer, first in, first out. It is not safe for concurrent use.
type Transitions struct {
	capacity int
	items    []*Transition
}

// NewTransitions returns an empty buffer that holds up to capacity transitions, at least 1.
func NewTransitions(capacity int) (*Transitions, error) {
	if capacity < 1 {
		return nil, fmt.Errorf("replay buffer: capacity %d is below 1", capacity)
	}
	return &Transitions{capacity: capacity}, nil
}

// Len is the number of transitions held.
func (b *Transitions) Len() int { return len(b.items) }

// Add appends transitions and drops the oldest beyond the capacity.
func (b *Transitions) Add(items ...*Transition) {
	b.items = append(b.items, items...)
	if over := len(b.items) - b.capacity; over > 0 {
		clear(b.items[:over])
		b.items = b.items[over:]
	}
}

// Sample samples n transitions with replacement; none if the buffer is empty.
func (b *Transitions) Sample(rng *rand.Rand, n int) []*Transition {
	if len(b.items) == 0 {
		return nil
	}
	drawn := make([]*Transition, n)
	for i := range drawn {
		drawn[i] = b.items[rng.IntN(len(b.items))]
	}
	return drawn
}

// State is the content of the buffer, oldest first.
func (b *Transitions) State() any { return b.items }

// Restore replaces the content by a State. If it does not fit, Restore returns an error and the buffer stays as it was.
func (b *Transitions) Restore(state json.RawMessage) error {
	var items []*Transition
	if err := json.Unmarshal(state, &items); err != nil {
		return fmt.Errorf("restoring a replay buffer: %w", err)
	}
	if len(items) > b.capacity {
		return fmt.Errorf("restoring a replay buffer: capacity %d does not fit %d transitions", b.capacity, len(items))
	}
	for i, x := range items {
		if x == nil || len(x.Tokens) == 0 || x.Action < 0 {
			return fmt.Errorf("restoring a replay buffer: transition %d has no text or no action", i)
		}
	}
	b.items = items
	return nil
}
