// Package outfile writes the files that a user asked for. Everything in this program that leaves a file or a folder
// behind writes it here.
//
// A regular file, or one that is not there yet, is written beside and renamed: whoever looks finds the old content or
// all of the new. A symbolic link stays one, and the file that it points to is written. What is neither, such as a
// device, a pipe or a terminal, is opened and written to.
//
// What a killed process left beside its file is removed by the next one that writes the same file.
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

// File is an output file that is being written.
type File struct {
	*os.File
	path string // what it becomes; "" where it is written in place
}

// Create opens path to be written. A new file gets perm, less the umask; one that is there keeps its own. Commit is
// needed to leave the file behind, Close in any case.
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

// Commit ends the writing: the file is on the disk, with its name.
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

// Close gives up what was not committed. After Commit it does nothing.
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

// Write makes data the content of path, as Create says.
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

// Folder makes path a folder with what write puts into the one it is given, all of it or nothing. A folder that is
// there and not empty is an error; one that is empty is replaced.
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
	// os.Rename does not replace a folder, not even an empty one.
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
			continue // removed as stale before it was held
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

// errFolder tells of a folder where a file should be.
var errFolder = errors.New("it is a folder")

// maxLinks is how many symbolic links may follow one another.
const maxLinks = 40

// resolve follows symbolic links, also one to a file that is not there. info is nil where there is none.
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
		// The kernel knows where the links in /proc lead; their texts are not paths.
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

// hold locks a file or folder for as long as it is open; false where another process took it for stale in between. A file system without locks holds nothing, and nothing is removed there.
func hold(file *os.File) (bool, error) {
	switch err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK): // it is being removed
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

// mark stands in the names of what is being written.
const mark = ".writing-"

// besideName is a new name for what becomes target.
func besideName(target string) string {
	dir, base := filepath.Split(target)
	return filepath.Join(dir, prefixOf(base)+rand.Text()[:12])
}

func prefixOf(base string) string { return "." + base[:min(len(base), 200)] + mark }

// removeStale removes what processes that are gone left beside target.
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
