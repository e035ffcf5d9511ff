package expect_test

import (
	"errors"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestNames(t *testing.T) {
	err := errors.New(`a.csv:3: column "x": got 1, want text`)
	for want, ok := range map[string]bool{
		"a.csv:3": true, `:3 … "x" … 1`: true, `"x" … :3`: false, `"y"`: false, "": true,
	} {
		expect.True(t, expect.Names(err, want) == ok, "Names(%q) is %t", want, !ok)
	}
	expect.True(t, !expect.Names(nil, ""), "nil has text")
}

// reported notes whether a check failed.
type reported struct {
	testing.TB
	failed bool
}

func (r *reported) Helper()               {}
func (r *reported) Errorf(string, ...any) { r.failed = true }

// TestChecksFail: each check reports what it is for.
func TestChecksFail(t *testing.T) {
	err := errors.New("no room")
	for name, check := range map[string]func(t testing.TB){
		"Equal":                func(t testing.TB) { expect.Equal(t, 1, 2) },
		"Same":                 func(t testing.TB) { expect.Same(t, 1, 2, "") },
		"Result":               func(t testing.TB) { expect.Result(1, err)(t, 1, "") },
		"Result of a value":    func(t testing.TB) { expect.Result(1, nil)(t, 2, "") },
		"True":                 func(t testing.TB) { expect.True(t, false, "") },
		"Contains":             func(t testing.TB) { expect.Contains(t, "ab", "a", "c") },
		"NoError":              func(t testing.TB) { expect.NoError(t, err, "") },
		"Error":                func(t testing.TB) { expect.Error(t, err, "no", "bread") },
		"Error of any words":   func(t testing.TB) { expect.Error(t, nil) },
		"Failure":              func(t testing.TB) { expect.Failure(1, nil)(t) },
		"Fails":                func(t testing.TB) { expect.Fails(1, nil)(t, "") },
		"Panic":                func(t testing.TB) { expect.Panic(t, func() {}) },
		"Line":                 func(t testing.TB) { expect.Line(t, err, "bread") },
		"Line of two":          func(t testing.TB) { expect.Line(t, errors.New("a\nb"), "a") },
		"Error of other order": func(t testing.TB) { expect.Error(t, err, "room … no") },
	} {
		r := &reported{TB: t}
		check(r)
		expect.True(t, r.failed, "%s reports nothing", name)
	}
}
