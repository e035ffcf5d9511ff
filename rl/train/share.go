package train

import (
	"context"
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

// shareOf is a rank's part of a batch, of whole units where those stay together.
func (t *Trainer) shareOf(rank int, batch []*rl.Sample) []*rl.Sample {
	g := t.hooks.Group
	if !t.needs.Together {
		from, to := g.ShareOf(rank, len(batch))
		return batch[from:to]
	}
	units := rl.Units(batch)
	from, to := g.ShareOf(rank, len(units))
	return slices.Concat(units[from:to]...)
}

// own is this rank's part of a batch.
func (t *Trainer) own(batch []*rl.Sample) []*rl.Sample { return t.shareOf(t.hooks.Group.Rank(), batch) }

// holderOfFirst is the rank whose part has the first sample of a batch.
func (t *Trainer) holderOfFirst(batch []*rl.Sample) int {
	for rank := range t.hooks.Group.Size() {
		if len(t.shareOf(rank, batch)) > 0 {
			return rank
		}
	}
	return 0
}

// exchange tells the other ranks what this one has found out about its own part of each batch: the fields, [M] each.
func (t *Trainer) exchange(batches [][]*rl.Sample, fields ...func(x *rl.Sample) *[]float32) error {
	g := t.hooks.Group
	if g.Size() == 1 {
		return nil
	}
	var own []float32
	for _, batch := range batches {
		for _, x := range t.own(batch) {
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
			for _, x := range t.shareOf(rank, batch) {
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

// measured is what of an update a rank has seen.
type measured struct {
	Figures map[string]float64
	Sums    []float64
}

// sums are the figures that count adds to.
func (u *update) sums() []*float64 {
	return []*float64{&u.entropy, &u.kl, &u.low, &u.high, &u.ratios, &u.right, &u.judged}
}

// sum adds the gradients and the figures of all ranks, in their order: the same bits everywhere.
func (t *Trainer) sum(u *update) error {
	g := t.hooks.Group
	if g.Size() == 1 {
		return nil
	}
	own := measured{Figures: u.figures}
	for _, x := range u.sums() {
		own.Sums = append(own.Sums, *x)
		*x = 0
	}
	all, err := dist.Gather(g, own)
	if err != nil {
		return err
	}
	u.figures = map[string]float64{}
	for _, part := range all {
		for _, name := range slices.Sorted(maps.Keys(part.Figures)) {
			u.figures[name] += part.Figures[name]
		}
		for i, x := range u.sums() {
			*x += part.Sums[i]
		}
	}
	if u.idle {
		return nil
	}
	var params []*torch.Var
	for _, group := range t.policy.Groups() {
		params = append(params, group.Params...)
	}
	return g.SumGrads(params)
}

// countTraffic adds what a step has exchanged with the other ranks to its figures. Messages have times in them, so their
// length is the clock's.
func (t *Trainer) countTraffic(m rl.Meter) {
	g := t.hooks.Group
	if g.Size() == 1 {
		return
	}
	now := g.Traffic()
	of := now.Since(t.traffic)
	t.traffic = now
	m.Mean("dist/exchanges", float64(of.Exchanges), 1)
	m.Mean("dist/gradient_bytes", float64(of.Gradients), 1)
	m.Mean("time/sent_bytes", float64(of.Bytes), 1)
	m.Mean("time/exchange", of.Spent.Seconds(), 1)
}

// next asks the source for a step, which all ranks begin or none.
func (t *Trainer) next(ctx context.Context) (*rl.Step, error) {
	g := t.hooks.Group
	if err := g.Agree(ctx); err != nil {
		return nil, err
	}
	return t.source.Next(g.Whole(ctx), rl.At{Step: t.state.Step, Version: t.state.Version})
}

// beginning is what ranks have to have in common before the first step.
type beginning struct{ Weights, Data uint64 }

// sameBeginning refuses ranks that would train another policy, or by other data, than rank 0.
func (t *Trainer) sameBeginning() error {
	g := t.hooks.Group
	if g.Size() == 1 {
		return nil
	}
	weights, err := run.TakeSnapshot(t.policy)
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
	if data, ok := t.source.(interface{ Sum() uint64 }); ok {
		own.Data = data.Sum()
	}
	all, err := dist.Gather(g, own)
	if err != nil {
		return err
	}
	for rank, b := range all {
		if b.Data != all[0].Data {
			return fmt.Errorf("rank %d has read other training rows than rank 0: all need the same data", rank)
		}
		if b.Weights != all[0].Weights {
			return fmt.Errorf("rank %d begins with other weights than rank 0: all need the same model", rank)
		}
	}
	return nil
}
