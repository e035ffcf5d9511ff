// Package within puts time limits on calls.
package within

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrTimeout means that a call did not return in time.
var ErrTimeout = errors.New("timeout")

// Do calls do and returns its result. It returns ErrTimeout after limit (0 = no limit), or the error of ctx when ctx ends.
// A panic becomes an error. If do ignores its context, it keeps running in its goroutine and its result is discarded.
func Do[T any](ctx context.Context, limit time.Duration, do func(ctx context.Context) (T, error)) (T, error) {
	within := ctx
	if limit > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if p := recover(); p != nil {
				o = outcome{err: fmt.Errorf("panic: %v", p)}
			}
			done <- o
		}()
		o.value, o.err = do(within)
	}()
	var o outcome
	select {
	case o = <-done:
	case <-within.Done():
		o.err = within.Err()
	}
	// do may have noticed the cancelled ctx first.
	if o.err != nil && ctx.Err() != nil {
		return *new(T), ctx.Err()
	}
	if o.err != nil && within.Err() != nil {
		return *new(T), fmt.Errorf("%w after %v", ErrTimeout, limit)
	}
	return o.value, o.err
}
