package code

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/rltrain/rltrain/envs/sandbox"
)

// Files of the two processes.
const (
	solutionFile = "solution.pyc"
	testsFile    = "tests.pyc"
)

//go:embed codec.py
var codec string

//go:embed solution.py
var solutionSide string

//go:embed runner.py
var runnerSide string

//go:embed tests.py
var testsSide string

// asserted runs the program in one process and its tests in another.
func (j *Grader) asserted(ctx context.Context, p *Problem, program string, tests []Test) (Verdict, error) {
	t := p.harness("each")
	for _, one := range tests {
		t.units = append(t.units, one.Assert)
	}
	switch {
	case p.Check != "":
		t.mode, t.units = "check", []string{p.Check}
		if p.Solution != "" {
			t.reference = p.complete(p.Solution)
		}
	case p.Program != "":
		t.mode, t.units = "split", []string{p.Program}
	}
	v, _, err := j.pair(ctx, program, t, "")
	return v, err
}

// harnessInput is the input of the test process; codec.py and tests.py document it.
type harnessInput struct {
	mode, entry  string
	setup, units []string
	defined      []string // functions and classes of the reference solution
	values       []string // its variables
	reference    string   // the reference solution, "" if there is none
}

// harness is the input of a problem's test process, without its tests.
func (p *Problem) harness(mode string) harnessInput {
	t := harnessInput{mode: mode, entry: p.Entry, setup: p.Setup}
	t.defined, t.values = p.defined()
	return t
}

// pair runs a program and its tests, and returns their output if requested.
func (j *Grader) pair(ctx context.Context, program string, t harnessInput, input string) (Verdict, string, error) {
	nonce, err := newNonce()
	if err != nil {
		return Verdict{}, "", err
	}
	// Tests get the same random numbers each time, but a program cannot predict them.
	all := sha256.Sum256([]byte(program + "\x00" + strings.Join(t.units, "\x00")))
	var payload strings.Builder
	payload.WriteString("l9:")
	for _, text := range []string{nonce, t.mode, t.entry} {
		packText(&payload, text)
	}
	packTexts(&payload, t.setup)
	packTexts(&payload, t.units)
	packTexts(&payload, t.defined)
	packTexts(&payload, t.values)
	packText(&payload, t.reference)
	packText(&payload, hex.EncodeToString(all[:]))
	solution := j.side(solutionFile, []byte(input))
	solution.Files = append(solution.Files, sandbox.File{Name: "solution.txt", Data: []byte(program)})
	limits := j.limits
	for _, unit := range t.units { // one line per assertion
		limits.Output += 64 * (1 + strings.Count(unit, "assert"))
	}
	if t.mode == "script" {
		limits.Output *= 3 // as text and in hexadecimal
	}
	out, err := j.sandbox.Run(ctx, limits, solution, j.side(testsFile, []byte(payload.String())))
	if err != nil {
		return Verdict{}, "", err
	}
	v, written := readReport(nonce, out[0], out[1])
	return v, written, nil
}

// side returns one of the two processes.
func (j *Grader) side(name string, stdin []byte) sandbox.Program {
	p := j.language.Program("", stdin)
	p.Files = []sandbox.File{{Name: name, Data: j.compiled[name]}}
	p.Argv[len(p.Argv)-1] = "{}/" + name
	return p
}

func newNonce() (string, error) {
	word := make([]byte, 16)
	_, err := rand.Read(word)
	return hex.EncodeToString(word), err
}

// packText encodes a text for codec.py.
func packText(b *strings.Builder, text string) {
	text = strings.ToValidUTF8(text, "\uFFFD")
	fmt.Fprintf(b, "s%d:%s", utf8.RuneCountInString(text), text)
}

func packTexts(b *strings.Builder, texts []string) {
	fmt.Fprintf(b, "l%d:", len(texts))
	for _, text := range texts {
		packText(b, text)
	}
}

// readReport reads the test process's report, how both processes ended, and the output of a script.
func readReport(nonce string, solution, tests sandbox.Outcome) (v Verdict, written string) {
	v.CPU = solution.CPU
	for _, o := range []sandbox.Outcome{solution, tests} {
		if o.Status == sandbox.SandboxError {
			v.Class, v.Message = Sandbox, o.Error
			return v, ""
		}
	}
	ended, loaded := false, true
	worst := Pass
	for line := range strings.Lines(tests.Stdout) {
		said, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), nonce)
		if !ok || said == "" {
			continue
		}
		note := said[1:]
		switch said[0] {
		case '#':
			_, _ = fmt.Sscanf(note, "%d", &v.Total)
			continue
		case 'O':
			text, _ := hex.DecodeString(note)
			written = string(text)
			continue
		case '.':
			ended = true
			continue
		case 'X':
			loaded, ended, worst, v.Fault = false, true, Runtime, true
		case '!':
			loaded, ended, worst = false, true, Runtime
			if strings.Contains(note, "SyntaxError") || strings.Contains(note, "IndentationError") || strings.Contains(note, "TabError") {
				worst = Syntax
			}
		case 'P', 'W', 'E', 'G':
			v.Tests = append(v.Tests, said[0] == 'P')
		}
		switch {
		case worst != Pass:
		case said[0] == 'W' || said[0] == 'w':
			worst = Wrong
		case said[0] != 'P':
			worst = Runtime
		}
		if v.Message == "" && said[0] != 'P' {
			v.Message = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\'`, `'`).Replace(note)
		}
	}
	v.Total = max(v.Total, len(v.Tests), 1)
	if solution.Status == sandbox.Output {
		// How many tests ran before the limit applied is random.
		v.Class, v.Tests, v.Message = Output, nil, classMessages[Output]
		return v, ""
	}
	if loaded && ended && worst == Pass && v.Passed() == v.Total {
		v.Class = Pass
		return v, written
	}
	v.Class = worst
	if worst == Pass { // the tests did not finish
		v.Class = Runtime
		switch {
		case v.Message != "":
		case ended && len(v.Tests) == 0:
			v.Message, v.Fault = "the tests assert nothing", true
		case tests.Status == sandbox.Failed:
			v.Message = "the tests did not come to their end: " + lastLines(tests.Stderr, 1)
		default:
			v.Message = "the tests did not come to their end"
		}
	}
	if v.Class == Runtime || !ended {
		v.stoppedBy(solution, tests)
	}
	return v, written
}

// stoppedBy sets the class of the limit that a process reached: how the program ended is more precise than the failed test.
// But if it was killed with its tests, that says nothing.
func (v *Verdict) stoppedBy(outcomes ...sandbox.Outcome) {
	for _, o := range outcomes {
		class := map[sandbox.Status]Class{sandbox.Timeout: Timeout, sandbox.Memory: Memory, sandbox.Output: Output}[o.Status]
		if class != "" {
			v.Class, v.Message = class, classMessages[class]
			return
		}
	}
}

var classMessages = map[Class]string{Timeout: "the program took too long", Memory: "the program took too much memory", Output: "the program wrote too much"}

// scripted runs a Python script in a process next to the program's, and compares its output.
func (j *Grader) scripted(ctx context.Context, p *Problem, program string, t Test) (Verdict, error) {
	h := p.harness("script")
	h.units = []string{t.Script}
	v, written, err := j.pair(ctx, program, h, t.Input)
	if err == nil && v.Class == Pass {
		v.Class, v.Message = wrote(written, t.Want)
	}
	return v, err
}
