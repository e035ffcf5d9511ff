package torch

import "runtime"

// Held is a scope that stays open between calls, for example for a forward pass whose loss is computed later.
type Held struct {
	scope *Scope
}

// Hold runs f in a new scope like Do, and keeps the scope open unless there is an error. The goroutine stays locked to its
// OS thread until Close, which the same goroutine must call.
func Hold(mode Mode, f func(s *Scope) error) (*Held, error) {
	if err := Open(0); err != nil {
		return nil, err
	}
	runtime.LockOSThread() // for the same reason as in Do
	h := &Held{scope: newScope(mode)}
	if err := h.Do(f); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Do runs f in the scope; f may use tensors made there before. It returns f's error, or the *Error of a failed operator. It
// panics after Close.
func (h *Held) Do(f func(s *Scope) error) (err error) {
	if h.scope.closed.Load() {
		panic("torch: use of a Held after it was closed")
	}
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case *Error:
			err = failure
		case failed:
			err = failure.error
		default:
			panic(failure)
		}
	}()
	return f(h.scope)
}

// Close frees everything made in the scope. A second Close does nothing.
func (h *Held) Close() {
	if !h.scope.closed.Load() {
		h.scope.free()
		runtime.UnlockOSThread()
	}
}
