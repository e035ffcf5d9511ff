package main

import (
	"errors"
	"fmt"
	"strings"
)

// fault is a one-line change, and the test that must catch it.
type fault struct {
	file          string
	before, after string // parts of the line; before occurs once in the file
	pkg, test     string
	line          int // of the list
}

// parse reads the list. A fault has the lines
//
//	@ file
//	- text to replace
//	+ replacement
//	= package test
//
// and applies to the same file as the one before if it has no @ line. Other lines are comments.
func parse(text string) ([]fault, error) {
	var faults []fault
	var f fault
	for i, line := range strings.Split(text, "\n") {
		kind, rest, _ := strings.Cut(line, " ")
		var err error
		switch kind {
		case "@":
			f = fault{file: rest}
		case "-":
			f.before, f.line = rest, i+1
		case "+":
			f.after = rest
		case "=":
			var ok bool
			if f.pkg, f.test, ok = strings.Cut(rest, " "); !ok {
				err = errors.New("want a package and a test")
			} else if f.file == "" || f.before == "" || f.before == f.after {
				err = errors.New("a fault has a file, a line that stands there, and another one")
			}
			faults = append(faults, f)
			f = fault{file: f.file}
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if len(faults) == 0 {
		return nil, errors.New("no faults")
	}
	return faults, nil
}
