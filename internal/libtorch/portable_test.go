package libtorch

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestPortable compiles a library with a search path, which Portable replaces.
func TestPortable(t *testing.T) {
	dir := t.TempDir()
	source, library := filepath.Join(dir, "x.c"), filepath.Join(dir, "libx.so")
	must.Do(t, os.WriteFile(source, []byte("int x;\n"), 0o644))
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source, "-Wl,-rpath,/some/folder:/another").CombinedOutput(); err != nil {
		t.Skipf("no C compiler: %v %s", err, out)
	}
	must.Do(t, Portable(library))
	file := must.Open(elf.Open(library))(t)
	_, dirs, err := Dependencies(file, "/here")
	must.Do(t, err)
	want := []string{"/here"}
	expect.True(t, cmp.Equal(dirs, want), "the library searches %q, want %q", dirs, want)
	must.Do(t, Portable(library)) // a second time changes nothing
	expect.True(t, Portable(source) != nil, "a source has a search path")
}
