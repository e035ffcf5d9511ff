package dataset

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// All bad rows are told at once, or skipped and counted.
func TestFaults(t *testing.T) {
	for n, want := range map[int]string{
		0: "", 1: "f:1: bad 1", 2: "2 rows cannot be used; fix them, or drop them with --on-bad-row skip: f:1: bad 1; f:2: bad 2",
		8: "8 rows cannot be used; fix them, or drop them with --on-bad-row skip: f:1 and 1 more: bad 1; f:2: bad 2; f:3: bad 3; f:4: bad 4; f:5: bad 5; and 2 rows with other faults",
	} {
		for _, skip := range []bool{false, true} {
			f := OnBadRow{map[bool]string{false: "error", true: "skip"}[skip]}.Faults()
			for i := range n {
				expect.NoError(t, f.Add(fmt.Errorf("f:%d: bad %d", i+1, i%7+1)), "%d rows stop it", n)
			}
			skipped, first := f.Skipped()
			err := f.Err()
			switch {
			case skip && (err != nil || skipped != n || (first != nil) != (n > 0)):
				t.Errorf("%d rows skipped: %v, %d, %v", n, err, skipped, first)
			case !skip && (skipped != 0 || (err == nil) != (want == "") || err != nil && err.Error() != want):
				t.Errorf("%d rows: %v, want %q; %d skipped", n, err, want, skipped)
			}
		}
	}
	f := Faults{}
	var stopped error
	for i := 0; stopped == nil; i++ {
		stopped = f.Add(errors.Join(errNoRows))
		expect.Require(t, i <= mostFaults, "it never stops")
	}
	expect.True(t, errors.Is(stopped, errNoRows) && strings.Contains(stopped.Error(), "1000 rows"), "%v", stopped)
}

var errNoRows = errors.New("bad")
