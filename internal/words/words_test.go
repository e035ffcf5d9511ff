package words_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/words"
)

func TestQuote(t *testing.T) {
	for s, want := range map[string]string{
		"a\n\"é":                `"a\n\"é"`,
		strings.Repeat("é", 60): `"` + strings.Repeat("é", 60) + `"`,
		strings.Repeat("é", 61): `"` + strings.Repeat("é", 60) + `"…`,
	} {
		expect.Same(t, want, words.Quote(s), "Quote(%q)", s)
	}
}

func TestList(t *testing.T) {
	var names []string
	for i := range 22 {
		names = append(names, strconv.Itoa(i))
	}
	expect.Same(t, `"0", "1"`, words.List(names[:2]), "List")
	got := words.List(names)
	expect.True(t, strings.HasSuffix(got, `"18", "19" and 2 more`), "%v", got)
}
