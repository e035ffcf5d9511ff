package run

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// sealed tells whether a file of a finished run is one that a later stage, or another program, computes with. What is
// for people, and what is written later, may change.
func sealed(name string) bool {
	switch filepath.Ext(name) {
	case ".md", ".html", ".yaml":
		return false
	}
	return name != runFile && !strings.HasPrefix(name, ".")
}

// sums are the SHA-256 sums of the sealed files in dir, by name.
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

// Verify tells whether the files of a finished run in dir are those that it left. An error names the first that is not.
// A run of an older version, which kept no sums, is taken as it is.
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
			return fmt.Errorf("%s %s since the run finished: put it back, or train anew without --resume", filepath.Join(dir, name), what)
		}
	}
	return nil
}
