// Package expect compares results with what a test expects. Differences fail the test; it goes on, except after Require.
package expect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Equal compares by cmp.Diff; what says what is compared, if the line does not, after options of cmp.
func Equal(t testing.TB, want, got any, what ...any) {
	t.Helper()
	var options []cmp.Option
	for ; len(what) > 0; what = what[1:] {
		option, ok := what[0].(cmp.Option)
		if !ok {
			break
		}
		options = append(options, option)
	}
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", fmt.Sprint(what...), diff)
	}
}

// Same compares by ==; what says what is compared.
func Same[T comparable](t testing.TB, want, got T, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %s, want %s", fmt.Sprintf(what, args...), quoted(got), quoted(want))
	}
}

// Result is Same for a call that may fail: expect.Result(strconv.Atoi(text))(t, 3, "three").
func Result[T comparable](got T, err error) func(t testing.TB, want T, what string, args ...any) {
	return func(t testing.TB, want T, what string, args ...any) {
		t.Helper()
		if err != nil || got != want {
			t.Errorf("%s: got %s, %v, want %s", fmt.Sprintf(what, args...), quoted(got), err, quoted(want))
		}
	}
}

func quoted(v any) string {
	if text, ok := v.(string); ok {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%+v", v)
}

// True expects ok; the rest says what is wrong where it is not.
func True(t testing.TB, ok bool, wrong string, args ...any) {
	t.Helper()
	if !ok {
		t.Errorf(wrong, args...)
	}
}

// Contains expects text to have all of parts.
func Contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// Require is True for what the rest of the test needs: without it, the test ends.
func Require(t testing.TB, ok bool, wrong string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(wrong, args...)
	}
}

// NoError expects a nil error of what was done.
func NoError(t testing.TB, err error, what string, args ...any) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", fmt.Sprintf(what, args...), err)
	}
}

// Error expects an error that names all of want, as Names has it.
func Error(t testing.TB, err error, want ...string) {
	t.Helper()
	True(t, err != nil, "no error, want one with %q", want)
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

// Fails expects a call with two results to fail; the rest says what is wrong where it does not.
func Fails[T any](_ T, err error) func(t testing.TB, wrong string, args ...any) {
	return func(t testing.TB, wrong string, args ...any) {
		t.Helper()
		True(t, err != nil, wrong, args...)
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

// Line expects an error of one line that has all of parts.
func Line(t testing.TB, err error, parts ...string) {
	t.Helper()
	Require(t, err != nil, "no error; want one with %q", parts)
	True(t, !strings.Contains(err.Error(), "\n"), "error of several lines: %q", err)
	Contains(t, err.Error(), parts...)
}
