package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long the helper may take beside the programs' time.
const patience = 20 * time.Second

// once runs programs in one helper.
func (s *Sandbox) once(ctx context.Context, l Limits, programs []Program) ([]Outcome, error) {
	j := job{Means: s.means, Limits: l}
	folder := home
	if s.means.Tier != Namespaces {
		dir, err := writeFiles(programs)
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		j.Dir, folder = dir, dir
	}
	inputs := make([][]byte, len(programs))
	for i, p := range programs {
		b := box{Argv: []string{p.Language.Interpreter}, Env: p.Env, Files: p.Files, Read: p.Language.Read}
		for _, arg := range p.Argv {
			b.Argv = append(b.Argv, strings.ReplaceAll(arg, "{}", folder))
		}
		if p.Language.Roomy {
			j.Limits.AddressSpace = 0
		}
		j.Boxes, inputs[i] = append(j.Boxes, b), p.Stdin
	}
	said, outputs, err := j.help(ctx, inputs)
	if err != nil {
		return nil, err
	}
	outcomes := make([]Outcome, len(programs))
	for i, e := range said.Boxes {
		o := e.outcome(outputs[i], programs[i].Language, l)
		o.Tier = s.means.Tier
		if folder != home { // programs say the same whatever the tier
			o.Stdout, o.Stderr = strings.ReplaceAll(o.Stdout, folder, home), strings.ReplaceAll(o.Stderr, folder, home)
		}
		outcomes[i] = o
	}
	return outcomes, nil
}

// shared is a folder that the users of sandboxes can reach: that of TMPDIR may be private.
func shared() string {
	if info, err := os.Stat("/tmp"); err == nil && info.IsDir() {
		return "/tmp"
	}
	return os.TempDir()
}

// writeFiles puts the files of programs into a new folder that all may read.
func writeFiles(programs []Program) (dir string, err error) {
	if dir, err = os.MkdirTemp(shared(), fmt.Sprintf("rltrain-sandbox-%d-", os.Getpid())); err != nil {
		return "", err
	}
	err = os.Chmod(dir, 0o755)
	for _, p := range programs {
		for _, f := range p.Files {
			if err == nil {
				name := filepath.Join(dir, f.Name)
				if err = os.WriteFile(name, []byte(f.Data), 0o644); err == nil {
					err = os.Chmod(name, 0o644)
				}
			}
		}
	}
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", fmt.Errorf("writing a program: %w", err)
	}
	return dir, nil
}

// written is what a program wrote.
type written struct {
	out, err *capped
}

// help has a helper run the job.
func (j *job) help(ctx context.Context, inputs [][]byte) (report, []written, error) {
	var r report
	text, err := json.Marshal(j)
	if err != nil {
		return r, nil, err
	}
	h, err := newHelper(len(j.Boxes))
	if err != nil {
		return r, nil, err
	}
	defer h.close()
	if err := h.command.Start(); err != nil {
		return r, nil, fmt.Errorf("starting the helper of the sandbox: %w", err)
	}
	h.closeTheirs()
	outputs := make([]written, len(j.Boxes))
	var pipes sync.WaitGroup
	pipes.Go(func() { h.feed(0, text) })
	for i := range j.Boxes {
		at := 3 + 3*i
		outputs[i] = written{&capped{most: j.Limits.Output, over: h.stop}, &capped{most: j.Limits.Output, over: h.stop}}
		pipes.Go(func() { h.feed(at, inputs[i]) })
		pipes.Go(func() { outputs[i].out.read(h.ours[at+1]) })
		pipes.Go(func() { outputs[i].err.read(h.ours[at+2]) })
	}
	finished := make(chan struct{})
	var guard sync.WaitGroup
	guard.Go(func() {
		limit := time.NewTimer(j.Limits.Wall + patience)
		defer limit.Stop()
		select {
		case <-ctx.Done():
			h.stop()
		case <-limit.C:
		case <-finished:
			return
		}
		select {
		case <-finished:
		case <-time.After(patience):
			_ = h.command.Process.Kill()
		}
	})
	said, err := io.ReadAll(h.ours[2])
	waited := h.command.Wait()
	close(finished)
	guard.Wait()
	for i := range h.ours {
		// Nothing that may write is left; what is not read to its end yet has one.
		_ = h.ours[i].SetReadDeadline(time.Now().Add(time.Second))
	}
	pipes.Wait()
	switch {
	case err != nil:
		return r, nil, fmt.Errorf("asking the helper of the sandbox: %w", err)
	case len(said) == 0:
		return r, nil, fmt.Errorf("the helper of the sandbox gave no answer: %v %s", waited, lastLine(h.complaints.Bytes()))
	}
	if err := json.Unmarshal(said, &r); err != nil {
		return r, nil, fmt.Errorf("the answer of the sandbox's helper: %w", err)
	}
	if r.Error != "" {
		return r, nil, errors.New(r.Error)
	}
	return r, outputs, nil
}

