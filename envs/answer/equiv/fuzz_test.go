package equiv

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func FuzzCompare(f *testing.F) {
	for _, p := range pairs(f) {
		f.Add(p.a, p.b)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		v, w := Compare(a, b), Compare(b, a)
		expect.Require(t, v.Equal == w.Equal, "%q and %q: %t by %s, the other way round %t by %s", a, b, v.Equal, v.Rule, w.Equal, w.Rule)
		expect.Require(t, v.Rule != "", "%q and %q: no rule", a, b)
		for _, s := range []string{a, b} {
			expect.Require(t, strings.TrimSpace(s) == "" || Compare(s, s).Equal, "%q differs from itself", s)
		}
	})
}

// Adding to an exact number gives another number.
func FuzzAdded(f *testing.F) {
	for _, p := range pairs(f) {
		f.Add(p.a)
	}
	f.Fuzz(func(t *testing.T, a string) {
		if other, ok := moved(a); ok {
			v := Compare(a, other)
			expect.Require(t, !v.Equal, "%q and %q are equal by %s", a, other, v.Rule)
		}
	})
}
