// Package torchtest helps tests of tensor code: leak checks and comparisons.
package torchtest

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"sync"
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
	os.Exit(Run(m))
}

// Run runs the tests of a package and returns the status for os.Exit. It makes the go command's cached results depend on
// the native library: the go command records the files that a test reads only after TestMain has called Run, so it misses a
// library that TestMain or a child process opens.
func Run(m *testing.M) int {
	status := m.Run()
	log := flag.Lookup("test.testlogfile").Value.String()
	if log == "" {
		return status
	}
	err := appendTo(log, "stat "+os.Getenv("RLTRAIN_LIB")+"\n")
	if err != nil {
		fmt.Fprintln(os.Stderr, "recording the native library as an input of the tests:", err)
		return 1
	}
	return status
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Do runs f in a scope, as torch.Do does, and ends the test at an error.
func Do(t testing.TB, mode torch.Mode, f func(s *torch.Scope)) {
	t.Helper()
	if err := torch.Do(mode, func(s *torch.Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

var watched sync.Map // tests that NoLeaks watches

// NoLeaks fails t if the test ends with more live tensor handles than it had at the first call, or if a Var was left to the
// garbage collector.
func NoLeaks(t testing.TB) {
	t.Helper()
	if _, before := watched.LoadOrStore(t, true); before {
		return
	}
	live, forgotten := torch.Live(), torch.Forgotten()
	t.Cleanup(func() {
		watched.Delete(t)
		runtime.GC()
		if now := torch.Live(); now != live {
			t.Errorf("%d tensor handles live, %d at the start", now, live)
		}
		if now := torch.Forgotten(); now != forgotten {
			t.Errorf("%d Vars were never closed", now-forgotten)
		}
	})
}

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

// Near expects got to differ from want by no more than limit anywhere; what says what they are.
func Near(t testing.TB, got, want []float32, limit float64, what string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d values, want %d", what, len(got), len(want))
	} else if d := MaxDiff(got, want); !(d <= limit) {
		t.Errorf("%s: values differ by up to %g, want at most %g", what, d, limit)
	}
}

// MaxDiff is the maximum of |got − want|.
func MaxDiff(got, want []float32) float64 {
	var most float64
	for i := range want {
		most = max(most, math.Abs(float64(got[i])-float64(want[i])))
	}
	return most
}
