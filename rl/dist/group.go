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

// Group is the ranks that train together, as one of them sees it. A nil *Group is a process that is alone: it has all
// of everything, and there is nothing to exchange.
type Group struct {
	place    Place
	timeout  time.Duration
	native   *torch.Group
	watch    *watch
	stranded bool // a call of native has not come back
	traffic  Traffic
}

// Traffic is what a rank has exchanged.
type Traffic struct {
	Exchanges int
	Gradients int64         // bytes of gradients that it gave, before any protocol
	Bytes     int64         // of everything, gradients included
	Spent     time.Duration // in exchanges, waiting for others included
}

// Since is what came behind an earlier time.
func (t Traffic) Since(before Traffic) Traffic {
	return Traffic{t.Exchanges - before.Exchanges, t.Gradients - before.Gradients, t.Bytes - before.Bytes, t.Spent - before.Spent}
}

// Rank is this process's number, from 0, which writes what the run leaves behind.
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

// Share is the part [from, to) of n things that are this rank's.
func (g *Group) Share(n int) (from, to int) { return g.ShareOf(g.Rank(), n) }

// ShareOf is that of a rank. Shares lie one behind the other, and differ by one thing at most.
func (g *Group) ShareOf(rank, n int) (from, to int) {
	size := g.Size()
	return rank * n / size, (rank + 1) * n / size
}

// Traffic is what this rank has exchanged so far.
func (g *Group) Traffic() Traffic {
	if g == nil {
		return Traffic{}
	}
	return g.traffic
}

// Broken is closed where a rank has ended the group.
func (g *Group) Broken() <-chan struct{} { return g.watch.broken }

// Cause is why, once Broken is closed.
func (g *Group) Cause() error { return g.watch.cause() }

// exchange runs a call that waits for the other ranks.
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
	// gloo says that a connection was closed; the watch hears of whom.
	select {
	case <-g.watch.broken:
		return g.watch.cause()
	case <-time.After(g.watch.silence()):
		return fmt.Errorf("%v: an exchange between the ranks: %w", &g.place, err)
	}
}

// SumGrads sums the gradients of parameters over all ranks, in an order that depends on their number alone.
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

// gather returns what each rank gave, of whatever length.
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

// Gather returns what each rank gave, in their order. Values travel as gob writes them: exported fields, floats to the
// last bit, empty slices as nil.
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

// First is what rank 0 gave; the others give anything.
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

// outcome is a rank's part of a work, or why there is none.
type outcome[T any] struct {
	Value   T
	Failure string
	Stopped bool
}

// Together gathers the parts of a work that each rank has done for itself. Where one of them has failed, or was stopped,
// all have: the error names the rank.
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

// Agree is an error where ctx has ended for any rank, the same for all.
func (g *Group) Agree(ctx context.Context) error {
	if g == nil {
		return nil
	}
	_, err := Together(g, 0, ctx.Err())
	return err
}

type stopKey struct{}

// Whole is ctx for work that all ranks have to finish once they have begun it. What ends with an exchange by Together may
// be given up before: see Until.
func (g *Group) Whole(ctx context.Context) context.Context {
	if g == nil {
		return ctx
	}
	return context.WithValue(context.WithoutCancel(ctx), stopKey{}, ctx)
}

// Until is the context of work that ends with an exchange by Together, so that one rank alone may give it up.
func Until(ctx context.Context) context.Context {
	if until, ok := ctx.Value(stopKey{}).(context.Context); ok {
		return until
	}
	return ctx
}

// Fail tells the others that this rank has failed. It does nothing where they know.
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
