package rl

import "fmt"

// Batch is trajectories laid out for one pass of a model: what goes in, and one entry
// for each token that a loss reads, oldest first in each sequence. M is the number of
// those tokens.
type Batch struct {
	Sequences [][]int32 // the tokens of each trajectory, without those behind its last loss token
	// Rows are the positions, in the sequences laid end to end, whose hidden state
	// predicts each token: one before the token itself.
	Rows     []int64   // [M]
	Targets  []int64   // [M] the tokens
	Sequence []int     // [M] index of the trajectory
	Turn     []int     // [M] index of the turn in its trajectory
	LogProb  []float32 // [M] the sampler's, under the distribution drawn from
	Raw      []float32 // [M] the sampler's, at temperature 1
	Length   []int     // [S] loss tokens of each trajectory
}

// NewBatch lays out all sampled tokens of the trajectories; each has at least one.
func NewBatch(trajectories []*Trajectory) (*Batch, error) {
	b := &Batch{}
	for i, t := range trajectories {
		if err := t.Validate(); err != nil {
			return nil, fmt.Errorf("sequence %d: %w", i, err)
		}
		if !b.add(t, 0, len(t.Turns)) {
			return nil, fmt.Errorf("sequence %d has no sampled token: leave it out", i)
		}
	}
	b.place()
	return b, nil
}

// NewTurnBatch lays out one turn of each drawn experience: its sampled tokens, with
// everything before as context. Spread then takes one value an experience.
func NewTurnBatch(drawn []Experience) (*Batch, error) {
	b := &Batch{}
	for i, e := range drawn {
		if err := e.Trajectory.Validate(); err != nil {
			return nil, fmt.Errorf("sequence %d: %w", i, err)
		}
		if !b.add(e.Trajectory, e.Turn, e.Turn+1) {
			return nil, fmt.Errorf("sequence %d: turn %d has no sampled token: leave it out", i, e.Turn)
		}
	}
	b.place()
	return b, nil
}

// add appends a trajectory, with the turns from (inclusive) to (exclusive) for the loss.
// Rows are relative to the sequence until place has run. It is false where there is
// nothing to learn from.
func (b *Batch) add(t *Trajectory, from, to int) bool {
	sequence, count, end := len(b.Sequences), 0, 0
	for turn := from; turn < to; turn++ {
		for at := t.turnStart(turn); at < t.Turns[turn].End; at++ {
			if t.Source[at] != Sampled {
				continue
			}
			b.Rows = append(b.Rows, int64(at-1))
			b.Targets = append(b.Targets, int64(t.Tokens[at]))
			b.Sequence = append(b.Sequence, sequence)
			b.Turn = append(b.Turn, turn)
			b.LogProb, b.Raw = append(b.LogProb, t.LogProb[at]), append(b.Raw, t.Raw[at])
			count++
			end = at
		}
	}
	b.Sequences = append(b.Sequences, t.Tokens[:end]) // the last token predicts nothing
	b.Length = append(b.Length, count)
	return count > 0
}

func (b *Batch) place() {
	starts := make([]int64, len(b.Sequences))
	next := int64(0)
	for i, tokens := range b.Sequences {
		starts[i] = next
		next += int64(len(tokens))
	}
	for i := range b.Rows {
		b.Rows[i] += starts[b.Sequence[i]]
	}
}

// Spread gives each loss token the value of its trajectory.
func (b *Batch) Spread(values []float64) []float32 {
	out := make([]float32, len(b.Sequence))
	for i, s := range b.Sequence {
		out[i] = float32(values[s])
	}
	return out
}

// SpreadTurns gives each loss token the value of its turn, for example its return.
func (b *Batch) SpreadTurns(values [][]float64) []float32 {
	out := make([]float32, len(b.Sequence))
	for i, s := range b.Sequence {
		out[i] = float32(values[s][b.Turn[i]])
	}
	return out
}
