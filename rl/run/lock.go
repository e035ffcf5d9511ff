package run

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// lockFile is held by the process that writes a run folder.
const lockFile = ".lock"

// dirLock keeps other processes from writing a folder. The kernel drops it
// when the process dies, however it dies.
type dirLock struct {
	file *flock.Flock
	path string
}

// lockDir locks dir, or says which process holds it.
func lockDir(dir string) (*dirLock, error) {
	path := filepath.Join(dir, lockFile)
	for {
		file := flock.New(path)
		got, err := file.TryLock()
		if err != nil {
			return nil, fmt.Errorf("locking it: %w; choose a folder that can be written", err)
		}
		if !got {
			_ = file.Close()
			return nil, errors.New(busy(dir))
		}
		// The last owner removes the file before it lets go: what was locked
		// may no longer be what others will see.
		held, err := file.Stat()
		if seen, serr := os.Stat(path); err == nil && serr == nil && os.SameFile(held, seen) {
			return &dirLock{file: file, path: path}, nil
		}
		_ = file.Close()
	}
}

// moved says that the folder was renamed.
func (l *dirLock) moved(dir string) { l.path = filepath.Join(dir, lockFile) }

// release removes the file and lets go of the lock. An error leaves a file
// that nobody holds, which stops nobody.
func (l *dirLock) release() {
	_ = os.Remove(l.path)
	_ = l.file.Close()
}

func busy(dir string) string {
	text := "another process writes it"
	if record, err := ReadRun(dir); err == nil && record.PID > 0 {
		text += fmt.Sprintf(" (pid %d)", record.PID)
	}
	return text + "; wait for it or choose another folder"
}
