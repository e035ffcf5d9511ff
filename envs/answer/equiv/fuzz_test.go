package equiv

import (
	"strings"
	"testing"
)

func FuzzCompare(f *testing.F) {
	for _, p := range pairs(f) {
		f.Add(p.a, p.b)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		v, w := Compare(a, b), Compare(b, a)
		if v.Equal != w.Equal {
			t.Fatalf("%q and %q: %t by %s, the other way round %t by %s", a, b, v.Equal, v.Rule, w.Equal, w.Rule)
		}
		if v.Rule == "" {
			t.Fatalf("%q and %q: no rule", a, b)
		}
		for _, s := range []string{a, b} {
			if strings.TrimSpace(s) != "" && !Compare(s, s).Equal {
				t.Fatalf("%q differs from itself", s)
			}
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
			if v := Compare(a, other); v.Equal {
				t.Fatalf("%q and %q are equal by %s", a, other, v.Rule)
			}
		}
	})
}
