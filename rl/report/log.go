package report

import (
	"fmt"
	"strings"
)

// Log prints lines to the console and appends them to training_log.txt.
type Log struct {
	console *Console
	file    *logFile
}

// CreateLog creates an empty log, or truncates the one at path.
func CreateLog(path string, console *Console) (*Log, error) {
	file, err := createLogFile(path)
	if err != nil {
		return nil, err
	}
	return &Log{console, file}, nil
}

// OpenLogAt continues the log of a stopped run at offset, the value of [Log.Offset] at its checkpoint, as [OpenMetricsAt]
// does.
func OpenLogAt(path string, offset int64, console *Console) (*Log, error) {
	file, err := openLogFileAt(path, offset)
	if err != nil {
		return nil, err
	}
	return &Log{console, file}, nil
}

// Printf prints one or more lines and, if missing, a final line feed.
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

// Keep writes a line to the file only.
func (l *Log) Keep(text string) error {
	if err := l.file.append([]byte(text + "\n")); err != nil {
		return fmt.Errorf("writing the training log: %w", err)
	}
	return nil
}

// Offset syncs the file to disk and returns its length in bytes, for the checkpoint.
func (l *Log) Offset() (int64, error) { return l.file.sync() }

// Close closes the file, not the console.
func (l *Log) Close() error { return l.file.f.Close() }
