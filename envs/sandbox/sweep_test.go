package sandbox

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSweep runs fork bombs with resource limits only.
func TestSweep(t *testing.T) {
	s := newSandbox(means{Tier: Unsafe, IDs: os.Geteuid() == 0 && mayChangeUser()})
	t.Cleanup(func() { _ = s.Close() })
	python, err := s.Find(t.Context(), Python, "")
	if err != nil {
		t.Skip(err)
	}
	python.env = append(slices.Clone(python.env), marker())
	before := stateNow(t)
	for _, a := range attacks {
		if !slices.Contains([]string{"fork bomb", "setsid daemon", "double fork daemon", "daemon holding pipes", "forking runaway", "memory of orphans"}, a.name) {
			continue
		}
		limits := quick()
		limits.Wall = 700 * time.Millisecond
		want := Status("")
		if a.name == "memory of orphans" {
			limits.Wall, want = 9*time.Second, Memory
		}
		o, err := s.RunText(t.Context(), limits, python, common+a.program, nil)
		if err != nil || o.Status == SandboxError || strings.Contains(o.Stdout, "ESCAPED") || want != "" && o.Status != want {
			t.Errorf("%s: %+v, %v", a.name, o, err)
		}
		settles(t, before)
	}
}
