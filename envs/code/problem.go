// Package code is the task of writing programs: problems with tests, programs that a model writes, and rewards from
// running them in package sandbox.
//
// A program never sees its tests. What it defines runs in one process, the tests in another; arguments and results cross
// as plain values, so that a program can neither read what is expected nor bring an object that equals everything. What
// the tests say is believed only with a random word that the program does not know.
package code

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Test is one test of a problem: a piece of Python that asserts something, or an input with the output that is wanted.
type Test struct {
	Assert string // Python statements
	Script string // code behind the program, in its language, whose output is wanted
	Input  string // of the program, where there is neither
	Want   string // the output
}

// Problem is what is asked for, and how it is known to be solved.
type Problem struct {
	Name     string
	Text     string // what is asked, in words
	Prefix   string // the beginning of the program, which the answer goes on with; "" where it writes all of it
	Entry    string // the function that Check calls
	Solution string // a right answer; "" where none is known
	Imitated string // what supervised training imitates instead; "" = Solution
	Source   string // the program in the other language, of a translation
	Kind     string
	Setup    []string // Python before the tests
	Check    string   // Python that defines check(candidate); its assertions are the tests
	Program  string   // Python whose assertions are the tests
	Tests    []Test
	Hidden   []Test // more tests, which no reward sees
	Place    string // file and line
}

var definition = regexp.MustCompile(`(?m)^(?:def|class)[ \t]+([A-Za-z_]\w*)`)

// defined are the functions and classes of the known answer, which tests may call.
func (p *Problem) defined() []string {
	var names []string
	for _, found := range definition.FindAllStringSubmatch(p.complete(p.Solution), -1) {
		names = append(names, found[1])
	}
	return names
}

// complete is the whole program of an answer.
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

// check says what a problem lacks.
func (p *Problem) check() error {
	switch {
	case strings.TrimSpace(p.Text) == "" && strings.TrimSpace(p.Source) == "":
		return errors.New("nothing is asked: the text is empty")
	case p.Check == "" && p.Program == "" && len(p.Tests) == 0:
		return errors.New("there are no tests")
	case p.Check != "" && p.Entry == "":
		return errors.New("check(candidate) needs entry_point, the function that it is called with")
	}
	for _, text := range []string{p.Text, p.Prefix, p.Solution, p.Check, p.Program} {
		if strings.ContainsRune(text, 0) {
			return errors.New("a text holds a NUL byte")
		}
	}
	return nil
}

// distinct refuses two problems of one name.
func distinct(problems []Problem) error {
	seen := map[string]string{}
	for _, p := range problems {
		if before, twice := seen[p.Name]; twice {
			return fmt.Errorf("%s: problem %q is at %s already; names are given once", p.Place, p.Name, before)
		}
		seen[p.Name] = p.Place
	}
	return nil
}
