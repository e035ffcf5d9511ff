package rl

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"

	"github.com/rltrain/rltrain/internal/outfile"
)

// fifo is a buffer of bounded capacity, first in, first out. It is not safe for concurrent use.
type fifo[T any] struct {
	capacity int
	items    []T
}

func newFIFO[T any](capacity int) (fifo[T], error) {
	if capacity < 1 {
		return fifo[T]{}, fmt.Errorf("replay buffer: capacity %d is below 1", capacity)
	}
	return fifo[T]{capacity: capacity}, nil
}

// Len is the number of items.
func (b *fifo[T]) Len() int { return len(b.items) }

// add appends items and drops the oldest beyond the capacity.
func (b *fifo[T]) add(items ...T) {
	b.items = append(b.items, items...)
	if over := len(b.items) - b.capacity; over > 0 {
		clear(b.items[:over]) // free them
		b.items = b.items[over:]
	}
}

// Sample samples n items with replacement; none if the buffer is empty.
func (b *fifo[T]) Sample(rng *rand.Rand, n int) []T {
	if len(b.items) == 0 {
		return nil
	}
	sampled := make([]T, n)
	for i := range sampled {
		sampled[i] = b.items[rng.IntN(len(b.items))]
	}
	return sampled
}

// Experience is one turn of a trajectory and its return.
type Experience struct {
	Trajectory *Trajectory
	Turn       int
	Return     float64
}

// Replay is a replay buffer of turns. Earlier policies generated them: learning from it is off-policy and, without importance
// weights, biased.
type Replay struct{ fifo[Experience] }

// NewReplay returns an empty buffer of up to capacity turns, at least 1.
func NewReplay(capacity int) (*Replay, error) {
	b, err := newFIFO[Experience](capacity)
	return &Replay{b}, err
}

// Add appends the turns of a trajectory with their returns and drops the oldest beyond the capacity. It skips and counts turns
// whose return is not finite. It panics if the lengths differ. The trajectory must not change afterwards.
func (r *Replay) Add(t *Trajectory, returns []float64) (skipped int) {
	if len(returns) != len(t.Turns) {
		panic(fmt.Sprintf("rl.Replay.Add: %d returns for %d turns", len(returns), len(t.Turns)))
	}
	for turn, g := range returns {
		if math.IsNaN(g) || math.IsInf(g, 0) {
			skipped++
			continue
		}
		r.add(Experience{Trajectory: t, Turn: turn, Return: g})
	}
	return skipped
}

// ReplayState is the state of a Replay. It survives JSON exactly.
type ReplayState struct {
	Capacity int           `json:"capacity"`
	Entries  []ReplayEntry `json:"entries"`
}

// ReplayEntry holds consecutive turns of one trajectory, oldest first.
type ReplayEntry struct {
	Trajectory *Trajectory `json:"trajectory"`
	Turns      []int       `json:"turns"`
	Returns    []float64   `json:"returns"`
}

// State returns the content of the buffer and shares its trajectories.
func (r *Replay) State() ReplayState {
	s := ReplayState{Capacity: r.capacity}
	for i, e := range r.items {
		if i == 0 || e.Trajectory != r.items[i-1].Trajectory {
			s.Entries = append(s.Entries, ReplayEntry{Trajectory: e.Trajectory})
		}
		last := &s.Entries[len(s.Entries)-1]
		last.Turns, last.Returns = append(last.Turns, e.Turn), append(last.Returns, e.Return)
	}
	return s
}

// Restore replaces the content and the capacity by s. An invalid state is an error and changes nothing.
func (r *Replay) Restore(s ReplayState) error {
	if s.Capacity < 1 {
		return fmt.Errorf("restoring a replay buffer: capacity %d is below 1", s.Capacity)
	}
	var items []Experience
	for i, entry := range s.Entries {
		var err error
		if items, err = entry.appendTo(items); err != nil {
			return fmt.Errorf("restoring a replay buffer: entry %d: %w", i, err)
		}
	}
	if len(items) > s.Capacity {
		return fmt.Errorf("restoring a replay buffer: capacity %d does not fit %d experiences", s.Capacity, len(items))
	}
	r.capacity, r.items = s.Capacity, items
	return nil
}