// helper is a process of the helper and the pipes to it.
type helper struct {
	command    *exec.Cmd
	ours       []*os.File // the ends of the pipes on this side, from the helper's file jobFile
	theirs     []*os.File
	stopped    sync.Once
	complaints bytes.Buffer
}

func newHelper(boxes int) (*helper, error) {
	h := &helper{command: &exec.Cmd{Path: "/proc/self/exe", Args: []string{helperName}, Env: []string{"GOGC=off", "GOMAXPROCS=2", "GOTRACEBACK=single"}}}
	h.command.Stderr = &h.complaints
	h.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	h.command.WaitDelay = time.Second
	for i := range 3 + 3*boxes {
		// The helper reads its job, its end, and the inputs of programs, and writes the rest.
		r, w, err := os.Pipe()
		if err != nil {
			h.close()
			return nil, fmt.Errorf("making a pipe: %w", err)
		}
		if i < 2 || i > 2 && i%3 == 0 {
			h.theirs, h.ours = append(h.theirs, r), append(h.ours, w)
		} else {
			h.theirs, h.ours = append(h.theirs, w), append(h.ours, r)
		}
	}
	h.command.ExtraFiles = h.theirs
	return h, nil
}

// stop ends the programs.
func (h *helper) stop() { h.stopped.Do(func() { _ = h.ours[controlFile-jobFile].Close() }) }

// feed writes a text, whose reader may have gone.
func (h *helper) feed(i int, text []byte) {
	_, _ = h.ours[i].Write(text)
	_ = h.ours[i].Close()
}

func (h *helper) closeTheirs() {
	for _, f := range h.theirs {
		_ = f.Close()
	}
}

func (h *helper) close() {
	h.closeTheirs()
	for _, f := range h.ours {
		_ = f.Close()
	}
}

// capped keeps the beginning of what is read, and says once when it is too much.
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

// outcome is how a program ended.
func (e ended) outcome(w written, language *Language, l Limits) Outcome {
	o := Outcome{
		ExitCode: e.Code, Signal: e.Signal, CPU: e.CPU, Peak: float64(e.Peak) / (1 << 20),
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
	case e.Deadline || e.Signal == int(unix.SIGXCPU) || e.Signal == int(unix.SIGKILL) && l.CPU > 0 && e.CPU >= (l.CPU-200*time.Millisecond).Seconds():
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

// try runs a trial.
func (m means) try() error {
	if m.Tier == Landlock && m.Landlock == 0 {
		return errors.New("the kernel has no Landlock (Linux 5.13 or newer, started with lsm=landlock)")
	}
	secret, err := os.CreateTemp("", "rltrain-trial-")
	if err != nil {
		return err
	}
	defer func() { _, _ = secret.Close(), os.Remove(secret.Name()) }()
	if err := secret.Chmod(0o644); err != nil {
		return err
	}
	l := Usual()
	if m.Tier == Namespaces {
		l.Processes = 1
		if m.User {
			l.Processes = 2 // the first process is of the same user
		}
	}
	j := job{Means: m, Limits: l, Boxes: []box{{Trial: &attempt{Secret: secret.Name()}, Argv: []string{""}, Read: machine()}}}
	if m.Tier != Namespaces {
		if j.Dir, err = writeFiles(nil); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(j.Dir) }()
	}
	said, outputs, err := j.help(context.Background(), [][]byte{nil})
	switch {
	case err != nil:
		return err
	case said.Boxes[0].Error != "":
		return errors.New(said.Boxes[0].Error)
	case said.Boxes[0].Signal != 0:
		return fmt.Errorf("the trial was ended by signal %d", said.Boxes[0].Signal)
	case string(outputs[0].out.text) != passed:
		return fmt.Errorf("the trial wrote %.80q", outputs[0].out.text)
	}
	return nil
}

// mayChangeUser tells whether this process has the rights to run another as another user.
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
