package dist

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"time"

	"github.com/rltrain/rltrain/torch"
)

// Group is a rank's view of the data-parallel ranks. A nil *Group is a single process: it has everything and exchanges
// nothing.
type Group struct {
	place    Place
	timeout  time.Duration
	native   *torch.Group
	watch    *watch
	stranded bool // a call of native has not returned
	traffic  Traffic
}

// Traffic counts what a rank has exchanged.
type Traffic struct {
	Exchanges int
	Gradients int64         // bytes of gradients sent, without protocol overhead
	Bytes     int64         // bytes sent, including gradients
	Spent     time.Duration // in exchanges, including waiting
}

// Since returns the traffic since an earlier value.
func (t Traffic) Since(before Traffic) Traffic {
	return Traffic{t.Exchanges - before.Exchanges, t.Gradients - before.Gradients, t.Bytes - before.Bytes, t.Spent - before.Spent}
}

// Rank is this process's number. Rank 0 writes the run folder.
func (g *Group) Rank() int {
	if g == nil {
		return 0
	}
	return g.place.Rank
}

// Size is the number of ranks.
func (g *Group) Size() int {
	if g == nil {
		return 1
	}
	return g.place.Size
}

// Share returns this rank's part [from, to) of n items.
func (g *Group) Share(n int) (from, to int) { return g.ShareOf(g.Rank(), n) }

// ShareOf returns the part of a rank. Parts are consecutive, and their sizes differ by at most one.
func (g *Group) ShareOf(rank, n int) (from, to int) {
	size := g.Size()
	return rank * n / size, (rank + 1) * n / size
}

// Traffic returns what this rank has exchanged so far.
func (g *Group) Traffic() Traffic {
	if g == nil {
		return Traffic{}
	}
	return g.traffic
}

// Broken is closed when a rank has ended the group.
func (g *Group) Broken() <-chan struct{} { return g.watch.broken }

// Cause returns why, once Broken is closed.
func (g *Group) Cause() error { return g.watch.cause() }

// exchange runs a collective call, which waits for the other ranks.
func (g *Group) exchange(call func() error) error {
	select {
	case <-g.watch.broken:
		return g.watch.cause()
	default:
	}
	g.watch.enter()
	began := time.Now()
	defer func() {
		g.traffic.Exchanges++
		g.traffic.Spent += time.Since(began)
	}()
	done := make(chan error, 1)
	go func() { done <- call() }()
	var err error
	select {
	case err = <-done:
		g.watch.leave()
	case <-g.watch.broken:
		g.stranded = true
		return g.watch.cause()
	}
	if err == nil {
		return nil
	}
	// gloo only reports a closed connection; the watch names the rank.
	select {
	case <-g.watch.broken:
		return g.watch.cause()
	case <-time.After(g.watch.silence()):
		return fmt.Errorf("%v: exchange between ranks: %w", &g.place, err)
	}
}

// SumGrads sums gradients over all ranks, in an order that depends only on the number of ranks.
func (g *Group) SumGrads(params []*torch.Var) error {
	if g == nil {
		return nil
	}
	floats := int64(0)
	for _, v := range params {
		n, err := v.Elements()
		if err != nil {
			return err
		}
		floats += n + 1
	}
	g.traffic.Gradients += 4 * floats
	g.traffic.Bytes += 4 * floats
	return g.exchange(func() error { return g.native.SumGrads(params) })
}

// gather returns the bytes of each rank, of any length.
func (g *Group) gather(data []byte) (parts [][]byte, err error) {
	g.traffic.Bytes += int64(len(data)) + 8
	err = g.exchange(func() error {
		lengths, err := g.native.Gather(binary.LittleEndian.AppendUint64(nil, uint64(len(data))))
		if err != nil {
			return err
		}
		longest := uint64(0)
		for _, l := range lengths {
			longest = max(longest, binary.LittleEndian.Uint64(l))
		}
		if longest == 0 {
			parts = make([][]byte, len(lengths))
			return nil
		}
		padded := make([]byte, longest)
		copy(padded, data)
		if parts, err = g.native.Gather(padded); err != nil {
			return err
		}
		for i, l := range lengths {
			parts[i] = parts[i][:binary.LittleEndian.Uint64(l)]
		}
		return nil
	})
	return parts, err
}

