package torchtest

// void torchtest_wrap(void);
// void torchtest_fail(long long n);
// long long torchtest_left(void);
import "C"

import (
	"errors"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/torch"
)

var wrap = sync.OnceFunc(func() { C.torchtest_wrap() })

// Fail has the n-th call into the native core from now on fail, on any thread, with an error that Injected knows; 0 = none.
// The core must be open. Calls that only free memory or cancel work do not count.
func Fail(n int64) {
	wrap()
	C.torchtest_fail(C.longlong(n))
}

// Left is the number of calls up to the one that fails, which Fail set; 0 or less if it has failed.
func Left() int64 { return int64(C.torchtest_left()) }

// Injected reports whether err is, or wraps, the error of a call that Fail had fail.
func Injected(err error) bool {
	var failed *torch.Error
	return errors.As(err, &failed) && strings.Contains(failed.Text, "rltrain::injected")
}
