package train

import (
	"os"
	"path/filepath"

	"github.com/gofrs/flock"

	"github.com/rltrain/rltrain/internal/files"
)

// inUse is the file in a scratch folder that its process keeps locked.
const inUse = ".in-use"

// newScratch makes a temporary folder, and removes those of the same prefix whose processes were killed. done removes it.
func newScratch(prefix string) (dir string, done func(), err error) {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, folder := range old {
		removeDead(folder)
	}
	if dir, err = os.MkdirTemp("", prefix); err != nil {
		return "", nil, err
	}
	// Another process must not find the file before it is locked.
	lock := flock.New(filepath.Join(dir, inUse+".new"))
	if err = lock.Lock(); err == nil {
		err = os.Rename(lock.Path(), filepath.Join(dir, inUse))
	}
	done = func() {
		_ = os.RemoveAll(dir)
		_ = lock.Close()
	}
	if err != nil {
		done()
		return "", nil, err
	}
	return dir, done, nil
}

// removeDead removes a scratch folder that no process uses. One without the file is just being made, or belongs to others.
func removeDead(dir string) {
	path := filepath.Join(dir, inUse)
	if !files.Exist(path) {
		return
	}
	lock := flock.New(path)
	if free, err := lock.TryLock(); err == nil && free {
		_ = os.RemoveAll(dir)
	}
	_ = lock.Close()
}
