package app

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// interrupted is why the program's context ended.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string {
	return "stopped by " + map[syscall.Signal]string{
		syscall.SIGINT: "SIGINT", syscall.SIGTERM: "SIGTERM", syscall.SIGHUP: "SIGHUP", syscall.SIGUSR1: "SIGUSR1",
	}[i.signal]
}

// interruptible ends its context at the first SIGINT, SIGTERM, SIGHUP or SIGUSR1 (Slurm sends that before a job's time ends);
// the second ends the process at once. A SIGHUP that is ignored, as under nohup, stays so. Writing to a closed pipe fails
// instead of ending the process, so that training is saved then too.
func interruptible() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	hook := &interruptHook{}
	ctx = context.WithValue(ctx, hookKey{}, hook)
	stops := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1}
	if !signal.Ignored(syscall.SIGHUP) {
		stops = append(stops, syscall.SIGHUP)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, stops...)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // else a write to a closed pipe ends the process at once
	go func() {
		for first := range signals {
			if first == syscall.SIGINT && hook.handled() {
				continue
			}
			signal.Reset(stops...)
			cancel(interrupted{first.(syscall.Signal)})
			return
		}
	}()
	return ctx
}

// hookKey finds the interruptHook of the program's context.
type hookKey struct{}

// interruptHook gives SIGINT to a command that handles it itself.
type interruptHook struct {
	mu     sync.Mutex
	handle func()
}

func (h *interruptHook) handled() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.handle == nil {
		return false
	}
	h.handle()
	return true
}

// onInterrupt has handle called at each SIGINT instead of ending ctx, until the returned function is called.
func onInterrupt(ctx context.Context, handle func()) (release func()) {
	hook, ok := ctx.Value(hookKey{}).(*interruptHook)
	if !ok { // not the program's own context, as in tests
		return func() {}
	}
	set := func(f func()) {
		hook.mu.Lock()
		defer hook.mu.Unlock()
		hook.handle = f
	}
	set(handle)
	return func() { set(nil) }
}
