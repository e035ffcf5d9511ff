package words

import (
	"strconv"
	"strings"
	"testing"
)

func TestQuote(t *testing.T) {
	for s, want := range map[string]string{
		"a\n\"é":                `"a\n\"é"`,
		strings.Repeat("é", 60): `"` + strings.Repeat("é", 60) + `"`,
		strings.Repeat("é", 61): `"` + strings.Repeat("é", 60) + `"…`,
	} {
		if got := Quote(s); got != want {
			t.Errorf("Quote(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestList(t *testing.T) {
	var names []string
	for i := range 22 {
		names = append(names, strconv.Itoa(i))
	}
	if got := List(names[:2]); got != `"0", "1"` {
		t.Error(got)
	}
	if got := List(names); !strings.HasSuffix(got, `"18", "19" and 2 more`) {
		t.Error(got)
	}
}
