package rl

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/rltrain/rltrain/internal/outfile"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
)

// Experience is one turn of a trajectory with the return it led to.
type Experience struct {
	Trajectory *Trajectory
	Turn       int
	Return     float64
}

// Replay is a buffer of experiences, first in, first out. What it holds was written by
// earlier policies: learning from it is off-policy, and without importance weights, as
// in the stepwise REINFORCE it serves, biased.
//
// A Replay is not safe for concurrent use.
type Replay struct {
	capacity int
	items    []Experience
}

// NewReplay returns an empty buffer that holds at most capacity experiences, at least 1.
func NewReplay(capacity int) (*Replay, error) {
	if capacity < 1 {
		return nil, fmt.Errorf("replay buffer: capacity %d is below 1", capacity)
	}
	return &Replay{capacity: capacity}, nil
}

// Len is the number of experiences held.
func (r *Replay) Len() int { return len(r.items) }

// Add appends every turn of a trajectory with its return, and drops the oldest
// experiences beyond the capacity. A return that is not finite is missing, and its turn
// is left out; skipped counts them. It panics when the lengths differ. The trajectory
// must not change afterwards.
func (r *Replay) Add(t *Trajectory, returns []float64) (skipped int) {
	if len(returns) != len(t.Turns) {
		panic(fmt.Sprintf("rl.Replay.Add: %d returns for %d turns", len(returns), len(t.Turns)))
	}
	for turn, g := range returns {
		if math.IsNaN(g) || math.IsInf(g, 0) {
			skipped++
			continue
		}
		if len(r.items) == r.capacity {
			r.items[0] = Experience{} // free its trajectory
			r.items = r.items[1:]
		}
		r.items = append(r.items, Experience{Trajectory: t, Turn: turn, Return: g})
	}
	return skipped
}

// Sample returns n experiences drawn with replacement, none where the buffer is empty.
func (r *Replay) Sample(rng *rand.Rand, n int) []Experience {
	if len(r.items) == 0 {
		return nil
	}
	drawn := make([]Experience, n)
	for i := range drawn {
		drawn[i] = r.items[rng.IntN(len(r.items))]
	}
	return drawn
}

// ReplayState is all of a Replay, for a checkpoint. Finite values come back exactly
// from JSON.
type ReplayState struct {
	Capacity int           `json:"capacity"`
	Entries  []ReplayEntry `json:"entries"`
}

// ReplayEntry is a run of experiences of one trajectory, oldest first.
type ReplayEntry struct {
	Trajectory *Trajectory `json:"trajectory"`
	Turns      []int       `json:"turns"`
	Returns    []float64   `json:"returns"`
}

// State returns everything the buffer holds. It shares the trajectories with it.
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

// Restore replaces what the buffer holds, capacity included, by s. A state whose parts
// do not fit together is an error and leaves the buffer as it was.
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

// Save writes the buffer to path, atomically: JSON lines, a header and then one entry a
// line.
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

// Load adds what [Replay.Save] wrote to path to the buffer; the capacity stays, and
// what is beyond it is dropped, oldest first. A Python pickle is refused as such:
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
	items := slices.Concat(r.items, entries)
	r.items = items[max(0, len(items)-r.capacity):]
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
