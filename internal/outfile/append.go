package outfile

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// Appender appends to a file, such as a log, that a resumed process continues at an earlier length. It is safe for
// concurrent use.
type Appender struct {
	mu     sync.Mutex
	file   *os.File
	length int64
}

// AppendAt opens path to append after its first length bytes, and removes the rest. It creates the file if length is 0.
// A file that is shorter is an error.
func AppendAt(path string, length int64) (*Appender, error) {
	flags := os.O_RDWR
	if length == 0 {
		flags |= os.O_CREATE
	}
	file, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, err
	}
	a := &Appender{file: file, length: length}
	info, err := file.Stat()
	if err == nil && (length < 0 || info.Size() < length) {
		err = fmt.Errorf("%s was changed after the checkpoint: it has %d bytes, the checkpoint is at byte %d", path, info.Size(), length)
	}
	if err == nil {
		err = a.cut()
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return a, nil
}

// cut removes what follows the first length bytes.
func (a *Appender) cut() error {
	if err := a.file.Truncate(a.length); err != nil {
		return err
	}
	_, err := a.file.Seek(a.length, io.SeekStart)
	return err
}

// Append writes data in one call, so that records of several writers do not mix. An error leaves the file unchanged.
func (a *Appender) Append(data []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, err := a.file.Write(data); err != nil {
		_ = a.cut() // a partial record must not begin the next one
		return err
	}
	a.length += int64(len(data))
	return nil
}

// Sync writes the file to disk and returns its length.
func (a *Appender) Sync() (int64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.length, a.file.Sync()
}

// Name is the path of the file.
func (a *Appender) Name() string { return a.file.Name() }

// Close closes the file.
func (a *Appender) Close() error { return a.file.Close() }
