package torch

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestMissingLibraryIsNamed(t *testing.T) {
	t.Setenv("RLTRAIN_LIB", filepath.Join(t.TempDir(), "nothing.so"))
	expect.Failure(findLibrary())(t, "RLTRAIN_LIB is")
	t.Setenv("RLTRAIN_LIB", "")
	t.Setenv("RLTRAIN_CACHE", t.TempDir())
	expect.Failure(findLibrary())(t, "run `make`")
}

// TestTruncatedLibraryIsAnError: the system's loader would map the file, and the process would crash later.
func TestTruncatedLibraryIsAnError(t *testing.T) {
	path, err := findLibrary()
	expect.Require(t, err == nil, "%v", err)
	err = checkWhole(path, map[string]bool{})
	expect.Require(t, err == nil, "the complete library: %v", err)
	data, err := os.ReadFile(path)
	expect.Require(t, err == nil, "%v", err)
	for _, share := range []float64{0, 0.0001, 0.1, 0.5, 0.9, 0.999} {
		cut := filepath.Join(t.TempDir(), libraryName)
		err = os.WriteFile(cut, data[:int(share*float64(len(data)))], 0o600)
		expect.Require(t, err == nil, "%v", err)
		expect.Error(t, checkWhole(cut, map[string]bool{}), cut)
	}
}
