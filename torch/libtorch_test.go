package torch

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/libtorch"
	test "github.com/rltrain/rltrain/internal/must"
)

// TestLibraryWithoutASearchPath opens the libraries needed by a core without a search path, as in a bundle.
func TestLibraryWithoutASearchPath(t *testing.T) {
	path := test.Get(findLibrary())(t)
	file := test.Get(elf.Open(path))(t)
	_, dirs, err := libtorch.Dependencies(file, filepath.Dir(path))
	test.Do(t, err)
	test.Do(t, file.Close())
	data := test.Get(os.ReadFile(path))(t)
	own := dirs[0]
	if _, err := os.Stat(filepath.Join(own, "libtorch_cpu.so")); err != nil {
		t.Skip("this core is a bundle's, which has lost it already")
	}
	data = bytes.ReplaceAll(data, []byte(own), append([]byte("/nowhere"), make([]byte, len(own)-len("/nowhere"))...))
	lost := filepath.Join(t.TempDir(), libraryName)
	test.Do(t, os.WriteFile(lost, data, 0o600))
	t.Setenv("LIBTORCH", filepath.Dir(own))
	folder, err := coreLibtorch(lost)
	expect.True(t, folder.Dir == filepath.Dir(own) && folder.From == "LIBTORCH" && err == nil, "got %v, %v", folder, err)
	test.Do(t, preload(filepath.Dir(own), coreNeeds))
	folder, err = coreLibtorch(path)
	expect.True(t, folder.From == ownPath && err == nil, "the core as it was built needs no LIBTORCH: %v, %v", folder, err)
	bare := t.TempDir()
	expect.Error(t, preload(bare, coreNeeds), filepath.Join(bare, "lib", coreNeeds[0])+" is missing")
	t.Setenv("LIBTORCH", bare)
	expect.Failure(coreLibtorch(lost))(t, "LIBTORCH ("+bare+")")
}
