package rl

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
)

// Transition is one action of a label policy and what came of it and of the n−1 actions behind it.
type Transition struct {
	Tokens   []int32 `json:"tokens"` // what the policy read
	Action   int32   `json:"action"`
	Reward   float64 `json:"reward"`         // Σ γᵏ r_k over the n actions
	Next     []int32 `json:"next,omitempty"` // what it read behind them; nil where the episode had ended
	Discount float64 `json:"discount,omitempty"`
	Prompt   int     `json:"prompt"`
	Truth    int32   `json:"truth"`
	Version  uint64  `json:"version"` // of the policy that acted
}

// Sample is the transition as something to learn from.
func (x *Transition) Sample() *Sample {
	return &Sample{
		Tokens: x.Tokens, Actions: []int32{x.Action}, Truth: x.Truth, Prompt: x.Prompt, Version: x.Version,
		Rewards: []float64{x.Reward}, Next: x.Next, Discount: x.Discount,
	}
}

// TransitionsOf makes transitions of n steps of the samples of one episode, oldest first, each with one action
// (Sutton 1988; as Hessel et al. 2018, section 3, uses them). Where the episode ends earlier there are fewer steps and
// nothing follows. A transition with a reward that is missing, NaN, is left out.
func TransitionsOf(episode []*Sample, gamma float64, n int) []*Transition {
	var all []*Transition
	for t, x := range episode {
		reward, discount := 0.0, 1.0
		last := min(t+n, len(episode))
		for _, later := range episode[t:last] {
			reward += discount * later.Reward()
			discount *= gamma
		}
		if math.IsNaN(reward) {
			continue
		}
		y := &Transition{Tokens: x.Tokens, Action: x.Actions[0], Reward: reward, Prompt: x.Prompt, Truth: x.Truth, Version: x.Version}
		if last < len(episode) {
			y.Next, y.Discount = episode[last].Tokens, discount
		}
		all = append(all, y)
	}
	return all
}

// Transitions is a replay buffer of transitions, first in, first out. It is not safe for concurrent use.
type Transitions struct {
	capacity int
	items    []*Transition
}

// NewTransitions is an empty buffer of so many transitions at most, at least 1.
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

// Draw returns n transitions drawn with replacement, none where the buffer is empty.
func (b *Transitions) Draw(rng *rand.Rand, n int) []*Transition {
	if len(b.items) == 0 {
		return nil
	}
	drawn := make([]*Transition, n)
	for i := range drawn {
		drawn[i] = b.items[rng.IntN(len(b.items))]
	}
	return drawn
}

// State is all that the buffer holds, oldest first.
func (b *Transitions) State() any { return b.items }

// Restore replaces what the buffer holds by a State. One that does not fit is an error and leaves the buffer as it was.
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
