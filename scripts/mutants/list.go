package main

import (
	"errors"
	"fmt"
	"strings"
)

// fault is a change of one line, and the test that is to notice it.
type fault struct {
	file          string
	before, after string // parts of the line; before stands once in the file
	pkg, test     string
	line          int // of the list
}

// parse reads the list: for each fault the lines
//
//	@ file
//	- what stands there
//	+ what the fault makes of it
//	= package test
//
// where the file of the fault before goes on until there is another. Lines of other kinds are for people.
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
