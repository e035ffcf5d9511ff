package torch

// #include "loader.h"
import "C"

// Error is a native call that was refused: Call names the operator or function, Text is the core's own
// line about it.
type Error struct{ Call, Text string }

func (e *Error) Error() string { return "torch: " + e.Call + ": " + e.Text }

// nativeError takes over e; nil for success.
func nativeError(call string, e *C.rlt_error) error {
	if e == nil {
		return nil
	}
	defer C.rlt_error_free(e)
	return &Error{Call: call, Text: C.GoString(C.rlt_error_text(e))}
}

// must panics with the *Error of a failed call; Do recovers it.
func must(call string, e *C.rlt_error) {
	if err := nativeError(call, e); err != nil {
		panic(err)
	}
}
