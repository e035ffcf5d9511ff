package torch

import (
	"context"
	"runtime"
)

// A Thread is a goroutine locked to its OS thread, for long phases of computation. libgomp keeps a worker pool for each OS
// thread that computes, so phases spread over many threads waste memory and cores.
type Thread struct {
	work chan func()
}

// NewThread starts a thread; Close ends it.
func NewThread() *Thread {
	t := &Thread{work: make(chan func())}
	go func() {
		// Never unlocked: the OS thread, and its pool of workers, end with the goroutine.
		runtime.LockOSThread()
		for f := range t.work {
			f()
		}
	}()
	return t
}

// Do runs f on the thread and waits for it. It returns ctx's error if ctx ends before f starts; f itself must watch ctx to
// end early. A panic in f is re-raised in the caller.
func (t *Thread) Do(ctx context.Context, f func(ctx context.Context) error) error {
	var err error
	var failure any
	done := make(chan struct{})
	job := func() {
		defer close(done)
		defer func() { failure = recover() }()
		err = f(ctx)
	}
	select {
	case t.work <- job:
	case <-ctx.Done():
		return ctx.Err()
	}
	<-done
	if failure != nil {
		panic(failure)
	}
	return err
}

// Close ends the thread once its work is done.
func (t *Thread) Close() { close(t.work) }
