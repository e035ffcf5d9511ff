package dataset

import (
	"fmt"
	"strings"
)

// Faults collects what is wrong with the rows of a data set, so that the user sees all of it at once.
type Faults struct {
	// Skip drops bad rows, which are counted; otherwise they are an error.
	Skip  bool
	first []error // the first shownFaults
	n     int
}

// shownFaults is the number of bad rows that an error lists, and mostFaults the number after which reading stops.
const (
	shownFaults = 5
	mostFaults  = 1000
)

// Add notes the fault of a row, an error that names it. It returns an error if reading on is pointless.
func (f *Faults) Add(err error) error {
	if f.n++; len(f.first) < shownFaults {
		f.first = append(f.first, err)
	}
	if f.n >= mostFaults {
		return f.Err()
	}
	return nil
}

// Skipped returns the number of dropped rows and the fault of the first.
func (f *Faults) Skipped() (n int, first error) {
	if !f.Skip || f.n == 0 {
		return 0, nil
	}
	return f.n, f.first[0]
}

// Err returns an error if there are bad rows that may not be skipped. It lists the first ones.
func (f *Faults) Err() error {
	switch {
	case f.Skip || f.n == 0:
		return nil
	case f.n == 1:
		return f.first[0]
	}
	var list strings.Builder
	for _, err := range f.first {
		list.WriteString("; " + err.Error())
	}
	if more := f.n - len(f.first); more > 0 {
		fmt.Fprintf(&list, "; and %d more", more)
	}
	return &manyFaults{fmt.Sprintf("%d rows cannot be used; fix them, or drop them with --on-bad-row skip: %s", f.n, strings.TrimPrefix(list.String(), "; ")), f.first}
}

// manyFaults is the error of several rows.
type manyFaults struct {
	text string
	all  []error
}

func (m *manyFaults) Error() string   { return m.text }
func (m *manyFaults) Unwrap() []error { return m.all }

// OnBadRow is the option of tasks that read rows.
type OnBadRow struct {
	OnBadRow string `option:"on_bad_row" default:"error" allowed:"error,skip" needs:"dataset" help:"rows that cannot be used: error = stop and list them, skip = drop them and print how many"`
}

// Faults collects the rows of a data set.
func (o OnBadRow) Faults() *Faults { return &Faults{Skip: o.OnBadRow == "skip"} }

// RowError is an error of one row, after which others can be read.
type RowError struct{ Err error }

func (e *RowError) Error() string { return e.Err.Error() }
func (e *RowError) Unwrap() error { return e.Err }
