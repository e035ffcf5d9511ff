package yamldepth_test

import (
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/yamldepth"
)

func TestCheck(t *testing.T) {
	repeat := strings.Repeat
	for name, test := range map[string]struct {
		text string
		want string
	}{
		"nothing":                 {"", ""},
		"settings":                {"a: 1\nb: [1, [2, {c: 3}]]\n# " + repeat("[", 500) + "\nd: \"" + repeat("[", 500) + "\"\ne: '" + repeat("{", 500) + "'\n", ""},
		"a hundred":               {"a: " + repeat("[", 100) + repeat("]", 100), ""},
		"one after another":       {"a: [" + repeat("[1], ", 500) + "]", ""},
		"entries below":           {repeat("- a\n", 500), ""},
		"a ruler":                 {"a: " + repeat("- ", 500), ""},
		"an apostrophe":           {"a: it's [1]\nb: " + repeat("[", 101), "line 2: nested more than 100 deep"},
		"brackets":                {"a: " + repeat("[", 40000), "line 1: nested more than 100 deep"},
		"braces over lines":       {"a: " + repeat("{b:\n", 40000), "line 101: nested more than 100 deep"},
		"entries in entries":      {"\n" + repeat("- ", 40000), "line 2: nested more than 100 deep"},
		"keys that are questions": {repeat("? ", 40000), "line 1: nested more than 100 deep"},
	} {
		got := ""
		if err := yamldepth.Check([]byte(test.text)); err != nil {
			got = err.Error()
		}
		expect.Same(t, test.want, got, "%s", name)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("a: [1, {b: 'c'}]\n- - d\n")
	f.Add("? \"x\\\"[\" # [")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 150 || yamldepth.Check([]byte(text)) != nil {
			return
		}
		var any interface{}
		_ = yaml.Unmarshal([]byte(text), &any)
	})
}
