package run

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sealed reports whether later stages or other programs compute with a file of a finished run. Reports, cards and settings
// may change.
func sealed(name string) bool {
	switch filepath.Ext(name) {
	case ".md", ".html", ".yaml":
		return false
	}
	return name != runFile && !strings.HasPrefix(name, ".")
}

// sums returns the SHA-256 sums of the sealed files in dir, by name.
func sums(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, e := range entries {
		if !e.Type().IsRegular() || !sealed(e.Name()) {
			continue
		}
		if _, found[e.Name()], err = digest(filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Verify checks that the files of a finished run in dir are unchanged. The error names the first changed file. Runs of older
// versions have no sums and always pass.
func (r Record) Verify(dir string) error {
	if len(r.Files) == 0 {
		return nil
	}
	now, err := sums(dir)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.Files)) {
		if now[name] != r.Files[name] {
			what := "was changed"
			if now[name] == "" {
				what = "was removed"
			}
			return fmt.Errorf("%s %s after the run finished; restore it, or train again without --resume", filepath.Join(dir, name), what)
		}
	}
	return nil
}
