package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/words"
)

// UsageError is a mistake in what the user typed: one line, exit code 2.
type UsageError struct{ message string }

func (e *UsageError) Error() string { return e.message }

// LoadError is an error in the options of training, which other ranks of the run do not know of.
type LoadError struct{ err error }

func (e *LoadError) Error() string { return e.err.Error() }
func (e *LoadError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &UsageError{words.Printable(fmt.Sprintf(format, args...))}
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
