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
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// helper is the client of a helper process. It serves one job after another, because starting a helper takes as long as
// starting the program.
type helper struct {
	command    *exec.Cmd
	socket     *os.File // receives the open files of a job; closing it ends the helper
	complaints bytes.Buffer
}

func startHelper() (*helper, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("connecting to the sandbox helper: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "helper"), os.NewFile(uintptr(ends[1]), "jobs")
	defer func() { _ = theirs.Close() }()
	h := &helper{command: &exec.Cmd{Path: "/proc/self/exe", Args: []string{helperName}, Env: []string{"GOMAXPROCS=2", "GOTRACEBACK=single"}}, socket: ours}
	h.command.Stderr = &h.complaints
	h.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	h.command.WaitDelay = time.Second
	h.command.ExtraFiles = []*os.File{theirs}
	if err := h.command.Start(); err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("starting the sandbox helper: %w", err)
	}
	return h, nil
}

// end stops the helper and everything that it runs, and returns its error.
func (h *helper) end() error {
	_ = h.socket.Close()
	late := time.AfterFunc(patience, func() { _ = h.command.Process.Kill() })
	defer late.Stop()
	if err := h.command.Wait(); err != nil {
		return fmt.Errorf("sandbox helper: %w %s", err, lastLine(h.complaints.Bytes()))
	}
	return nil
}

// patience is the time that the helper may take in addition to the programs.
const patience = 20 * time.Second

// written is a program's output.
type written struct {
	out, err *capped
}

// run runs a job. After an error, the helper must not be used again.
func (h *helper) run(ctx context.Context, j *job, inputs [][]byte) (report, []written, error) {
	var r report
	text, err := json.Marshal(j)
	if err != nil {
		return r, nil, err
	}
	p, err := newPipes(len(j.Boxes))
	if err != nil {
		return r, nil, err
	}
	defer p.close()
	if err := h.send(p.theirs); err != nil {
		return r, nil, fmt.Errorf("calling the sandbox helper: %w", err)
	}
	p.closeTheirs()
	outputs := make([]written, len(j.Boxes))
	var pipes sync.WaitGroup
	pipes.Go(func() { p.feed(jobFile, text) })
	for i := range j.Boxes {
		at := firstStream + 3*i
		outputs[i] = written{&capped{most: j.Limits.Output, over: p.stop}, &capped{most: j.Limits.Output, over: p.stop}}
		pipes.Go(func() { p.feed(at, inputs[i]) })
		pipes.Go(func() { outputs[i].out.read(p.ours[at+1]) })
		pipes.Go(func() { outputs[i].err.read(p.ours[at+2]) })
	}
	finished := make(chan struct{})
	var guard sync.WaitGroup
	guard.Go(func() {
		limit := time.NewTimer(j.Limits.Wall + patience)
		defer limit.Stop()
		select {
		case <-ctx.Done():
			p.stop()
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
	said, err := io.ReadAll(p.ours[reportFile])
	close(finished)
	guard.Wait()
	for i := range p.ours {
		// No writer is left; an output that was not read to its end still has one.
		_ = p.ours[i].SetReadDeadline(time.Now().Add(time.Second))
	}
	pipes.Wait()
	switch {
	case err != nil:
		return r, nil, fmt.Errorf("calling the sandbox helper: %w", err)
	case len(said) == 0:
		return r, nil, errors.New("the sandbox helper did not reply")
	}
	if err := json.Unmarshal(said, &r); err != nil {
		return r, nil, fmt.Errorf("reply of the sandbox helper: %w", err)
	}
	if r.Error != "" {
		return r, nil, errors.New(r.Error)
	}
	return r, outputs, nil
}

// send sends open files to the helper.
func (h *helper) send(files []*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return unix.Sendmsg(int(h.socket.Fd()), []byte{1}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
}

// pipes are the pipes of a job.
type pipes struct {
	ours    []*os.File // this process's ends
	theirs  []*os.File
	stopped sync.Once
}

func newPipes(boxes int) (*pipes, error) {
	p := &pipes{}
	for i := range firstStream + 3*boxes {
		// The helper reads the job, the control pipe and the programs' inputs, and writes the rest.
		r, w, err := os.Pipe()
		if err != nil {
			p.close()
			return nil, fmt.Errorf("creating a pipe: %w", err)
		}
		if i == jobFile || i == controlFile || i >= firstStream && (i-firstStream)%3 == 0 {
			p.theirs, p.ours = append(p.theirs, r), append(p.ours, w)
		} else {
			p.theirs, p.ours = append(p.theirs, w), append(p.ours, r)
		}
	}
	return p, nil
}

// stop ends the programs.
func (p *pipes) stop() { p.stopped.Do(func() { _ = p.ours[controlFile].Close() }) }

// feed writes a text; the reader may be gone.
func (p *pipes) feed(i int, text []byte) {
	_, _ = p.ours[i].Write(text)
	_ = p.ours[i].Close()
}

func (p *pipes) closeTheirs() {
	for _, f := range p.theirs {
		_ = f.Close()
	}
}

func (p *pipes) close() {
	p.closeTheirs()
	for _, f := range p.ours {
		_ = f.Close()
	}
}
