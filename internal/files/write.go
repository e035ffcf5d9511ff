package files

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// WriteAtomic replaces path by data so that a reader, or a process killed
// at any point, finds the old content or the new. A new file gets perm.
func WriteAtomic(path string, data []byte, perm os.FileMode) error {
	// The temporary file must not land in $TMPDIR, where a killed run's
	// leftovers would never be found.
	err := renameio.WriteFile(path, data, perm, renameio.WithTempDir(filepath.Dir(path)))
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
