package dataset

import (
	"fmt"
	"slices"
	"strings"
)

// Faults collects what is wrong with the rows of a data set, so that the user sees all of it at once.
type Faults struct {
	// Skip drops bad rows, which are counted; otherwise they are an error.
	Skip  bool
	kinds []fault // the first shownFaults
	n     int
}

// fault is what is wrong with some rows.
type fault struct {
	place string // of the first row
	what  string
	rows  int
	first error
}

// shownFaults is the number of different faults that an error lists, and mostFaults the number of rows after which reading
// stops.
const (
	shownFaults = 5
	mostFaults  = 1000
)

// Add notes the fault of a row, an error that begins with the row's place and a colon. It returns an error if reading on is
// pointless.
func (f *Faults) Add(err error) error {
	f.n++
	place, what, _ := strings.Cut(err.Error(), ": ")
	at := slices.IndexFunc(f.kinds, func(k fault) bool { return k.what == what })
	switch {
	case at >= 0:
		f.kinds[at].rows++
	case len(f.kinds) < shownFaults:
		f.kinds = append(f.kinds, fault{place, what, 1, err})
	}
	if f.n >= mostFaults {
		return f.Err()
	}
	return nil
}

// Join adds the faults of another data set.
func (f *Faults) Join(other Faults) {
	f.kinds = append(f.kinds, other.kinds...)
	f.n += other.n
}

// Skipped returns the number of dropped rows and the fault of the first.
func (f *Faults) Skipped() (n int, first error) {
	if !f.Skip || f.n == 0 {
		return 0, nil
	}
	return f.n, f.kinds[0].first
}

// Err returns an error if there are bad rows that may not be skipped. It lists the first ones.
func (f *Faults) Err() error {
	switch {
	case f.Skip || f.n == 0:
		return nil
	case f.n == 1:
		return f.kinds[0].first
	}
	var list []string
	var all []error
	told := 0
	for _, k := range f.kinds {
		text := k.place
		if k.rows > 1 {
			text += fmt.Sprintf(" and %d more", k.rows-1)
		}
		list, all, told = append(list, text+": "+k.what), append(all, k.first), told+k.rows
	}
	if more := f.n - told; more > 0 {
		list = append(list, fmt.Sprintf("and %d rows with other faults", more))
	}
	return &manyFaults{fmt.Sprintf("%d rows cannot be used; fix them, or drop them with --on-bad-row skip: %s", f.n, strings.Join(list, "; ")), all}
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
