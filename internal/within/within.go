// Package within bounds the time that a call may take.
package within

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrTimeout is the error of what did not answer in time.
var ErrTimeout = errors.New("no answer")

// Do runs do and returns what it returns, or ErrTimeout where limit passes before, or the
// error of ctx where that ends before; limit 0 is none. A panic is an error. do need not
// heed its context: what goes on after it was given up is not heard, and its goroutine ends
// when do does.
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
	// What heeds its context may have said so first.
	if o.err != nil && ctx.Err() != nil {
		return *new(T), ctx.Err()
	}
	if o.err != nil && within.Err() != nil {
		return *new(T), fmt.Errorf("%w within %v", ErrTimeout, limit)
	}
	return o.value, o.err
}
