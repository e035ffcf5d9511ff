package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/torch/hub"
)

// Language is an interpreter on this machine.
type Language struct {
	Name        string
	Interpreter string   // path of the program
	Read        []string // paths that it must read
	Roomy       bool     // it reserves unused address space, so that cannot be limited
	OutOfMemory *regexp.Regexp

	calls     bool // programs can make any system call, and the interpreter works without a handler of SIGCHLD
	suffix    string
	arguments []string // before the file
	env       []string
	end       string // appended to a program
	divider   string // between statements; "" = newline
	comments  *regexp.Regexp
	syntax    *regexp.Regexp // matches the error for a program that does not parse
	show      string         // a statement that prints the text X on a line
	banner    *regexp.Regexp // matches the interpreter's first output
	complains *regexp.Regexp // matches errors that do not change the exit code
}

// Language names.
const (
	Python = "python"
	Node   = "node"
	Q      = "q"
	Pepper = "pepper"
)

// Languages are all language names.
var Languages = []string{Python, Node, Q, Pepper}

// known is how a language is found and used.
type known struct {
	programs []string // names or paths; the first that runs is used
	variable string   // environment variable with a path
	fetched  string   // downloaded by make, below the cache
	install  string
	language Language
}

// languages are the supported languages.
var languages = map[string]known{
	Python: {
		programs: []string{"python3", "/usr/local/bin/python3", "/usr/bin/python3"}, variable: "PYTHON_INTERPRETER_PATH",
		install: "install Python 3.8 or newer (apt-get install python3)",
		language: Language{
			calls: true, suffix: ".py", show: "print('X')", arguments: []string{"-s", "-S", "-B"}, env: []string{"PYTHONHASHSEED=0", "PYTHONUTF8=1"},
			OutOfMemory: regexp.MustCompile(`(?m)^MemoryError|can't allocate memory|Cannot allocate memory`),
			syntax:      regexp.MustCompile(`(?m)^(SyntaxError|IndentationError|TabError): `),
		},
	},
	Node: {
		programs: []string{"node", "nodejs", "/usr/bin/node"}, variable: "NODE_INTERPRETER_PATH", install: "install Node.js (apt-get install nodejs)",
		language: Language{suffix: ".js", show: "console.log('X')", arguments: []string{"--max-old-space-size=512"}, Roomy: true, OutOfMemory: regexp.MustCompile(`heap out of memory`), syntax: regexp.MustCompile(`(?m)^SyntaxError: `)},
	},
	Q: {
		programs: []string{"q"}, variable: "Q_INTERPRETER_PATH", install: "install kdb+ from kx.com, and set Q_INTERPRETER_PATH or PATH; --language pepper is free and close to q",
		language: Language{suffix: ".q", show: "-1 \"X\";", end: "\nexit 0;\n", Roomy: true, complains: regexp.MustCompile(`(?i)error`), OutOfMemory: regexp.MustCompile(`(?m)^'?(wsfull|-w abort)`)},
	},
	Pepper: {
		programs: []string{"chili"}, variable: "PEPPER_INTERPRETER_PATH", fetched: "chili-pie-0.11.3/chili",
		install: "pip install chili-pie, which brings the program chili",
		language: Language{
			suffix: ".pep", show: "show \"X\";", arguments: []string{"-P"}, end: "\nexit 0;\n", Roomy: true,
			divider: ";", comments: regexp.MustCompile(`(?m)//.*$`), syntax: regexp.MustCompile(`failed to parse`),
			banner: regexp.MustCompile(`\A(?s:.*?)pid +\d+(?s:.*?)\x1b\[0m\n`),
		},
	},
}

// machine returns the shared libraries that programs need on every machine.
func machine() []string {
	var all []string
	for _, name := range []string{"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"} {
		if _, err := os.Lstat(name); err == nil {
			all = append(all, name)
		}
	}
	return all
}

// Absent means that a language's interpreter was not found.
type Absent struct {
	Language, Install string
	Tried             []string
}

func (a *Absent) Error() string {
	text := fmt.Sprintf("no interpreter for %s found; %s", a.Language, a.Install)
	if len(a.Tried) > 0 {
		text += " (" + strings.Join(a.Tried, "; ") + ")"
	}
	return text
}

