// Package must ends a test at an error that the test does not expect.
package must

import "testing"

// Get returns a function that returns v, or ends the test if err is not nil: f := must.Get(os.Open(path))(t).
func Get[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Do(t, err)
		return v
	}
}

// Do ends the test if err is not nil.
func Do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
