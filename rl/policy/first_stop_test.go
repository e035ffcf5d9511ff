package policy_test

import (
	"testing"

	"github.com/rltrain/rltrain/rl/policy"
)

func TestFirstStop(t *testing.T) {
	for _, test := range []struct {
		text  string
		stop  []string
		at    int
		found string
	}{
		{"a\n\nb", []string{"\n", "\n\n"}, 1, "\n\n"},
		{"a\n\nb", []string{"\n\n", "\n"}, 1, "\n\n"},
		{"ab", []string{"b", "a"}, 0, "a"},
		{"ab", []string{"c"}, -1, ""},
		{"ab", nil, -1, ""},
	} {
		if at, found := policy.FirstStop(test.text, test.stop); at != test.at || found != test.found {
			t.Errorf("%q of %q: %q at %d", test.stop, test.text, found, at)
		}
	}
}
