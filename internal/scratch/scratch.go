// Package scratch makes temporary folders, and removes those that killed processes left behind.
package scratch

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gofrs/flock"
)

// inUse is the file in a scratch folder that its process keeps locked. The kernel unlocks it when the process dies.
const inUse = ".in-use"

// New makes a folder in parent ("" = the folder for temporary files) whose name begins with prefix and the process's id. It
// first removes folders of this user with the same prefix whose processes have ended. done removes the folder.
func New(parent, prefix string) (dir string, done func(), err error) {
	if parent == "" {
		parent = os.TempDir()
	}
	old, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
	for _, folder := range old {
		removeDead(folder)
	}
	if dir, err = os.MkdirTemp(parent, fmt.Sprintf("%s%d-", prefix, os.Getpid())); err != nil {
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
// In a folder that everybody may write, what looks like one may be another user's pipe or link, which is not opened.
func removeDead(dir string) {
	path := filepath.Join(dir, inUse)
	folder, err := os.Lstat(dir)
	if err != nil || !folder.IsDir() || !ours(folder) {
		return
	}
	if file, err := os.Lstat(path); err != nil || !file.Mode().IsRegular() || !ours(file) {
		return
	}
	lock := flock.New(path)
	if free, err := lock.TryLock(); err == nil && free {
		_ = os.RemoveAll(dir)
	}
	_ = lock.Close()
}

func ours(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
