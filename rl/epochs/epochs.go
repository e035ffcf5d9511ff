// Package epochs has sources for supervised samples and preferences: data sets, shuffled in each epoch.
package epochs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/rltrain/rltrain/rl"
)

// Source is a source of supervised samples: a data set, shuffled in each epoch. The last step of an epoch may have fewer samples.
// The order is a function of the seed and the step, so its only state is a count.
type Source struct {
	bins      [][]*rl.Sample // packed samples
	ranks     []float64      // of bins, in whose order an epoch takes them; nil = any order
	batchSize int
	seed      uint64
	tokens    int64
	order     []int // of epoch
	epoch     int
}

// New makes a source. If packing is above 0, a batch has batchSize bins of at most packing tokens, instead of samples.
func New(samples []*rl.Sample, batchSize, packing int, seed uint64) (*Source, error) {
	if len(samples) == 0 || batchSize < 1 {
		return nil, errors.New("supervised training: no training rows, or no rows per batch")
	}
	bins := slices.Collect(slices.Chunk(samples, 1))
	if packing > 0 {
		bins = bestFit(samples, func(x *rl.Sample) int { return len(x.Tokens) }, packing)
	}
	return newSource(bins, batchSize, seed), nil
}

func newSource(bins [][]*rl.Sample, batchSize int, seed uint64) *Source {
	return &Source{bins: bins, batchSize: batchSize, seed: seed, epoch: -1}
}

// Rank has each epoch take the samples in ascending order of ranks, equal ones shuffled. Packed samples have none.
func (e *Source) Rank(ranks []float64) { e.ranks = ranks }

// PerEpoch is the number of steps of an epoch.
func (e *Source) PerEpoch() int { return (len(e.bins) + e.batchSize - 1) / e.batchSize }

// Next implements rl.StepSource.
func (e *Source) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	epoch, batch := at.Step/e.PerEpoch(), at.Step%e.PerEpoch()
	if epoch != e.epoch {
		e.epoch, e.order = epoch, rl.Stream(e.seed, rl.StreamShuffle, uint64(epoch)).Perm(len(e.bins))
		if e.ranks != nil {
			slices.SortStableFunc(e.order, func(i, j int) int { return cmp.Compare(e.ranks[i], e.ranks[j]) })
		}
	}
	step := &rl.Step{Figures: rl.Meter{}}
	for _, bin := range e.order[batch*e.batchSize : min((batch+1)*e.batchSize, len(e.order))] {
		for _, x := range e.bins[bin] {
			step.Samples = append(step.Samples, x)
			e.tokens += int64(len(x.Tokens))
		}
	}
	step.Figures.Last("epoch", float64(at.Step+1)/float64(e.PerEpoch()))
	step.Figures.Last("num_tokens", float64(e.tokens))
	return step, nil
}

// State implements rl.Stateful.
func (e *Source) State() any { return e.tokens }

// Restore implements rl.Stateful.
func (e *Source) Restore(state json.RawMessage) error { return json.Unmarshal(state, &e.tokens) }

// Sum is a checksum of all samples, to check that ranks have the same data.
func (e *Source) Sum() uint64 {
	h := fnv.New64a()
	if e.ranks != nil {
		fmt.Fprintln(h, e.ranks)
	}
	for _, bin := range e.bins {
		for _, x := range bin {
			fmt.Fprintln(h, x.Tokens, x.Actions, x.Truth)
		}
	}
	return h.Sum64()
}

// bestFit packs items into bins of a size: the longest first, each into the fullest bin with room (Krell et al.
// 2021). Items of equal length keep their order. A longer item gets its own bin.
func bestFit[T any](items []T, length func(T) int, size int) [][]T {
	items = slices.Clone(items)
	slices.SortStableFunc(items, func(a, b T) int { return length(b) - length(a) })
	var bins [][]T
	byRoom := make([][]int, size+1) // bins by free tokens
	for _, item := range items {
		n := length(item)
		room := n
		for room <= size && len(byRoom[room]) == 0 {
			room++
		}
		bin := len(bins)
		if room <= size {
			last := len(byRoom[room]) - 1
			bin = byRoom[room][last]
			byRoom[room] = byRoom[room][:last]
		} else {
			bins = append(bins, nil)
			room = size
		}
		bins[bin] = append(bins[bin], item)
		if left := room - n; left > 0 {
			byRoom[left] = append(byRoom[left], bin)
		}
	}
	return bins
}

// Preferences is a source of pairs or single responses. The samples of a unit are consecutive, with its number as their Prompt.
type Preferences struct {
	*Source
	mismatch int // maximum tokens of a prompt with another prompt's response; 0 = no such samples
}

// NewPreferences makes a source with batchSize units per step. If mismatch is above 0, KLSamples of each step are Mismatches of its
// samples, cut at mismatch tokens, for loss kto.
func NewPreferences(units [][]*rl.Sample, batchSize, mismatch int, seed uint64) *Preferences {
	return &Preferences{newSource(units, batchSize, seed), mismatch}
}

// Next implements rl.StepSource.
func (p *Preferences) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	step, err := p.Source.Next(ctx, at)
	if err != nil || p.mismatch == 0 {
		return step, err
	}
	step.KLSamples = Mismatches(step.Samples, p.mismatch)
	return step, nil
}

// Mismatches pairs the prompt of each sample with the response of the previous one, as TRL does, cut at limit tokens.
func Mismatches(samples []*rl.Sample, limit int) (out []*rl.Sample) {
	for i, x := range samples {
		if y := Mismatched(x, samples[(i+len(samples)-1)%len(samples)], limit); y != nil {
			out = append(out, y)
		}
	}
	return out
}

// Mismatched is the prompt of x with the response of y; nil if no token of the response fits.
func Mismatched(x, y *rl.Sample, limit int) *rl.Sample {
	prompt, answer := x.Tokens[:x.Rows[0]+1], y.Tokens[y.Rows[0]+1:]
	answer = answer[:min(len(answer), max(0, limit-len(prompt)))]
	if len(answer) == 0 {
		return nil
	}
	z := &rl.Sample{Tokens: slices.Concat(prompt, answer), Actions: answer, Prompt: x.Prompt}
	for i := range answer {
		z.Rows = append(z.Rows, len(prompt)-1+i)
	}
	return z
}
