package program

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestWords(t *testing.T) {
	for command, want := range map[string][]string{
		"./judge":                      {"./judge"},
		"  python3\tjudge.py\n -v ":    {"python3", "judge.py", "-v"},
		`a 'b c' "d e"`:                {"a", "b c", "d e"},
		`a b'c'"d"e ''`:                {"a", "bcde", ""},
		`a "say \"no\" \\ \n" 'x\y'`:   {"a", `say "no" \ \n`, `x\y`},
		`my\ judge \' "it's" '"' "\$"`: {"my judge", "'", "it's", `"`, `\$`},
		"sh -c 'echo $HOME; a | b'":    {"sh", "-c", "echo $HOME; a | b"},
	} {
		got, err := Words(command)
		expect.True(t, err == nil, "%s: %v", command, err)
		expect.Equal(t, want, got, command)
	}
}

func TestLastLine(t *testing.T) {
	var l lastLine
	for _, step := range []struct{ write, want string }{
		{"", ""}, {"one", "one"}, {" more\n", "one more"}, {"\n  \n", "one more"}, {"a\nb\r\nc", "c"}, {"\n" + strings.Repeat("d", 1000), strings.Repeat("d", 512)},
	} {
		n, err := l.Write([]byte(step.write))
		expect.True(t, n == len(step.write) && err == nil, "%q: wrote %d, %v", step.write, n, err)
		expect.Same(t, step.want, l.String(), "after %q", step.write)
	}
}