// Gather returns the value of each rank, in order. It encodes values with gob: exported fields only, exact floats, and
// empty slices become nil.
func Gather[T any](g *Group, own T) ([]T, error) {
	if g == nil {
		return []T{own}, nil
	}
	var encoded bytes.Buffer
	if err := gob.NewEncoder(&encoded).Encode(&own); err != nil {
		return nil, fmt.Errorf("%v: encoding an exchange: %w", &g.place, err)
	}
	parts, err := g.gather(encoded.Bytes())
	if err != nil {
		return nil, err
	}
	all := make([]T, len(parts))
	for i, part := range parts {
		if err := gob.NewDecoder(bytes.NewReader(part)).Decode(&all[i]); err != nil {
			return nil, fmt.Errorf("%v: decoding an exchange with rank %d: %w", &g.place, i, err)
		}
	}
	return all, nil
}

// First returns the value of rank 0; it ignores those of other ranks.
func First[T any](g *Group, own T) (T, error) {
	if g.Rank() != 0 {
		var nothing T
		own = nothing
	}
	all, err := Gather(g, own)
	if err != nil {
		return own, err
	}
	return all[0], nil
}

// outcome is a rank's part of a result, or its error.
type outcome[T any] struct {
	Value   T
	Failure string
	Stopped bool
}

// Together gathers the parts that each rank has computed. If one rank failed or was stopped, all ranks return an error that
// names it.
func Together[T any](g *Group, own T, err error) ([]T, error) {
	if g == nil {
		return []T{own}, err
	}
	var broken *BrokenError
	if errors.As(err, &broken) {
		return nil, err
	}
	mine := outcome[T]{Value: own}
	if err != nil {
		var nothing T
		mine = outcome[T]{Value: nothing, Failure: err.Error(), Stopped: errors.Is(err, context.Canceled)}
	}
	all, gatherErr := Gather(g, mine)
	if gatherErr != nil {
		return nil, gatherErr
	}
	values := make([]T, len(all))
	for i, o := range all {
		if o.Failure != "" && !o.Stopped {
			if i == g.Rank() {
				return nil, err
			}
			return nil, fmt.Errorf("rank %d: %s", i, o.Failure)
		}
		values[i] = o.Value
	}
	for _, o := range all {
		if o.Stopped {
			return nil, context.Canceled
		}
	}
	return values, nil
}

// Agree returns the same error on all ranks if ctx has ended on any.
func (g *Group) Agree(ctx context.Context) error {
	if g == nil {
		return nil
	}
	_, err := Together(g, 0, ctx.Err())
	return err
}

type stopKey struct{}

// Whole returns a context for work that all ranks must finish once started. For work that ends with Together, which a
// single rank may abandon, see Until.
func (g *Group) Whole(ctx context.Context) context.Context {
	if g == nil {
		return ctx
	}
	return context.WithValue(context.WithoutCancel(ctx), stopKey{}, ctx)
}

// Until returns a context for work that ends with Together, so that a single rank may abandon it.
func Until(ctx context.Context) context.Context {
	if until, ok := ctx.Value(stopKey{}).(context.Context); ok {
		return until
	}
	return ctx
}

// Fail reports the failure of this rank to the others, unless they know.
func (g *Group) Fail(err error) {
	var broken *BrokenError
	if g != nil && !errors.As(err, &broken) {
		g.watch.fail(fmt.Sprintf("rank %d has failed: %v", g.place.Rank, err))
	}
}

// Close leaves the group.
func (g *Group) Close() {
	if g == nil {
		return
	}
	g.watch.close()
	if !g.stranded {
		g.native.Close()
	}
}
