package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// eachWay runs a test with every kind of isolation that works here, with the machine's Python.
func eachWay(t *testing.T, test func(t *testing.T, s *Sandbox, python *Language)) {
	t.Helper()
	tried := map[Tier]bool{}
	for _, m := range working() {
		if !slow() && (tried[m.Tier] || m.Tier == Unsafe) {
			continue
		}
		tried[m.Tier] = true
		t.Run(strings.ReplaceAll(m.String(), ", ", ","), func(t *testing.T) {
			s, python := pythonIn(t, m)
			test(t, s, python)
		})
	}
}

// pythonIn is the machine's Python in a sandbox of its own.
func pythonIn(t *testing.T, m means) (*Sandbox, *Language) {
	t.Helper()
	s := newSandbox(m)
	t.Cleanup(func() { _ = s.Close() })
	python, err := s.Find(t.Context(), Python, "")
	if absent := (*Absent)(nil); errors.As(err, &absent) && absent.Tried == nil {
		t.Skip(err)
	}
	must.Do(t, err)
	python.env = append(slices.Clone(python.env), marker())
	return s, python
}

// working are the kinds of isolation that work here.
func working() []means {
	var all []means
	for _, c := range candidates() {
		if c.works() == nil {
			all = append(all, c.means)
		}
	}
	return all
}

// quick are limits for short tests.
func quick() Limits {
	l := Usual()
	l.Wall, l.Memory, l.AddressSpace = 4*time.Second, 128<<20, 1<<30
	return l
}

func TestStatus(t *testing.T) {
	eachWay(t, func(t *testing.T, s *Sandbox, python *Language) {
		limits := quick()
		for _, test := range []struct {
			program, stdin string
			wall           time.Duration
			status         Status
			code, signal   int
			out, err       string // parts of the outputs
		}{
			{program: "print('hello', 6*7)", status: OK, out: "hello 42\n"},
			{program: "print(input()[::-1])", stdin: "abc\n", status: OK, out: "cba\n"},
			{program: "import sys; sys.exit(3)", status: Failed, code: 3},
			{program: "1/0", status: Failed, code: 1, err: "ZeroDivisionError"},
			{program: "def f(:", status: Failed, code: 1, err: "SyntaxError"},
			{program: "import os; os.kill(os.getpid(), 9)", status: Signal, signal: 9},
			{program: "import os; os.kill(os.getpid(), 15)", status: Signal, signal: 15},
			{program: "import os; os.abort()", status: Signal, signal: 6},
			{program: "while True: pass", wall: 300 * time.Millisecond, status: Timeout, signal: 9},
			{program: "import time\nwhile True:\n try: time.sleep(9)\n except BaseException: pass", wall: 300 * time.Millisecond, status: Timeout, signal: 9},
			{program: "x = bytearray(3 << 30)", status: Memory, code: 1, err: "MemoryError"},
			{program: "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 20)))", status: Memory},
			{program: "import ctypes, threading\ndef f():\n x = []\n while True: x.append(bytearray(b'x' * (1 << 20)))\nthreading.Thread(target=f).start()\nctypes.CDLL(None).syscall(60, 0)", status: Memory}, // the first thread ends
			{program: "while True: print('x' * 999)", status: Output},
			{program: "import sys\nwhile True: sys.stderr.write('x' * 999)", status: Output},
			{program: "import os; os.write(1, b'\\xff\\x00\\x1b[2J')", status: OK, out: "\uFFFD\x00\x1b[2J"},
			{program: "print('x' * 60000)", status: OK, out: strings.Repeat("x", 60000)},
			{program: "import json, re, math, random, itertools, collections, decimal, datetime, heapq, statistics; print('ok')", status: OK, out: "ok"},
			{program: "import threading; t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()", status: OK, out: "thread"},
			{program: "print({'a', 'b', 'c', 'd', 'e'})", status: OK, out: "{'"},
			{program: "import os, sys; sys.stdout.flush(); os.close(1); os.close(2)", status: OK},
			{program: "# \u00e9\nprint('\u00e9')", status: OK, out: "\u00e9\n"},
		} {
			l := limits
			if test.wall > 0 {
				l.Wall = test.wall
			}
			o := must.Get(s.RunText(t.Context(), l, python, test.program, []byte(test.stdin)))(t)
			expect.True(t, o.Status == test.status && o.ExitCode == test.code && (test.signal == 0 || o.Signal == test.signal) && strings.Contains(o.Stdout, test.out) && strings.Contains(o.Stderr, test.err), "%.80q: %s, exit code %d, signal %d, %.200q, %.400q %s", test.program, o.Status, o.ExitCode, o.Signal, o.Stdout, o.Stderr, o.Error)
			expect.True(t, o.Status != Timeout || o.CPU <= 2*l.Wall.Seconds(), "%.80q: %v s of processor time", test.program, o.CPU)
		}
	})
}

