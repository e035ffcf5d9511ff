package report

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
)

// logFile is an append-only file of lines. A resumed run truncates it to the offset of its checkpoint. It is safe for
// concurrent use.
type logFile struct {
	mu     sync.Mutex
	f      *os.File
	offset int64
}

// Lines is a JSON Lines file.
type Lines struct{ file *logFile }

// CreateLines creates an empty file, or truncates the one at path.
func CreateLines(path string) (*Lines, error) {
	file, err := createLogFile(path)
	if err != nil {
		return nil, err
	}
	return &Lines{file}, nil
}

// OpenLinesAt continues the file of a stopped run at offset, as [OpenMetricsAt] does. If offset is 0 the file may be
// missing.
func OpenLinesAt(path string, offset int64) (*Lines, error) {
	if _, err := os.Stat(path); offset == 0 && errors.Is(err, fs.ErrNotExist) {
		return CreateLines(path)
	}
	file, err := openLogFileAt(path, offset)
	if err != nil {
		return nil, err
	}
	return &Lines{file}, nil
}

// Write appends one line.
func (l *Lines) Write(v any) error {
	line, err := encodeJSON(v)
	if err == nil {
		err = l.file.append(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", l.file.f.Name(), err)
	}
	return nil
}

// Offset syncs the file to disk and returns its length in bytes, for the checkpoint.
func (l *Lines) Offset() (int64, error) { return l.file.sync() }

// Close closes the file.
func (l *Lines) Close() error { return l.file.f.Close() }

func createLogFile(path string) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, err
	}
	return &logFile{f: f}, nil
}

// openLogFileAt truncates path at offset, which must be the end of a line, and appends there.
func openLogFileAt(path string, offset int64) (*logFile, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("resuming a log: %w", err)
	}
	if err := cut(f, offset); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("resuming %s: %w", path, err)
	}
	return &logFile{f: f, offset: offset}, nil
}

func cut(f *os.File, offset int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if offset < 0 || info.Size() < offset {
		return fmt.Errorf("the file was changed after the checkpoint: it has %d bytes, the checkpoint is at byte %d", info.Size(), offset)
	}
	if offset > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], offset-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			return fmt.Errorf("the file was changed after the checkpoint: byte %d is not the end of a line", offset)
		}
	}
	if err := f.Truncate(offset); err != nil {
		return err
	}
	_, err = f.Seek(offset, io.SeekStart)
	return err
}

// append writes text, which ends in a line feed, in one call, so that lines of several writers do not mix.
func (l *logFile) append(text []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.f.Write(text); err != nil {
		// A half-written line must not start the next one.
		_ = cut(l.f, l.offset)
		return err
	}
	l.offset += int64(len(text))
	return nil
}

// sync writes the file to disk and returns its length.
func (l *logFile) sync() (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.f.Sync(); err != nil {
		return 0, err
	}
	return l.offset, nil
}
