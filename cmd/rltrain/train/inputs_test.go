package train

import (
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestMentioned(t *testing.T) {
	for _, test := range []struct {
		text    string
		want    []string
		without string
	}{
		{"rows.jsonl", []string{"rows.jsonl"}, ""},
		{"my rows.jsonl", []string{"my rows.jsonl"}, ""},
		{"a.jsonl,b.jsonl", []string{"a.jsonl", "b.jsonl"}, ""},
		{"cmd:python3 'my judge.py' --words=w.txt", []string{"my judge.py", "w.txt"}, ""},
		{"cmd:sh -c 'cd x; python3 judge.py < in.txt'", []string{"judge.py", "in.txt"}, ""},
		{"quality:cmd:/home/me/judge", []string{"/home/me/judge"}, ""},
		{"model:judges/a", []string{"judges/a"}, ""},
		{"cmd:/usr/bin/python3 judge.py", []string{"judge.py"}, "/usr/bin/python3"},
		{"cmd:make -C .", nil, "."},
		{"", nil, ""},
	} {
		got := mentioned(test.text)
		for _, name := range test.want {
			expect.True(t, slices.Contains(got, name), "%q: %q lacks %q", test.text, got, name)
		}
		expect.True(t, !slices.Contains(got, test.without), "%q: %q has %q", test.text, got, test.without)
	}
}
