package words_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/words"
)

func TestQuote(t *testing.T) {
	for s, want := range map[string]string{
		"a\n\"é":                `"a\n\"é"`,
		strings.Repeat("é", 60): `"` + strings.Repeat("é", 60) + `"`,
		strings.Repeat("é", 61): `"` + strings.Repeat("é", 60) + `"…`,
	} {
		if got := words.Quote(s); got != want {
			t.Errorf("Quote(%q) = %s, want %s", s, got, want)
		}
	}
}

func TestList(t *testing.T) {
	var names []string
	for i := range 22 {
		names = append(names, strconv.Itoa(i))
	}
	if got := words.List(names[:2]); got != `"0", "1"` {
		t.Error(got)
	}
	if got := words.List(names); !strings.HasSuffix(got, `"18", "19" and 2 more`) {
		t.Error(got)
	}
}
