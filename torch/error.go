package torch

// #include "loader.h"
import "C"

import (
	"errors"
	"strings"
)

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

// memoryTexts stand in the errors of LibtorchVersion where memory runs out: of its allocator for the CPU, of C++'s own,
// of its allocator for CUDA, of CUDA's and of cuBLAS's.
var memoryTexts = []string{"DefaultCPUAllocator: can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED"}

// OutOfMemory says whether err is that of an operator for which the device's memory did not suffice.
func OutOfMemory(err error) bool {
	var failed *Error
	if !errors.As(err, &failed) {
		return false
	}
	for _, text := range memoryTexts {
		if strings.Contains(failed.Text, text) {
			return true
		}
	}
	return false
}