// Find finds the interpreter of a language and tests it with a short program. If path is "", it looks at the language's
// environment variable, in PATH, and at the usual places.
func (s *Sandbox) Find(ctx context.Context, name, path string) (*Language, error) {
	k, ok := languages[name]
	if !ok {
		return nil, fmt.Errorf("unknown language %q; choose %s", name, strings.Join(Languages, ", "))
	}
	programs, named := k.programs, path != ""
	if cache, err := hub.CacheDir(); err == nil && k.fetched != "" {
		programs = append(slices.Clip(programs), filepath.Join(cache, k.fetched))
	}
	if path == "" && os.Getenv(k.variable) != "" {
		path, named = os.Getenv(k.variable), true
	}
	if named {
		programs = []string{path}
	}
	absent := &Absent{Language: name, Install: k.install}
	var seen []string
	for _, program := range programs {
		found, err := exec.LookPath(program)
		if err != nil {
			if named {
				absent.Tried = append(absent.Tried, err.Error())
			}
			continue
		}
		l := k.language
		l.Name = name
		err = l.locate(ctx, found)
		if err == nil && slices.Contains(seen, l.Interpreter) {
			continue
		}
		seen = append(seen, l.Interpreter)
		if err == nil {
			err = s.tryLanguage(ctx, &l)
		}
		if err == nil {
			return &l, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		absent.Tried = append(absent.Tried, fmt.Sprintf("%s: %v", found, err))
	}
	return nil, absent
}

// locate finds the files that belong to an interpreter.
func (l *Language) locate(ctx context.Context, program string) error {
	l.Read = machine()
	if l.Name == Python {
		return l.locatePython(ctx, program)
	}
	real, err := filepath.EvalSymlinks(program)
	if err != nil {
		return err
	}
	l.Interpreter = real
	l.Read = append(l.Read, real)
	if l.Name == Q {
		// q reads its own functions and the licence from QHOME.
		folder := os.Getenv("QHOME")
		if folder == "" {
			folder = filepath.Dir(filepath.Dir(real))
		}
		l.Read, l.env = append(l.Read, folder), []string{"QHOME=" + folder, "QLIC=" + folder}
	}
	if l.Name == Node {
		l.env = []string{"OPENSSL_CONF=/dev/null"} // the system's file may be unreadable, which node treats as an error
		if info, err := os.Stat("/usr/share/nodejs"); err == nil && info.IsDir() {
			l.Read = append(l.Read, "/usr/share/nodejs") // Debian keeps parts of node there
		}
	}
	return nil
}

// locatePython asks an interpreter for its real location: the path may be a script, or a link in a virtual environment.
func (l *Language) locatePython(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	const question = `import json, os, sys, sysconfig
print(json.dumps([os.path.realpath(sys.executable), sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sys.base_prefix, list(sys.version_info[:2]), (sysconfig.get_config_var("LIBDIR") or "")]))`
	text, err := exec.CommandContext(ctx, program, "-I", "-S", "-c", question).Output()
	if err != nil {
		return fmt.Errorf("asking for its location: %w", err)
	}
	var executable, library, platform, prefix, libraries string
	var version []int
	if err := json.Unmarshal(text, &[]any{&executable, &library, &platform, &prefix, &version, &libraries}); err != nil || executable == "" || len(version) != 2 {
		return errors.New("not a Python 3 interpreter: it does not report its location")
	}
	if version[0] != 3 || version[1] < 8 {
		return fmt.Errorf("needs Python 3.8 or newer, found %d.%d", version[0], version[1])
	}
	l.Interpreter = executable
	l.Read = append(l.Read, executable, library, platform)
	for _, name := range []string{filepath.Join(libraries, fmt.Sprintf("libpython%d.%d.so.1.0", version[0], version[1])), filepath.Join(libraries, "libpython3.so")} {
		if _, err := os.Stat(name); err == nil {
			l.Read = append(l.Read, name)
		}
	}
	return nil
}

// tryLanguage runs a program that prints a word.
func (s *Sandbox) tryLanguage(ctx context.Context, l *Language) error {
	o, err := s.RunText(ctx, Usual(), l, strings.ReplaceAll(l.show, "X", "works"), nil)
	switch {
	case err != nil:
		return err
	case o.Status != OK || !strings.Contains(o.Stdout, "works"):
		return fmt.Errorf("does not run in the sandbox: %s, exit code %d %s %s", o.Status, o.ExitCode, o.Error, lastLine([]byte(o.Stderr)))
	}
	return nil
}

// Program returns the program for a source text.
func (l *Language) Program(text string, stdin []byte) Program {
	name := "main" + l.suffix
	return Program{
		Language: l, Argv: append(slices.Clone(l.arguments), "{}/"+name), Env: l.env,
		Files: []File{{name, []byte(l.closed(text) + l.end)}}, Stdin: stdin,
	}
}

// Behind joins a program and a script, with a statement between them that prints mark. It cuts off what the program does
// at its end.
func (l *Language) Behind(program, script, mark string) string {
	if l.end != "" {
		program = strings.TrimSuffix(strings.TrimSpace(program), strings.TrimSpace(l.end))
	}
	return l.closed(program) + "\n\n" + strings.ReplaceAll(l.show, "X", mark) + "\n" + script
}

// closed prepares a program so that another statement can follow.
func (l *Language) closed(program string) string {
	if l.divider == "" {
		return program
	}
	code := strings.TrimSpace(l.comments.ReplaceAllString(program, ""))
	if code == "" || strings.HasSuffix(code, l.divider) {
		return program
	}
	return program + "\n" + l.divider
}

// Unreadable reports whether errors mean that the program does not parse.
func (l *Language) Unreadable(errors string) bool {
	return l.syntax != nil && l.syntax.MatchString(errors)
}

// AfterMark returns the output after mark.
func (l *Language) AfterMark(output, mark string) (after string, found bool) {
	at := strings.LastIndex(output, mark)
	if at < 0 {
		return "", false
	}
	_, after, _ = strings.Cut(output[at:], "\n")
	return after, true
}

// Complains reports whether errors contain an error that the exit code does not show.
func (l *Language) Complains(errors string) bool {
	return l.complains != nil && l.complains.MatchString(errors)
}

// RunText runs the program for a source text.
func (s *Sandbox) RunText(ctx context.Context, limits Limits, l *Language, text string, stdin []byte) (Outcome, error) {
	out, err := s.Run(ctx, limits, l.Program(text, stdin))
	if err != nil {
		return Outcome{}, err
	}
	return out[0], nil
}
