// Package smallfile opens and reads files of untrusted model folders.
package smallfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Open opens a regular file for reading. It never blocks: a named pipe, a device or a folder is an error.
func Open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: path, Err: errors.New("not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadAll reads a file of any size.
func ReadAll(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// Limit is the maximum size in bytes. Real files have kilobytes, with many labels a megabyte.
const Limit = 16 << 20

// Read reads a file of at most Limit bytes. Errors name the file.
func Read(path string) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, Limit+1))
	if err != nil {
		return nil, err
	}
	if len(data) > Limit {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, Limit)
	}
	return data, nil
}
