// Package torchtest helps tests of tensor code: leak checks and comparisons.
package torchtest

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/rltrain/rltrain/torch"
)

// Main opens the native library and runs the tests of a package on one thread: the models are tiny, and waking a second
// thread costs more than it saves. RLTRAIN_TEST_THREADS sets another number.
func Main(m *testing.M) {
	threads := 1
	if n, err := strconv.Atoi(os.Getenv("RLTRAIN_TEST_THREADS")); err == nil {
		threads = n
	}
	if err := torch.Open(threads); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// NoLeaks fails t if the test ends with more live tensor handles than it started with, or if a Var was left to the garbage
// collector.
func NoLeaks(t testing.TB) {
	t.Helper()
	watchLibrary()
	live, forgotten := torch.Live(), torch.Forgotten()
	t.Cleanup(func() {
		runtime.GC()
		if now := torch.Live(); now != live {
			t.Errorf("%d tensor handles live, %d at the start", now, live)
		}
		if now := torch.Forgotten(); now != forgotten {
			t.Errorf("%d Vars were never closed", now-forgotten)
		}
	})
}

// watchLibrary makes the go command's cached test results depend on the native library. TestMain opens the library before
// the go command records which files a test reads.
func watchLibrary() { os.Stat(os.Getenv("RLTRAIN_LIB")) }

// RelativeError is ‖got − want‖/‖want‖, or ‖got‖ if want is all zeros.
func RelativeError(got, want []float32) float64 {
	var diff, norm float64
	for i := range want {
		d := float64(got[i]) - float64(want[i])
		diff += d * d
		norm += float64(want[i]) * float64(want[i])
	}
	if norm == 0 {
		return math.Sqrt(diff)
	}
	return math.Sqrt(diff / norm)
}

// MaxDiff is the maximum of |got − want|.
func MaxDiff(got, want []float32) float64 {
	var most float64
	for i := range want {
		most = max(most, math.Abs(float64(got[i])-float64(want[i])))
	}
	return most
}
