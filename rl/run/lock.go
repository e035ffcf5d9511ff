package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// lockFile is locked by the process that writes a run folder.
const lockFile = ".lock"

// dirLock keeps other processes from writing a folder. The kernel releases it when the process dies.
type dirLock struct {
	file *flock.Flock
	path string
}

// lockDir locks dir. The error names the process that holds the lock.
func lockDir(dir string) (*dirLock, error) {
	path := filepath.Join(dir, lockFile)
	for {
		file := flock.New(path)
		got, err := file.TryLock()
		if err != nil {
			return nil, fmt.Errorf("locking: %w; choose a writable folder", err)
		}
		if !got {
			_ = file.Close()
			return nil, errors.New(busy(dir))
		}
		// The previous owner removes the file before it unlocks it, so the locked file may be gone.
		held, err := file.Stat()
		if seen, serr := os.Stat(path); err == nil && serr == nil && os.SameFile(held, seen) {
			return &dirLock{file: file, path: path}, nil
		}
		_ = file.Close()
	}
}

// moved updates the path after the folder was renamed.
func (l *dirLock) moved(dir string) { l.path = filepath.Join(dir, lockFile) }

// release removes the file and unlocks it. It ignores errors: an unlocked file blocks nobody.
func (l *dirLock) release() {
	_ = os.Remove(l.path)
	_ = l.file.Close()
}

func busy(dir string) string {
	text := "in use by another process"
	if record, err := ReadRun(dir); err == nil && record.PID > 0 {
		text += fmt.Sprintf(" (pid %d)", record.PID)
	}
	return text + "; wait for it, or choose another folder"
}
