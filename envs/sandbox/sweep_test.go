package sandbox

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
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

// TestFoldersAreRemoved: the folders of programs are in one, which Close removes; what a killed process leaves is in one that
// the next process finds.
func TestFoldersAreRemoved(t *testing.T) {
	var f folders
	a := must.Get(f.make())(t)
	b, err := f.make()
	if err != nil || a == b || filepath.Dir(a) != filepath.Dir(b) || !strings.HasPrefix(filepath.Base(f.dir), "rltrain-sandbox-") {
		t.Errorf("%s, %s in %s, %v", a, b, f.dir, err)
	}
	dir := f.dir
	f.remove()
	f.remove()
	_, err = os.Stat(dir)
	expect.True(t, os.IsNotExist(err), "%s is still there: %v", dir, err)
	c, err := f.make()
	expect.True(t, err == nil && filepath.Dir(c) != dir, "%s after Close, %v", c, err)
	f.remove()
}