// state must be the same after the programs as before.
type state struct{ files, children, mounts, programs, folders int }

// marker is in the environment of this test's programs.
func marker() string { return "RLTRAIN_SANDBOX_TEST=" + strconv.Itoa(os.Getpid()) }

func stateNow(t *testing.T) state {
	t.Helper()
	count := func(pattern string) int {
		names := must.Get(filepath.Glob(pattern))(t)
		return len(names)
	}
	var s state
	s.files, s.folders = count("/proc/self/fd/*"), count(fmt.Sprintf("%s/rltrain-sandbox-%d-*/*", shared(), os.Getpid()))
	mounts := must.Get(os.ReadFile("/proc/self/mountinfo"))(t)
	s.mounts = strings.Count(string(mounts), "\n")
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		if environ, _ := os.ReadFile(folder + "/environ"); strings.Contains(string(environ), marker()) {
			s.programs++
		}
		status, _ := os.ReadFile(folder + "/status")
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "PPid:" && f[1] == strconv.Itoa(os.Getpid()) {
				s.children++
			}
		}
	}
	return s
}

// settles waits until the state is as before: killed processes may take a moment to disappear.
func settles(t *testing.T, before state) {
	t.Helper()
	var now state
	for range 100 {
		if now = stateNow(t); now == before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("left behind: %+v, before it was %+v", now, before)
}

func TestAttacks(t *testing.T) {
	outside := must.File(t, "secret.txt", "a secret")
	t.Setenv("RLTRAIN_SECRET", "a secret")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: outside + ".socket", Net: "unixgram"})
	must.Do(t, errors.Join(err, os.Chmod(outside+".socket", 0o777)))
	defer func() { _ = socket.Close() }()
	eachWay(t, func(t *testing.T, s *Sandbox, python *Language) {
		before := stateNow(t)
		for _, a := range attacks {
			if a.slow && !slow() || a.contained && s.Tier() == Unsafe {
				continue
			}
			limits := quick()
			limits.Wall = 700 * time.Millisecond
			if slow() {
				limits.Wall = 3 * time.Second
			}
			program := strings.NewReplacer("OUTSIDE", outside, "PARENT", strconv.Itoa(os.Getpid())).Replace(common + a.program)
			began := time.Now()
			o := must.Get(s.RunText(t.Context(), limits, python, program, nil))(t)
			expect.True(t, !strings.Contains(o.Stdout, "ESCAPED") && !strings.Contains(o.Stdout, "a secret") && o.Status != SandboxError,
				"%s: %s %.300q %.600q %s", a.name, o.Status, o.Stdout, o.Stderr, o.Error)
			took := time.Since(began)
			expect.True(t, took <= limits.Wall+8*time.Second, "%s took %v", a.name, took)
			if testing.Verbose() {
				t.Logf("%-28s %-8s code %d signal %d peak %4.0f MB %.70q %.60q", a.name, o.Status, o.ExitCode, o.Signal, o.Peak, o.Stdout, lastLine([]byte(o.Stderr)))
			}
		}
		settles(t, before)
		data, err := os.ReadFile(outside)
		expect.True(t, err == nil && string(data) == "a secret", "a file outside is now %q, %v", data, err)
		_ = socket.SetReadDeadline(time.Now().Add(time.Millisecond))
		n, err := socket.Read(make([]byte, 9))
		expect.True(t, err != nil, "a socket outside has got %d bytes", n)
	})
}

// TestAttacksOnNobody runs the attacks as an unprivileged user who also owns the files.
func TestAttacksOnNobody(t *testing.T) {
	if !slow() || os.Geteuid() != 0 {
		t.Skip("is for root, in make crash")
	}
	dir := must.Get(os.MkdirTemp("/tmp", "rltrain-nobody-"))(t)
	defer func() { _ = os.RemoveAll(dir) }()
	self, err := os.ReadFile("/proc/self/exe")
	name := filepath.Join(dir, "sandbox.test")
	must.Do(t, errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(name, self, 0o755)))
	c := exec.CommandContext(t.Context(), name, "-test.short", "-test.run", "^(TestAttacks|TestSweep)$")
	c.Dir, c.Env = dir, []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := c.CombinedOutput()
	expect.True(t, err == nil, "%v\n%s", err, out)
}

