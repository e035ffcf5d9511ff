package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rltrain/rltrain/internal/scratch"
)

// once runs programs in a helper; anew starts a fresh one after a failure.
func (s *Sandbox) once(ctx context.Context, l Limits, programs []Program, anew bool) ([]Outcome, error) {
	j := job{Means: s.means, Limits: l}
	folder := home
	if s.means.Tier != Namespaces {
		dir, err := s.writeFiles(programs)
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		j.Dir, folder = dir, dir
	}
	inputs := make([][]byte, len(programs))
	for i, p := range programs {
		b := box{Argv: []string{p.Language.Interpreter}, Env: p.Env, Files: p.Files, Read: p.Language.Read, Waits: p.Language.calls}
		for _, arg := range p.Argv {
			b.Argv = append(b.Argv, strings.ReplaceAll(arg, "{}", folder))
		}
		if p.Language.Roomy {
			j.Limits.AddressSpace = 0
		}
		j.Boxes, inputs[i] = append(j.Boxes, b), p.Stdin
	}
	h, err := s.helper(anew)
	if err != nil {
		return nil, err
	}
	said, outputs, err := h.run(ctx, &j, inputs)
	if err != nil {
		return nil, errors.Join(err, h.end())
	}
	s.idle <- h
	outcomes := make([]Outcome, len(programs))
	for i, e := range said.Boxes {
		o := e.outcome(outputs[i], programs[i].Language, l)
		o.Tier = s.means.Tier
		if folder != home { // so that outputs do not depend on the isolation
			o.Stdout, o.Stderr = strings.ReplaceAll(o.Stdout, folder, home), strings.ReplaceAll(o.Stderr, folder, home)
		}
		outcomes[i] = o
	}
	return outcomes, nil
}

// shared is a folder that sandbox users can reach: that of TMPDIR may be private.
func shared() string {
	if info, err := os.Stat("/tmp"); err == nil && info.IsDir() {
		return "/tmp"
	}
	return os.TempDir()
}

// folders are the folders of programs, in one that is made when it is needed first.
type folders struct {
	lock sync.Mutex
	dir  string
	done func() // removes it
}

// make returns a new world-readable folder.
func (f *folders) make() (dir string, err error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.dir == "" {
		if f.dir, f.done, err = scratch.New(shared(), "rltrain-sandbox-"); err != nil {
			return "", err
		}
		if err := os.Chmod(f.dir, 0o711); err != nil {
			return "", err
		}
	}
	if dir, err = os.MkdirTemp(f.dir, ""); err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755)
}

func (f *folders) remove() {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.dir != "" {
		f.done()
		f.dir = ""
	}
}

// writeFiles writes the programs' files to a new world-readable folder.
func (s *Sandbox) writeFiles(programs []Program) (dir string, err error) {
	dir, err = s.folders.make()
	for _, p := range programs {
		for _, f := range p.Files {
			if err == nil {
				name := filepath.Join(dir, f.Name)
				if err = os.WriteFile(name, f.Data, 0o644); err == nil {
					err = os.Chmod(name, 0o644)
				}
			}
		}
	}
	if err != nil {
		if dir != "" {
			_ = os.RemoveAll(dir)
		}
		return "", fmt.Errorf("writing a program: %w", err)
	}
	return dir, nil
}

// capped keeps the start of what it reads, and reports once when the limit is exceeded.
type capped struct {
	most int
	over func()
	text []byte
	full bool
}

func (c *capped) read(from io.Reader) {
	buffer := make([]byte, 16<<10)
	for {
		n, err := from.Read(buffer)
		keep := min(n, c.most-len(c.text))
		c.text = append(c.text, buffer[:keep]...)
		if keep < n && !c.full {
			c.full = true
			c.over()
		}
		if err != nil {
			return
		}
	}
}

// rounded rounds x to a multiple of 1/parts.
func rounded(x, parts float64) float64 { return math.Round(x*parts) / parts }

// outcome converts how a program ended.
func (e ended) outcome(w written, language *Language, l Limits) Outcome {
	o := Outcome{
		ExitCode: e.Code, Signal: e.Signal, CPU: rounded(e.CPU, 1e6), Peak: rounded(float64(e.Peak)/(1<<20), 10),
		Stdout: strings.ToValidUTF8(string(w.out.text), "\uFFFD"), Stderr: strings.ToValidUTF8(string(w.err.text), "\uFFFD"),
	}
	if language.banner != nil {
		o.Stdout = o.Stdout[len(language.banner.FindString(o.Stdout)):]
	}
	switch {
	case e.Error != "":
		o.Status, o.Error = SandboxError, e.Error
	case w.out.full || w.err.full:
		o.Status = Output
	case e.Memory:
		o.Status = Memory
	case e.Deadline || e.Signal == int(unix.SIGXCPU) || l.CPU > 0 && e.CPU > l.seconds() || e.Signal == int(unix.SIGKILL) && l.CPU > 0 && e.CPU >= 0.8*l.CPU.Seconds():
		// With two programs, the first may be killed with the second before it reports its own end, and the two measurements of
		// its time differ slightly.
		o.Status = Timeout
	case e.Signal != 0 || !e.Exited:
		o.Status = Signal
	case e.Code != 0:
		o.Status = Failed
	default:
		o.Status = OK
	}
	if (o.Status == Failed || o.Status == Signal) && language.OutOfMemory != nil && language.OutOfMemory.Match(w.err.text) {
		o.Status = Memory
	}
	return o
}

// try tests whether this isolation works.
func (m means) try() error {
	if m.Tier == Landlock && m.Landlock == 0 {
		return errors.New("the kernel has no Landlock (needs Linux 5.13 or newer with lsm=landlock)")
	}
	hidden, done, err := scratch.New("", "rltrain-hidden-")
	if err != nil {
		return err
	}
	defer done()
	secret := filepath.Join(hidden, "secret")
	if err := errors.Join(os.Chmod(hidden, 0o755), os.WriteFile(secret, nil, 0o644), os.Chmod(secret, 0o644)); err != nil {
		return err
	}
	l := Usual()
	if m.Tier == Namespaces {
		l.Processes = 1
		if m.User {
			l.Processes = 2 // the first process has the same user
		}
	}
	j := job{Means: m, Limits: l, Boxes: []box{{Trial: &attempt{Secret: secret}, Argv: []string{""}, Read: machine()}}}
	if m.Tier != Namespaces {
		var f folders
		defer f.remove()
		if j.Dir, err = f.make(); err != nil {
			return err
		}
	}
	h, err := startHelper()
	if err != nil {
		return err
	}
	defer func() { _ = h.end() }()
	said, outputs, err := h.run(context.Background(), &j, [][]byte{nil})
	switch {
	case err != nil:
		return err
	case said.Boxes[0].Error != "":
		return errors.New(said.Boxes[0].Error)
	case said.Boxes[0].Signal != 0:
		return fmt.Errorf("the trial was killed by signal %d", said.Boxes[0].Signal)
	case string(outputs[0].out.text) != passed:
		return fmt.Errorf("the trial wrote %.80q", outputs[0].out.text)
	}
	return nil
}

// mayChangeUser reports whether this process may run others as another user.
func mayChangeUser() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return false
	}
	const both = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID
	return data[0].Effective&both == both
}

func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}
