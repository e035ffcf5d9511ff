package shared

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/terminaltest"
)

// TestConsent: the user agrees on a terminal, and the next line is left for the command. Without a terminal only --yes agrees.
func TestConsent(t *testing.T) {
	t.Setenv("RLTRAIN_CACHE", "/some/cache")
	for typed, want := range map[string]bool{"": true, "y": true, "Yes": true, "n": false, "what": false} {
		user, program := terminaltest.Open(t)
		must.Get(user.WriteString(typed + "\nnext\n"))(t)
		got, err := Consent{Stdin: program, Stderr: program}.agrees()
		expect.True(t, got == want && err == nil, "%q: %v, %v, want %v", typed, got, err, want)
		line, err := readLine(program)
		expect.True(t, line == "next" && err == nil, "%q: then %q, %v is read", typed, line, err)
		screen := make([]byte, 4096)
		n := must.Get(user.Read(screen))(t)
		for n < len(screen) && !strings.Contains(string(screen[:n]), "[Y/n]") {
			n += must.Get(user.Read(screen[n:]))(t)
		}
		expect.Contains(t, string(screen[:n]), "libtorch 2", "543 MB", "/some/cache")
	}
	var out bytes.Buffer
	for _, yes := range []bool{false, true} {
		got, err := (Consent{Yes: yes, Stdin: strings.NewReader("y\n"), Stderr: &out}).agrees()
		expect.True(t, got == yes && err == nil && out.Len() <= 0, "without a terminal: %v, %v, %q", got, err, &out)
	}
}