// TestManyRuns counts leftovers after rapid runs.
func TestManyRuns(t *testing.T) {
	n := 20
	if slow() {
		n = 10000
	}
	for _, m := range working()[:1] {
		s, python := pythonIn(t, m)
		before := stateNow(t)
		for i := range n {
			l := quick()
			program := "print(" + strconv.Itoa(i) + ")"
			if i%5 == 0 {
				l.Wall, program = time.Duration(i%70)*time.Millisecond, "import os\nos.fork()\nwhile True: pass"
			}
			o, err := s.RunText(t.Context(), l, python, program, nil)
			expect.Require(t, err == nil && (i%5 == 0 || o.Stdout == strconv.Itoa(i)+"\n") && (i%5 != 0 || o.Status == Timeout), "run %d: %+v, %v", i, o, err)
		}
		settles(t, before)
	}
}

func TestCancel(t *testing.T) {
	eachWay(t, func(t *testing.T, s *Sandbox, python *Language) {
		before := stateNow(t)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := s.RunText(ctx, Usual(), python, "import time; time.sleep(60)", nil)
		expect.True(t, errors.Is(err, context.DeadlineExceeded), "error %v", err)
		took := time.Since(began)
		expect.True(t, took <= 5*time.Second, "it took %v", took)
		settles(t, before)
	})
}

// TestPair connects two programs.
func TestPair(t *testing.T) {
	eachWay(t, func(t *testing.T, s *Sandbox, python *Language) {
		first := python.Program("import os\nwhile True:\n d = os.read(3, 99)\n if not d: break\n os.write(4, d[::-1])\nimport time; time.sleep(60)", nil)
		second := python.Program("import os\nos.write(4, b'abc')\nprint(os.read(3, 99))", nil)
		second.Files[0].Name, second.Argv[len(second.Argv)-1] = "other.py", "{}/other.py"
		out, err := s.Run(t.Context(), Usual(), first, second)
		expect.True(t, err == nil && out[1].Status == OK && out[1].Stdout == "b'cba'\n" && out[0].Signal == int(unix.SIGKILL) && out[0].Status == Signal, "%+v, %v", out, err)
	})
}

// TestHelper runs programs with one helper, kills it, and closes the next.
func TestHelper(t *testing.T) {
	eachWay(t, func(t *testing.T, s *Sandbox, python *Language) {
		run := func() int {
			t.Helper()
			o, err := s.RunText(t.Context(), quick(), python, "print(1)", nil)
			expect.Require(t, err == nil && o.Stdout == "1\n", "%+v, %v", o, err)
			h := <-s.idle
			defer func() { s.idle <- h }()
			return h.command.Process.Pid
		}
		first := run()
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", first))
		expect.True(t, err == nil && string(text) == "1000\n", "oom_score_adj is %q, %v; want 1000", text, err)
		expect.Same(t, first, run(), "two helpers served: %d and", first)
		must.Do(t, unix.Kill(first, unix.SIGKILL))
		third := run()
		expect.True(t, third != first, "a helper that is gone served")
		// All helpers may be gone, for example when memory has run out.
		idle := make(chan *helper, 8)
		for range cap(idle) - 1 {
			h := must.Get(startHelper())(t)
			idle <- h
			must.Do(t, h.command.Process.Kill())
		}
		many := &Sandbox{means: s.means, slots: s.slots, idle: idle}
		o, err := many.RunText(t.Context(), quick(), python, "print(1)", nil)
		expect.True(t, err == nil && o.Stdout == "1\n", "%+v, %v", o, err)
		_ = many.Close()
		expect.NoError(t, s.Close(), "Close")
		err = unix.Kill(third, 0)
		expect.True(t, err == unix.ESRCH, "the helper is still there after Close: %v", err)
	})
}

// TestInterpreterBelowTmp: the interpreter is below the program's folder.
func TestInterpreterBelowTmp(t *testing.T) {
	echo, err := os.ReadFile("/bin/echo")
	if err != nil {
		t.Skip(err)
	}
	dir := must.Get(os.MkdirTemp("/tmp", "rltrain-interpreter-"))(t)
	defer func() { _ = os.RemoveAll(dir) }()
	name := filepath.Join(dir, "echo")
	must.Do(t, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(name, echo, 0o755)))
	eachWay(t, func(t *testing.T, s *Sandbox, _ *Language) {
		l := &Language{Interpreter: name, Read: append(machine(), name)}
		out, err := s.Run(t.Context(), quick(), Program{Language: l, Argv: []string{"works"}})
		expect.True(t, err == nil && out[0].Stdout == "works\n", "%+v, %v", out, err)
	})
}

func TestAbsentInterpreter(t *testing.T) {
	tiers := Tiers()
	if len(tiers) == 0 {
		t.Skip("no sandbox works here")
	}
	s := must.Get(In(tiers[0]))(t)
	t.Setenv("Q_INTERPRETER_PATH", "/nowhere/q")
	for _, test := range []struct{ language, path, want string }{
		{Q, "", "no interpreter for q found; install kdb+"}, {Python, "/nowhere/python", "no interpreter for python found; install Python 3.8"}, {"cobol", "", `unknown language "cobol"; choose python, node, q, pepper`},
		{Python, "/bin/true", "does not report its location"},
	} {
		expect.Failure(s.Find(t.Context(), test.language, test.path))(t, test.want)
	}
}

