package train

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// ranks divides batches among data-parallel ranks, and exchanges what each computed for its share.
type ranks struct {
	*training
	traffic dist.Traffic // when the last step was reported
}

// shareOf is a rank's share of a batch, in whole units if they stay together.
func (r *ranks) shareOf(rank int, batch []*rl.Sample) []*rl.Sample {
	g := r.hooks.Group
	if !r.needs.Together {
		from, to := g.ShareOf(rank, len(batch))
		return batch[from:to]
	}
	units := rl.Units(batch)
	from, to := g.ShareOf(rank, len(units))
	return slices.Concat(units[from:to]...)
}

// own is this rank's share of a batch.
func (r *ranks) own(batch []*rl.Sample) []*rl.Sample { return r.shareOf(r.hooks.Group.Rank(), batch) }

// holdsFirst says whether this rank's share has the first sample of a batch.
func (r *ranks) holdsFirst(batch []*rl.Sample) bool {
	g := r.hooks.Group
	for rank := range g.Size() {
		if len(r.shareOf(rank, batch)) > 0 {
			return rank == g.Rank()
		}
	}
	return g.Rank() == 0
}

// exchange gives all ranks the fields, [M] each, that each rank computed for its share of the batches.
func (r *ranks) exchange(batches [][]*rl.Sample, fields ...func(x *rl.Sample) *[]float32) error {
	g := r.hooks.Group
	if g.Size() == 1 {
		return nil
	}
	var own []float32
	for _, batch := range batches {
		for _, x := range r.own(batch) {
			for _, field := range fields {
				own = append(own, *field(x)...)
			}
		}
	}
	all, err := dist.Gather(g, own)
	if err != nil {
		return err
	}
	for rank, values := range all {
		for _, batch := range batches {
			for _, x := range r.shareOf(rank, batch) {
				for _, field := range fields {
					n := x.Len()
					*field(x) = slices.Clone(values[:n])
					values = values[n:]
				}
			}
		}
	}
	return nil
}

func oldOf(x *rl.Sample) *[]float32       { return &x.Old }
func valueOf(x *rl.Sample) *[]float32     { return &x.Value }
func referenceOf(x *rl.Sample) *[]float32 { return &x.Reference }
func teacherOf(x *rl.Sample) *[]float32   { return &x.Teacher }

// shared is what an update measures, as ranks send it.
type shared struct {
	Figures map[string]float64
	Bounds  rl.Meter
	Sums    []float64
}

// sum adds up what all ranks measured in an update, in the order of the ranks, so that all get the same bits.
func (r *ranks) sum(u *update) error {
	g := r.hooks.Group
	if g.Size() == 1 {
		return nil
	}
	sums, own := u.sums(), shared{Figures: maps.Clone(u.figures), Bounds: u.bounds}
	for _, x := range sums {
		own.Sums = append(own.Sums, *x)
		*x = 0
	}
	all, err := dist.Gather(g, own)
	if err != nil {
		return err
	}
	clear(u.figures)
	for _, part := range all {
		for _, name := range slices.Sorted(maps.Keys(part.Figures)) {
			u.figures[name] += part.Figures[name]
		}
		u.bounds.Merge(part.Bounds)
		for i, x := range sums {
			*x += part.Sums[i]
		}
	}
	return nil
}

// sumGrads adds up the gradients of all ranks.
func (r *ranks) sumGrads() error {
	if r.hooks.Group.Size() == 1 {
		return nil
	}
	groups, err := r.policy.Groups()
	if err != nil {
		return err
	}
	var params []*torch.Var
	for _, group := range groups {
		params = append(params, group.Params...)
	}
	return r.hooks.Group.SumGrads(params)
}

// countTraffic adds what a step exchanged with the other ranks to its figures. The length of messages depends on the
// clock, because they contain times.
func (r *ranks) countTraffic(m rl.Meter) {
	g := r.hooks.Group
	if g.Size() == 1 {
		return
	}
	now := g.Traffic()
	of := now.Since(r.traffic)
	r.traffic = now
	m.Mean("dist/exchanges", float64(of.Exchanges), 1)
	m.Mean("dist/gradient_bytes", float64(of.Gradients), 1)
	m.Mean("time/sent_bytes", float64(of.Bytes), 1)
	m.Mean("time/exchange", of.Spent.Seconds(), 1)
}

// beginning is what all ranks must have in common before the first step.
type beginning struct{ Weights, Data uint64 }

// sameBeginning returns an error if a rank has other weights or other data than rank 0.
func (r *ranks) sameBeginning(source Source) error {
	g := r.hooks.Group
	if g.Size() == 1 {
		return nil
	}
	weights, err := run.TakeSnapshot(r.policy)
	if err != nil {
		return err
	}
	h := fnv.New64a()
	for _, values := range weights {
		if err := binary.Write(h, binary.LittleEndian, values); err != nil {
			return err
		}
	}
	own := beginning{Weights: h.Sum64()}
	if data, ok := source.(interface{ Sum() uint64 }); ok {
		own.Data = data.Sum()
	}
	all, err := dist.Gather(g, own)
	if err != nil {
		return err
	}
	for rank, b := range all {
		if b.Data != all[0].Data {
			return fmt.Errorf("rank %d has other training rows than rank 0; give all ranks the same data", rank)
		}
		if b.Weights != all[0].Weights {
			return fmt.Errorf("rank %d starts with other weights than rank 0; give all ranks the same model", rank)
		}
	}
	return nil
}