func (e ReplayEntry) appendTo(items []Experience) ([]Experience, error) {
	if e.Trajectory == nil {
		return nil, errors.New("no trajectory")
	}
	if err := e.Trajectory.Validate(); err != nil {
		return nil, err
	}
	if len(e.Turns) != len(e.Returns) || len(e.Turns) == 0 {
		return nil, fmt.Errorf("%d turns and %d returns", len(e.Turns), len(e.Returns))
	}
	for i, turn := range e.Turns {
		if turn < 0 || turn >= len(e.Trajectory.Turns) {
			return nil, fmt.Errorf("turn %d of a trajectory of %d", turn, len(e.Trajectory.Turns))
		}
		if g := e.Returns[i]; math.IsNaN(g) || math.IsInf(g, 0) {
			return nil, fmt.Errorf("turn %d has the return %v", turn, g)
		}
		items = append(items, Experience{Trajectory: e.Trajectory, Turn: turn, Return: e.Returns[i]})
	}
	return items, nil
}

const replayFormat = "rltrain replay buffer 2"

type replayHeader struct {
	Format   string `json:"format"`
	Capacity int    `json:"capacity"`
	Entries  int    `json:"entries"`
}

// Save writes the buffer to path, atomically: JSON lines, a header, then an entry per line.
func (r *Replay) Save(path string) error {
	state := r.State()
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	err := enc.Encode(replayHeader{Format: replayFormat, Capacity: state.Capacity, Entries: len(state.Entries)})
	for i := 0; err == nil && i < len(state.Entries); i++ {
		err = enc.Encode(state.Entries[i])
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return outfile.Write(path, buf.Bytes(), 0o644)
}

// Load adds what [Replay.Save] wrote, and drops the oldest turns beyond the capacity. It refuses a Python pickle, because
// reading one runs code.
func (r *Replay) Load(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading replay buffer: %w", err)
	}
	defer file.Close()
	entries, err := readReplay(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	r.add(entries...)
	return nil
}

func readReplay(in io.Reader) ([]Experience, error) {
	lines := bufio.NewReader(in)
	if start, _ := lines.Peek(2); len(start) == 2 && start[0] == 0x80 && start[1] <= 5 {
		return nil, errors.New("this is a Python pickle, and reading one runs code: collect the experiences again, or write them as JSON lines")
	}
	var header replayHeader
	if err := readLine(lines, &header); err != nil {
		return nil, fmt.Errorf("line 1: %w", err)
	}
	if header.Format != replayFormat {
		return nil, fmt.Errorf("line 1: format %.40q, want %q", header.Format, replayFormat)
	}
	var items []Experience
	for i := range header.Entries {
		var entry ReplayEntry
		if err := readLine(lines, &entry); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+2, err)
		}
		var err error
		if items, err = entry.appendTo(items); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+2, err)
		}
	}
	if _, err := lines.ReadByte(); err != io.EOF {
		return nil, fmt.Errorf("line %d: more than the %d entries that the header gives", header.Entries+2, header.Entries)
	}
	return items, nil
}

func readLine(lines *bufio.Reader, into any) error {
	line, err := lines.ReadBytes('\n')
	if err == io.EOF {
		return errors.New("the file ends too early")
	}
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("not a line of a replay buffer: %w", err)
	}
	return nil
}

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

// Transitions is a replay buffer of choices.
type Transitions struct{ fifo[*Transition] }

// NewTransitions returns an empty buffer of up to capacity transitions, at least 1.
func NewTransitions(capacity int) (*Transitions, error) {
	b, err := newFIFO[*Transition](capacity)
	return &Transitions{b}, err
}

// Add appends transitions and drops the oldest beyond the capacity.
func (b *Transitions) Add(items ...*Transition) { b.add(items...) }

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
