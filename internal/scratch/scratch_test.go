package scratch

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
)

// TestNew: folders of killed processes are removed, others stay, and what only looks like one is not opened.
func TestNew(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	used, done, err := New("", "rltrain-rank-")
	must.Do(t, err)
	defer done()
	at := func(n string) string { return filepath.Join(os.TempDir(), "rltrain-rank-"+n) }
	for _, path := range []string{filepath.Join(at("dead"), inUse), filepath.Join(at("dead"), "weights"), filepath.Join(at("foreign"), "mine"), filepath.Join(at("pipe"), "mine"), filepath.Join(os.TempDir(), "elsewhere", inUse)} {
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.WriteFile(path, nil, 0o600))
	}
	must.Do(t, syscall.Mkfifo(filepath.Join(at("pipe"), inUse), 0o600))
	must.Do(t, os.Symlink(filepath.Join(os.TempDir(), "elsewhere"), at("link")))
	mine, end, err := New("", "rltrain-rank-")
	must.Do(t, err)
	got := map[string]bool{"used": files.Exist(used), "mine": files.Exist(mine), "elsewhere": files.Exist(os.TempDir(), "elsewhere", inUse)}
	for _, name := range []string{"dead", "foreign", "pipe", "link"} {
		got[name] = files.Exist(at(name))
	}
	expect.Equal(t, map[string]bool{"used": true, "mine": true, "elsewhere": true, "dead": false, "foreign": true, "pipe": true, "link": true}, got)
	end()
	expect.True(t, !files.Exist(mine), "the folder stays")
}
