package torch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMissingLibraryIsNamed(t *testing.T) {
	t.Setenv("RLTRAIN_LIB", filepath.Join(t.TempDir(), "nothing.so"))
	if _, err := findLibrary(); err == nil || !strings.Contains(err.Error(), "RLTRAIN_LIB is") {
		t.Errorf("got %v, want an error that names RLTRAIN_LIB", err)
	}
	t.Setenv("RLTRAIN_LIB", "")
	t.Setenv("RLTRAIN_CACHE", t.TempDir())
	if _, err := findLibrary(); err == nil || !strings.Contains(err.Error(), "run `make`") {
		t.Errorf("got %v, want an error that says how to get the library", err)
	}
}

// TestTruncatedLibraryIsAnError: the system's loader would map the file, and the process would crash later.
func TestTruncatedLibraryIsAnError(t *testing.T) {
	path, err := findLibrary()
	if err != nil {
		t.Fatal(err)
	}
	if err := checkWhole(path, map[string]bool{}); err != nil {
		t.Fatalf("the complete library: %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, share := range []float64{0, 0.0001, 0.1, 0.5, 0.9, 0.999} {
		cut := filepath.Join(t.TempDir(), libraryName)
		if err := os.WriteFile(cut, data[:int(share*float64(len(data)))], 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkWhole(cut, map[string]bool{}); err == nil || !strings.Contains(err.Error(), cut) {
			t.Errorf("cut to %g of its size: got %v, want an error that names the file", share, err)
		}
	}
}
