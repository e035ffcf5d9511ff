package report

import (
	"fmt"
	"os"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
)

// Lines is a file of lines that grows with a run. It is safe for concurrent use.
type Lines struct{ *outfile.Appender }

// OpenLines continues the file of a stopped run at offset, the value of Sync at its checkpoint, and removes later lines.
// At offset 0 it begins the file. A shorter file, or one without a line feed before offset, is an error.
func OpenLines(path string, offset int64) (Lines, error) {
	if offset > 0 {
		if err := endsLine(path, offset); err != nil {
			return Lines{}, fmt.Errorf("resuming a log: %w", err)
		}
	}
	file, err := outfile.AppendAt(path, offset)
	return Lines{file}, err
}

// endsLine checks that the first offset bytes of a file are whole lines. A shorter file is left to AppendAt.
func endsLine(path string, offset int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var last [1]byte
	if n, _ := f.ReadAt(last[:], offset-1); n == 1 && last[0] != '\n' {
		return fmt.Errorf("%s was changed after the checkpoint: byte %d is not the end of a line", path, offset)
	}
	return nil
}

// Write appends a line of JSON.
func (l Lines) Write(v any) error {
	line, err := files.EncodeLine(v)
	if err == nil {
		err = l.Append(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", l.Name(), err)
	}
	return nil
}

// Print appends text and, if missing, a line feed.
func (l Lines) Print(text string) error {
	if err := l.Append([]byte(strings.TrimSuffix(text, "\n") + "\n")); err != nil {
		return fmt.Errorf("writing %s: %w", l.Name(), err)
	}
	return nil
}
