// Package code is the task of writing programs: problems with tests, model-generated programs, and rewards from running
// them in package sandbox.
//
// A program never sees its tests. Its definitions run in one process, the tests in another; arguments and results cross as
// plain values. A program can therefore neither read the expected results nor return an object that equals everything. A
// random token, unknown to the program, authenticates the tests' report.
package code

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
)

// Test is one test of a problem: Python assertions, or an input with the expected output.
type Test struct {
	Assert string // Python statements
	Script string // code appended to the program, in its language; its output is compared
	Input  string // standard input, if there is no Assert and no Script
	Want   string // expected output
}

// Problem is a problem with its tests.
type Problem struct {
	Name          string
	Text          string // the description
	Prefix        string // the start of the program, which the model continues; "" if the model generates all of it
	Entry         string // the function that Check calls; for other tests also several names, with commas
	Solution      string // a correct solution; "" if unknown
	Demonstration string // demonstration for SFT, if it differs from Solution
	Source        string // the program in the other language, for translation
	Kind          string
	Setup         []string // Python before the tests
	Check         string   // Python that defines check(candidate); its assertions are the tests
	Program       string   // Python program whose assertions are the tests
	Tests         []Test
	Hidden        []Test // extra tests for evaluation; rewards never use them
	Place         string // file and line
}

var definition = regexp.MustCompile(`(?m)^(?:(?:async[ \t]+)?def|class)[ \t]+([A-Za-z_]\w*)|^([A-Za-z_]\w*)[ \t]*(?::[^=\n]*)?=[^=]`)

// defined returns what the reference solution defines, which tests may use: functions and classes, and variables.
func (p *Problem) defined() (names, variables []string) {
	for _, found := range definition.FindAllStringSubmatch(p.complete(p.Solution), -1) {
		if found[1] != "" {
			names = append(names, found[1])
		} else {
			variables = append(variables, found[2])
		}
	}
	return names, variables
}

// names are what a program should define: the function to test, else what the reference solution defines.
func (p *Problem) names() []string {
	if p.Entry != "" {
		names := strings.Split(p.Entry, ",")
		for i := range names {
			names[i] = strings.TrimSpace(names[i])
		}
		return names
	}
	names, _ := p.defined()
	return names
}

// complete joins the prefix and an answer to a full program.
func (p *Problem) complete(answer string) string {
	if p.Prefix == "" {
		return answer
	}
	prefix := p.Prefix
	if !strings.HasSuffix(prefix, "\n") && !strings.HasSuffix(prefix, " ") {
		prefix += "\n"
	}
	return prefix + answer
}

// check reports what is missing in a problem.
func (p *Problem) check() error {
	switch {
	case strings.TrimSpace(p.Text) == "" && strings.TrimSpace(p.Source) == "":
		return errors.New("the problem has no text")
	case p.Check == "" && p.Program == "" && len(p.Tests) == 0:
		return errors.New("the problem has no tests")
	case p.Check != "" && p.Entry == "":
		return errors.New("check(candidate) needs entry_point, the name of the function to test")
	}
	for _, text := range []string{p.Text, p.Prefix, p.Solution, p.Check, p.Program} {
		if strings.ContainsRune(text, 0) {
			return errors.New("a text contains a NUL byte")
		}
	}
	return nil
}

// distinct returns the problems with different names and adds the others to faults.
func distinct(faults *dataset.Faults, problems []Problem) ([]Problem, error) {
	seen := map[string]string{}
	var kept []Problem
	for _, p := range problems {
		before, twice := seen[p.Name]
		if !twice {
			seen[p.Name] = p.Place
			kept = append(kept, p)
		} else if err := faults.Add(fmt.Errorf("%s: duplicate problem name %q, first used at %s; rename one", p.Place, p.Name, before)); err != nil {
			return nil, err
		}
	}
	return kept, nil
}
