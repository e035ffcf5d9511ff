package code

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/rltrain/rltrain/envs/sandbox"
)

// Class is the outcome of a program's tests.
type Class string

// Outcomes of programs.
const (
	Pass    Class = "pass"
	Wrong   Class = "wrong"   // it ran, and a test failed
	Syntax  Class = "syntax"  // it does not parse
	Runtime Class = "runtime" // it failed at run time, or exited before its tests
	Timeout Class = "timeout"
	Memory  Class = "memory"
	Output  Class = "output" // too much output
	Empty   Class = "empty"  // no program
	// Sandbox means that the sandbox failed: the sample is missing data and is not counted.
	Sandbox Class = "sandbox-error"
)

// Classes are all outcomes, in table order.
var Classes = []Class{Pass, Wrong, Syntax, Runtime, Timeout, Memory, Output, Empty, Sandbox}

// Verdict is the result of a program's tests.
type Verdict struct {
	Class   Class   `json:"class"`
	Tests   []bool  `json:"tests"` // true for passed; shorter than Total if the run stopped early
	Total   int     `json:"total"`
	Message string  `json:"message,omitempty"` // the first failure
	CPU     float64 `json:"cpu_s"`             // processor time of the program, without its tests
	Fault   bool    `json:"-"`                 // the tests themselves are at fault, whatever the program
}

// Passed returns the number of passed tests.
func (v Verdict) Passed() int {
	n := 0
	for _, ok := range v.Tests {
		if ok {
			n++
		}
	}
	return n
}

// Grader runs programs against tests. It is safe for concurrent use.
type Grader struct {
	sandbox  *sandbox.Sandbox
	language *sandbox.Language
	limits   sandbox.Limits
	compiled map[string][]byte // Python only: compiled test harness, by file name

	lock  sync.Mutex
	known map[[32]byte]Verdict
}

// maxKnown is the size of the verdict cache: samples of a prompt often contain equal programs.
const maxKnown = 1 << 16

// maxProgram is the maximum size of a program in bytes. Longer ones would exceed the sandbox's limits and look like a
// sandbox failure.
const maxProgram = 16 << 20

// NewGrader finds the language's interpreter. timeout limits processor time: for all tests together if they run in one
// process, else for each test.
func NewGrader(ctx context.Context, language, interpreter string, timeout time.Duration, unsafe bool) (*Grader, error) {
	s, err := sandbox.Open(unsafe)
	if err != nil {
		return nil, err
	}
	l, err := s.Find(ctx, language, interpreter)
	if err != nil {
		return nil, err
	}
	limits := sandbox.Usual()
	// Processor time does not depend on other load; the wall clock stops programs that wait.
	limits.CPU, limits.Wall = timeout, 6*timeout+10*time.Second
	j := &Grader{sandbox: s, language: l, limits: limits, known: map[[32]byte]Verdict{}}
	if language == sandbox.Python {
		j.compiled, err = j.compile(ctx)
	}
	return j, err
}

// compiler prints two programs compiled by Python (marshal), in hexadecimal.
const compiler = `import sys, marshal
from importlib._bootstrap_external import MAGIC_NUMBER
for name, text in zip(('solution.py', 'tests.py'), sys.stdin.read().split('\0')):
    print((MAGIC_NUMBER + bytes(12) + marshal.dumps(compile(text, name, 'exec'))).hex())
`

// compile compiles the harness once: compiling takes half of an interpreter's start-up time.
func (j *Grader) compile(ctx context.Context) (map[string][]byte, error) {
	limits := sandbox.Usual()
	limits.Output = 1 << 20
	out, err := j.sandbox.RunText(ctx, limits, j.language, compiler, []byte(codec+solutionSide+"\x00"+codec+runnerSide+testsSide))
	if err != nil {
		return nil, err
	}
	lines := strings.Fields(out.Stdout)
	if out.Status != sandbox.OK || len(lines) != 2 {
		return nil, fmt.Errorf("compiling the test harness: %s %s %s", out.Status, out.Error, lastLines(out.Stderr, 5))
	}
	compiled := map[string][]byte{}
	for i, name := range []string{solutionFile, testsFile} {
		if compiled[name], err = hex.DecodeString(lines[i]); err != nil {
			return nil, fmt.Errorf("compiling the test harness: %w", err)
		}
	}
	return compiled, nil
}

// Close stops the sandbox.
func (j *Grader) Close() error { return j.sandbox.Close() }

// Isolation describes how programs are isolated.
func (j *Grader) Isolation() string { return string(j.sandbox.Tier()) + ": " + j.sandbox.How() }