// forks starts children that compute for .4 seconds each, and ends after them. How says what else the parent does.
func forks(how string) string {
	return `
import os, signal, time
r, w = os.pipe()
wait = lambda: None
def end():
    os.close(w)
    os.read(r, 1)  # until the last child has ended
` + how + `
for i in range(4):
    if os.fork() == 0:
        while time.process_time() < .4: pass
        os._exit(0)
    wait()
end()
`
}

// TestProcessorTimeOfAll: children count, whether they are waited for, left behind or ignored.
func TestProcessorTimeOfAll(t *testing.T) {
	for _, m := range working() {
		if m.alone() {
			continue
		}
		s, python := pythonIn(t, m)
		for name, program := range map[string]string{
			"waited for": forks("wait = os.wait"),
			"left":       forks(""),
			"orphans":    forks("if os.fork(): end(); os._exit(0)"),
			"ignored":    forks("try: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: pass"),
		} {
			l := quick()
			l.Wall = time.Minute
			if o, err := s.RunText(t.Context(), l, python, program, nil); err != nil || o.Status != OK || o.CPU < 1.5 {
				t.Errorf("%s, %s: %+v, %v; want 1.6 s of processor time", m, name, o, err)
			}
			l.CPU = time.Second
			o, err := s.RunText(t.Context(), l, python, program, nil)
			expect.True(t, err == nil && o.Status == Timeout, "%s, %s, limit of 1 s: %+v, %v; want %s", m, name, o, err, Timeout)
		}
	}
}

// TestOldLandlock truncates a readable file, which old Landlock versions cannot forbid.
func TestOldLandlock(t *testing.T) {
	m := means{Tier: Landlock, Landlock: 2, Seccomp: true}
	if err := m.try(); err != nil {
		t.Skip(err)
	}
	s, python := pythonIn(t, m)
	name := must.File(t, "readable.txt", "full")
	python.Read = append(python.Read, name)
	program := common + "p = '" + name + "'\nprint(open(p).read())\nno(os.truncate, p, 0); no(os.open, p, os.O_TRUNC); no(os.open, p, os.O_RDWR); no(call, 2, p.encode(), 0x200, 0); no(call, 85, p.encode(), 0o644); no(call, 437, -100, p.encode(), b'\\0\\2' + bytes(22), 24)"
	o, err := s.RunText(t.Context(), quick(), python, program, nil)
	expect.True(t, err == nil && strings.HasPrefix(o.Stdout, "full\n") && !strings.Contains(o.Stdout, "ESCAPED") && o.Status == OK, "%+v, %v", o, err)
	data, err := os.ReadFile(name)
	expect.True(t, err == nil && string(data) == "full", "it holds %q, %v", data, err)
}

// TestSweep runs fork bombs with resource limits only.
func TestSweep(t *testing.T) {
	s, python := pythonIn(t, means{Tier: Unsafe, IDs: os.Geteuid() == 0 && mayChangeUser()})
	before := stateNow(t)
	for _, a := range attacks {
		if !slices.Contains([]string{"fork bomb", "setsid daemon", "double fork daemon", "daemon holding pipes", "forking runaway", "memory of orphans"}, a.name) {
			continue
		}
		limits := quick()
		limits.Wall = 700 * time.Millisecond
		want := Status("")
		if a.name == "memory of orphans" {
			limits.Wall, want = 9*time.Second, Memory
		}
		o, err := s.RunText(t.Context(), limits, python, common+a.program, nil)
		expect.True(t, err == nil && o.Status != SandboxError && !strings.Contains(o.Stdout, "ESCAPED") && (want == "" || o.Status == want), "%s: %+v, %v", a.name, o, err)
		settles(t, before)
	}
}

// TestFoldersAreRemoved: the folders of programs are in one, which Close removes; what a killed process leaves is in one that
// the next process finds.
func TestFoldersAreRemoved(t *testing.T) {
	var f folders
	a := must.Get(f.make())(t)
	b, err := f.make()
	expect.True(t, err == nil && a != b && filepath.Dir(a) == filepath.Dir(b) && strings.HasPrefix(filepath.Base(f.dir), "rltrain-sandbox-"), "%s, %s in %s, %v", a, b, f.dir, err)
	dir := f.dir
	f.remove()
	f.remove()
	_, err = os.Stat(dir)
	expect.True(t, os.IsNotExist(err), "%s is still there: %v", dir, err)
	c, err := f.make()
	expect.True(t, err == nil && filepath.Dir(c) != dir, "%s after Close, %v", c, err)
	f.remove()
}
