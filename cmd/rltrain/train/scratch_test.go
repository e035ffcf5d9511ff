package train

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/files"
)

// TestScratch: folders of killed processes are removed, others stay.
func TestScratch(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	used, done, err := newScratch("rltrain-rank-")
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	dead, foreign := filepath.Join(os.TempDir(), "rltrain-rank-1"), filepath.Join(os.TempDir(), "rltrain-rank-2")
	for _, path := range []string{filepath.Join(dead, inUse), filepath.Join(dead, "weights"), filepath.Join(foreign, "mine")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mine, end, err := newScratch("rltrain-rank-")
	if err != nil {
		t.Fatal(err)
	}
	there := func() map[string]bool {
		return map[string]bool{"used": files.Exist(used), "dead": files.Exist(dead), "foreign": files.Exist(foreign), "mine": files.Exist(mine)}
	}
	if diff := cmp.Diff(map[string]bool{"used": true, "dead": false, "foreign": true, "mine": true}, there()); diff != "" {
		t.Error(diff)
	}
	end()
	if there()["mine"] {
		t.Error("the folder stays")
	}
}
