package torch

import "runtime"

// Held is a scope that stays open from one call to the next, such as a forward pass whose loss is known only later.
type Held struct {
	scope *Scope
}

// Hold runs f in a new scope as Do does, and leaves the scope open unless there is an error. The goroutine stays on its
// OS thread until Close, which must come from the same one.
func Hold(mode Mode, f func(s *Scope) error) (*Held, error) {
	if err := Open(0); err != nil {
		return nil, err
	}
	runtime.LockOSThread() // for the reason that Do names
	h := &Held{scope: newScope(mode)}
	if err := h.Do(f); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Do goes on in the scope: f may use what was made there before. It returns f's error, or the *Error of the operator
// that failed inside f. After Close it panics.
func (h *Held) Do(f func(s *Scope) error) (err error) {
	if h.scope.closed.Load() {
		panic("torch: use of a Held after it was closed")
	}
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case *Error:
			err = failure
		default:
			panic(failure)
		}
	}()
	return f(h.scope)
}

// Close frees all that was made in the scope. A second Close does nothing.
func (h *Held) Close() {
	if !h.scope.closed.Load() {
		h.scope.free()
		runtime.UnlockOSThread()
	}
}
