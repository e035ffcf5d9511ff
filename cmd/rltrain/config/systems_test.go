package config

import (
	"os"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestSystems pastes commands of other trainers.
func TestSystems(t *testing.T) {
	data := must.Get(os.ReadFile("testdata/systems.txt"))(t)
	command, tested := "", 0
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "$ "); ok {
			command = rest
		}
		if command == "" || !strings.HasPrefix(line, "=") && !strings.HasPrefix(line, "!") {
			continue
		}
		tested++
		c, err := Load(strings.Fields(command), nil)
		if want, ok := strings.CutPrefix(line, "! "); ok {
			expect.True(t, err != nil && err.Error() == want, "%s\n got %v\nwant %s", command, err, want)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", command, err)
			continue
		}
		want := pairs(strings.TrimPrefix(line, "="))
		got := changes(t, c)
		for name, value := range want {
			if got[name] == "" && c.Text(name) == strings.Trim(value, `"`) && c.set.Applies(c.set.Find(name)) {
				delete(want, name) // explicit, but the default
			}
		}
		expect.Equal(t, want, got, command)
	}
	expect.True(t, tested >= 25, "%d commands were tested, want all", tested)
}
