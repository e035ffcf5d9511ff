package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

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
		s := newSandbox(m)
		t.Cleanup(func() { _ = s.Close() })
		python, err := s.Find(t.Context(), Python, "")
		if absent := (*Absent)(nil); errors.As(err, &absent) {
			t.Skip(err)
		}
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
	s := newSandbox(m)
	t.Cleanup(func() { _ = s.Close() })
	python, err := s.Find(t.Context(), Python, "")
	if err != nil {
		t.Skip(err)
	}
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
	s := newSandbox(means{Tier: Unsafe, IDs: os.Geteuid() == 0 && mayChangeUser()})
	t.Cleanup(func() { _ = s.Close() })
	python, err := s.Find(t.Context(), Python, "")
	if err != nil {
		t.Skip(err)
	}
	python.env = append(slices.Clone(python.env), marker())
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