// Run runs a program against tests, a subset of p.Tests and p.Hidden if the problem has them. It returns only errors of
// ctx.
func (j *Grader) Run(ctx context.Context, p *Problem, program string, tests []Test) (Verdict, error) {
	if strings.TrimSpace(program) == "" {
		return Verdict{Class: Empty, Total: max(1, len(tests)), Message: "there is no program"}, nil
	}
	if strings.ContainsRune(program, 0) || !utf8.ValidString(program) {
		return Verdict{Class: Syntax, Total: max(1, len(tests)), Message: "the program holds a NUL byte, or is no UTF-8"}, nil
	}
	if len(program) > maxProgram {
		return Verdict{Class: Syntax, Total: max(1, len(tests)), Message: fmt.Sprintf("the program has more than %d bytes", maxProgram)}, nil
	}
	text, err := json.Marshal([]any{program, p.Solution, p.Setup, p.Entry, p.Check, p.Program, tests})
	if err != nil {
		return Verdict{}, err
	}
	key := sha256.Sum256(text)
	j.lock.Lock()
	v, known := j.known[key]
	j.lock.Unlock()
	if known {
		return v, nil
	}
	if p.Check != "" || p.Program != "" || len(tests) > 0 && tests[0].Assert != "" {
		v, err = j.asserted(ctx, p, program, tests)
	} else {
		v, err = j.compared(ctx, p, program, tests)
	}
	if err != nil || v.Class == Sandbox {
		return v, err
	}
	j.lock.Lock()
	defer j.lock.Unlock()
	if len(j.known) >= maxKnown {
		clear(j.known)
	}
	j.known[key] = v
	return v, nil
}

// compared runs the program once per test and compares its output.
func (j *Grader) compared(ctx context.Context, p *Problem, program string, tests []Test) (Verdict, error) {
	v := Verdict{Class: Pass, Total: len(tests)}
	for _, t := range tests {
		if t.Script != "" && j.compiled != nil {
			one, err := j.scripted(ctx, p, program, t)
			if err != nil || one.Class == Sandbox {
				return one, err
			}
			v.CPU += one.CPU
			v.Tests = append(v.Tests, one.Class == Pass)
			if one.Class != Pass && v.Class == Pass {
				v.Class, v.Message = one.Class, one.Message
			}
			continue
		}
		text, marker := program, ""
		if t.Script != "" {
			nonce, err := newNonce()
			if err != nil {
				return v, err
			}
			text, marker = j.language.Behind(program, t.Script, nonce), nonce
		}
		o, err := j.sandbox.RunText(ctx, j.limits, j.language, text, []byte(t.Input))
		if err != nil {
			return v, err
		}
		v.CPU += o.CPU
		class, message := j.compare(o, t.Want, marker)
		if class == Sandbox {
			return Verdict{Class: Sandbox, Message: message}, nil
		}
		v.Tests = append(v.Tests, class == Pass)
		if class != Pass && v.Class == Pass {
			v.Class, v.Message = class, message
		}
	}
	return v, nil
}

// compare grades one run.
func (j *Grader) compare(o sandbox.Outcome, want, marker string) (Class, string) {
	message := lastLines(o.Stderr, 5)
	switch o.Status {
	case sandbox.SandboxError:
		return Sandbox, o.Error
	case sandbox.Timeout:
		return Timeout, classMessages[Timeout]
	case sandbox.Memory:
		return Memory, classMessages[Memory]
	case sandbox.Output:
		return Output, classMessages[Output]
	case sandbox.OK:
	default:
		if j.language.Unreadable(o.Stderr) {
			return Syntax, message
		}
		return Runtime, message
	}
	got := o.Stdout
	if marker != "" {
		var found bool
		if got, found = j.language.AfterMark(got, marker); !found {
			return Runtime, "the program ended before its test"
		}
	}
	if j.language.Complains(o.Stderr) {
		return Runtime, message
	}
	return wrote(got, want)
}

func wrote(got, want string) (Class, string) {
	if same(got, want) {
		return Pass, ""
	}
	return Wrong, fmt.Sprintf("it wrote %.200q, not %.200q", strings.TrimSpace(got), strings.TrimSpace(want))
}

// same compares outputs, ignoring trailing spaces and blank ends; no output equals an empty string of q.
func same(got, want string) bool {
	clean := func(text string) string {
		lines := strings.Split(strings.ReplaceAll(strings.TrimSpace(text), "\r\n", "\n"), "\n")
		for i, line := range lines {
			lines[i] = strings.TrimRight(line, " \t")
		}
		text = strings.Join(lines, "\n")
		if text == `""` {
			return ""
		}
		return text
	}
	return clean(got) == clean(want)
}

var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(colours.ReplaceAllString(text, "")), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
