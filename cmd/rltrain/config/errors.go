package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// UsageError is a mistake in what the user typed: one line, exit code 2.
type UsageError struct{ message string }

func (e *UsageError) Error() string { return e.message }

func usagef(format string, args ...any) error {
	return &UsageError{printable(fmt.Sprintf(format, args...))}
}

// printable keeps a message on one line and free of control characters, whatever a name or value held.
func printable(s string) string {
	var b strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// Layer is a place that settings come from; a higher one wins.
type Layer int

// The layers, lowest first.
const (
	Recipe Layer = iota
	Theirs       // TRL's defaults
	File
	Env
	Flag
)

// Source says where a value was given.
type Source struct {
	Layer    Layer
	Name     string // the name as typed: --epochs, RLTRAIN_EPOCHS, epochs, classifier.rl_training.gamma
	Position string // file:line:column, for Layer File
}

// String is the start of a message about the value.
func (s Source) String() string {
	switch {
	case s == Source{}:
		return "recipe"
	case s.Position != "":
		return s.Position + ": " + s.Name
	}
	return s.Name
}

func (s Source) errorf(format string, args ...any) error {
	return usagef("%s: %s", s, fmt.Sprintf(format, args...))
}

// faults gathers the mistakes of a command, to tell them all at once.
type faults struct{ list []string }

func (f *faults) none() bool { return len(f.list) == 0 }

func (f *faults) add(err error) {
	if err != nil && !slices.Contains(f.list, err.Error()) {
		f.list = append(f.list, err.Error())
	}
}

func (f *faults) err() error {
	if f.none() {
		return nil
	}
	return &UsageError{strings.Join(f.list, "; ")}
}
