package torch

// #include "loader.h"
import "C"

import (
	"errors"
	"strings"
)

// Error is a failed native call: Call names the operator or function, Text is the core's one-line message.
type Error struct{ Call, Text string }

func (e *Error) Error() string { return "torch: " + e.Call + ": " + e.Text }

// nativeError converts e; nil means success.
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

// memoryTexts occur in out-of-memory errors of LibtorchVersion: from its CPU allocator, C++, its CUDA allocator, CUDA and
// cuBLAS.
var memoryTexts = []string{"DefaultCPUAllocator: can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED"}

// OutOfMemory reports whether err is an operator's out-of-memory error.
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
