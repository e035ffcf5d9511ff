package report

import (
	"fmt"
	"strings"
)

// Log prints lines on the console and keeps them in training_log.txt.
type Log struct {
	console *Console
	file    *logFile
}

// CreateLog starts an empty file.
func CreateLog(path string, console *Console) (*Log, error) {
	file, err := createLogFile(path)
	if err != nil {
		return nil, err
	}
	return &Log{console, file}, nil
}

// OpenLogAt goes on with the file of a stopped run from offset, the value of
// [Log.Offset] at its checkpoint, as [OpenMetricsAt] does.
func OpenLogAt(path string, offset int64, console *Console) (*Log, error) {
	file, err := openLogFileAt(path, offset)
	if err != nil {
		return nil, err
	}
	return &Log{console, file}, nil
}

// Printf prints one line, or a block of lines, and ends it where the format
// does not.
func (l *Log) Printf(format string, args ...any) error {
	text := strings.TrimSuffix(fmt.Sprintf(format, args...), "\n") + "\n"
	if err := l.console.Print(text); err != nil {
		return err
	}
	if err := l.file.append([]byte(text)); err != nil {
		return fmt.Errorf("writing the training log: %w", err)
	}
	return nil
}

// Keep writes a line to the file alone.
func (l *Log) Keep(text string) error {
	if err := l.file.append([]byte(text + "\n")); err != nil {
		return fmt.Errorf("writing the training log: %w", err)
	}
	return nil
}

// Offset waits until every line is on disk and returns the length of the file
// in bytes, for the checkpoint.
func (l *Log) Offset() (int64, error) { return l.file.sync() }

// Close closes the file; the console stays.
func (l *Log) Close() error { return l.file.f.Close() }
