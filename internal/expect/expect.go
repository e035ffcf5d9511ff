// Package expect compares results with what a test expects. Differences fail the test; it goes on.
package expect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal compares by cmp.Diff; what says what is compared, if the line does not.
func Equal(t testing.TB, want, got any, what ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", fmt.Sprint(what...), diff)
	}
}

// Error expects an error that names all of want, as Names has it.
func Error(t testing.TB, err error, want ...string) {
	t.Helper()
	for _, part := range want {
		if !Names(err, part) {
			t.Errorf("error %v, want one with %q", err, part)
		}
	}
}

// Failure is Error for a call with two results: expect.Failure(os.Open(path))(t, path).
func Failure[T any](_ T, err error) func(t testing.TB, want ...string) {
	return func(t testing.TB, want ...string) {
		t.Helper()
		Error(t, err, want...)
	}
}

// Panic expects f to panic; what says what it does.
func Panic(t testing.TB, f func(), what ...any) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", fmt.Sprint(what...))
		}
	}()
	f()
}

// Names reports whether the text of err contains the fragments of want in order. " … " separates fragments. Tests check errors
// by what they name (file, line, field, value), not by their sentences.
func Names(err error, want string) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	for _, fragment := range strings.Split(want, " … ") {
		_, after, ok := strings.Cut(text, fragment)
		if !ok {
			return false
		}
		text = after
	}
	return true
}
