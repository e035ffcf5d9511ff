// Package epochs has the sources of what is imitated and preferred: data sets, shuffled anew in each epoch, of which a
// trainer takes so many samples, bins or pairs a step.
package epochs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/rltrain/rltrain/rl"
)

// Source is a source of samples to imitate: a data set, shuffled anew in each epoch, so many samples a step, the last
// of an epoch perhaps fewer. Its order is a function of the seed and the step, so it has no state but a count.
type Source struct {
	bins      [][]*rl.Sample // samples that count as one
	batchSize int
	seed      uint64
	tokens    int64
	order     []int // of epoch
	epoch     int
}

// New makes a source of the samples. With packing above 0 a batch is not so many samples, but so many bins of at
// most packing tokens.
func New(samples []*rl.Sample, batchSize, packing int, seed uint64) (*Source, error) {
	if len(samples) == 0 || batchSize < 1 {
		return nil, errors.New("supervised training: no training rows, or no row a batch")
	}
	var bins [][]*rl.Sample
	for _, bin := range packBins(samples, packing) {
		var members []*rl.Sample
		for _, i := range bin {
			members = append(members, samples[i])
		}
		bins = append(bins, members)
	}
	return newSource(bins, batchSize, seed), nil
}

func newSource(bins [][]*rl.Sample, batchSize int, seed uint64) *Source {
	return &Source{bins: bins, batchSize: batchSize, seed: seed, epoch: -1}
}

// PerEpoch is the number of steps of an epoch.
func (e *Source) PerEpoch() int { return (len(e.bins) + e.batchSize - 1) / e.batchSize }

// Next implements algo.Source.
func (e *Source) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	epoch, batch := at.Step/e.PerEpoch(), at.Step%e.PerEpoch()
	if epoch != e.epoch {
		e.epoch, e.order = epoch, rl.Stream(e.seed, rl.StreamShuffle, uint64(epoch)).Perm(len(e.bins))
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

// packBins gathers samples into bins of at most size tokens, best fit, longest first (the packing of
// Krell et al. 2021); a longer one has a bin of its own. With size 0 each sample is a bin.
func packBins(samples []*rl.Sample, size int) [][]int {
	order := make([]int, len(samples))
	for i := range order {
		order[i] = i
	}
	if size == 0 {
		bins := make([][]int, len(order))
		for i := range bins {
			bins[i] = order[i : i+1]
		}
		return bins
	}
	return bestFit(order, func(i int) int { return len(samples[i].Tokens) }, size)
}

// Sum is a sum of all samples, by which processes that train together see whether they have read the same data.
func (e *Source) Sum() uint64 {
	h := fnv.New64a()
	for _, bin := range e.bins {
		for _, x := range bin {
			fmt.Fprintln(h, x.Tokens, x.Actions, x.Truth)
		}
	}
	return h.Sum64()
}
