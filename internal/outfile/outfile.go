// Package outfile writes all files and folders that rltrain produces.
//
// It writes a new or regular file to a temporary file in the same folder and renames it, so that readers see the old
// content or the new. It follows a symbolic link and replaces the target. It opens anything else, such as a device, a pipe
// or a terminal, and writes to it.
//
// If a process is killed, the next one that writes the same file removes the temporary file.
package outfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// File is an output file being written.
type File struct {
	*os.File
	path string // final path; "" if written in place
}

// Create opens path for writing. A new file gets perm, less the umask; an existing one keeps its mode. Call Commit to keep
// the file, and Close in any case.
func Create(path string, perm fs.FileMode) (*File, error) {
	target, info, err := resolve(path)
	if err != nil {
		return nil, err
	}
	if info != nil && !info.Mode().IsRegular() {
		file, err := os.OpenFile(target, os.O_WRONLY, 0)
		if err != nil {
			return nil, err
		}
		return &File{File: file}, nil
	}
	removeStale(target)
	for {
		file, err := os.OpenFile(besideName(target), os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		held, err := hold(file)
		if err == nil && info != nil {
			err = file.Chmod(info.Mode().Perm())
		}
		if err != nil {
			_ = os.Remove(file.Name())
			_ = file.Close()
			return nil, err
		}
		if held {
			return &File{file, target}, nil
		}
		_ = file.Close()
	}
}

// Commit syncs the file to disk and gives it its name.
func (f *File) Commit() error {
	if f.path == "" {
		return f.File.Close()
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), f.path); err != nil {
		return err
	}
	f.path = ""
	return f.File.Close()
}

// Close discards what was not committed. After Commit it does nothing.
func (f *File) Close() error {
	if f.path != "" {
		_ = os.Remove(f.Name())
		f.path = ""
	}
	err := f.File.Close()
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// Write replaces the content of path with data; see Create.
func Write(path string, data []byte, perm fs.FileMode) error {
	file, err := Create(path, perm)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	defer file.Close()
	_, err = file.Write(data)
	if err == nil {
		err = file.Commit()
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// Folder creates the folder path, filled by write, atomically. An existing folder must be empty.
func Folder(path string, write func(dir string) error) error {
	target, info, err := resolve(path)
	if err != nil && !errors.Is(err, errFolder) {
		return fmt.Errorf("%w; choose a new folder", err)
	}
	if info != nil {
		entries, err := os.ReadDir(target)
		if err != nil {
			return fmt.Errorf("%w; choose a new folder", err)
		}
		if len(entries) > 0 {
			return fmt.Errorf("%s is not empty; choose a new folder", path)
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	removeStale(target)
	beside, held, err := besideFolder(target)
	if err != nil {
		return err
	}
	defer held.Close()
	defer os.RemoveAll(beside)
	if err := write(beside); err != nil {
		return err
	}
	// os.Rename does not replace a folder, even an empty one.
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(beside, target)
}

func besideFolder(target string) (path string, held *os.File, err error) {
	for {
		path = besideName(target)
		if err := os.Mkdir(path, 0o755); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			return "", nil, err
		}
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed as stale before the lock was taken
		}
		if err != nil {
			return "", nil, err
		}
		if ok, err := hold(file); err != nil || ok {
			return path, file, err
		}
		_ = file.Close()
	}
}

// errFolder reports a folder in place of a file.
var errFolder = errors.New("is a folder")

// maxLinks is the maximum length of a chain of symbolic links.
const maxLinks = 40

// resolve follows symbolic links, even to a missing file. info is nil if the target does not exist.
func resolve(path string) (target string, info fs.FileInfo, err error) {
	target, err = filepath.Abs(path)
	if err != nil {
		return "", nil, err
	}
	for range maxLinks {
		info, err = os.Lstat(target)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return target, nil, nil
		case err != nil:
			return "", nil, err
		case info.IsDir():
			return target, info, fmt.Errorf("%s: %w", path, errFolder)
		case info.Mode()&fs.ModeSymlink == 0:
			return target, info, nil
		}
		next, err := os.Readlink(target)
		if err != nil {
			return "", nil, err
		}
		// Links in /proc resolve only in the kernel; their texts are not paths.
		if info, err := os.Stat(target); err == nil && !info.IsDir() && !info.Mode().IsRegular() {
			return target, info, nil
		}
		if !filepath.IsAbs(next) {
			next = filepath.Join(filepath.Dir(target), next)
		}
		target = next
	}
	return "", nil, fmt.Errorf("%s: too many symbolic links", path)
}

// hold locks a file or folder while it is open. It returns false if another process removed it as stale in between. On a
// file system without locks, nothing is locked and nothing is removed.
func hold(file *os.File) (bool, error) {
	switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK): // another process is removing it
		return false, nil
	case err != nil:
		return true, nil
	}
	own, err := file.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Lstat(file.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(own, now), err
}

// mark is part of the name of every temporary file.
const mark = ".writing-"

// besideName returns a temporary name next to target.
func besideName(target string) string {
	dir, base := filepath.Split(target)
	return filepath.Join(dir, prefixOf(base)+rand.Text()[:12])
}

func prefixOf(base string) string { return "." + base[:min(len(base), 200)] + mark }

// removeStale removes temporary files of dead processes next to target.
func removeStale(target string) {
	dir, base := filepath.Split(target)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), prefixOf(base)) {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(path)
		}
		_ = file.Close()
	}
}
