package libtorch

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const origin = "$ORIGIN"

// Portable replaces the search path of a shared library or program by the file's own folder, in place.
func Portable(path string) error {
	file, err := elf.Open(path)
	if err != nil {
		return err
	}
	_, dirs, err := Dependencies(file, origin)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	old := append([]byte(strings.Join(dirs, ":")), 0)
	if len(old) <= len(origin) || bytes.Count(data, old) != 1 {
		return fmt.Errorf("%s has no search path that %s can replace in place", path, origin)
	}
	own := make([]byte, len(old))
	copy(own, origin)
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	fresh := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.WriteFile(fresh, bytes.Replace(data, old, own, 1), info.Mode().Perm()); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}
