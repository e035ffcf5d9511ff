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

// helper is a process of the helper, as the process that it works for has it. It serves one job after another: to start
// it takes as long as to start the program that it runs.
type helper struct {
	command    *exec.Cmd
	socket     *os.File // takes the open files of a job; its end is that of the helper
	complaints bytes.Buffer
}

func startHelper() (*helper, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("connecting to the helper of the sandbox: %w", err)
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
		return nil, fmt.Errorf("starting the helper of the sandbox: %w", err)
	}
	return h, nil
}

// end ends the helper and all that it runs, and says what became of it.
func (h *helper) end() error {
	_ = h.socket.Close()
	late := time.AfterFunc(patience, func() { _ = h.command.Process.Kill() })
	defer late.Stop()
	if err := h.command.Wait(); err != nil {
		return fmt.Errorf("the helper of the sandbox: %w %s", err, lastLine(h.complaints.Bytes()))
	}
	return nil
}

// patience is how long the helper may take beside the programs' time.
const patience = 20 * time.Second

// written is what a program wrote.
type written struct {
	out, err *capped
}

// run has the helper do a job. After an error the helper is of no more use.
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
		return r, nil, fmt.Errorf("asking the helper of the sandbox: %w", err)
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
		// Nothing that may write is left; what is not read to its end yet has one.
		_ = p.ours[i].SetReadDeadline(time.Now().Add(time.Second))
	}
	pipes.Wait()
	switch {
	case err != nil:
		return r, nil, fmt.Errorf("asking the helper of the sandbox: %w", err)
	case len(said) == 0:
		return r, nil, errors.New("the helper of the sandbox gave no answer")
	}
	if err := json.Unmarshal(said, &r); err != nil {
		return r, nil, fmt.Errorf("the answer of the sandbox's helper: %w", err)
	}
	if r.Error != "" {
		return r, nil, errors.New(r.Error)
	}
	return r, outputs, nil
}

// send passes open files on.
func (h *helper) send(files []*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return unix.Sendmsg(int(h.socket.Fd()), []byte{1}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL)
}

// pipes are those of a job.
type pipes struct {
	ours    []*os.File // the ends on this side
	theirs  []*os.File
	stopped sync.Once
}

func newPipes(boxes int) (*pipes, error) {
	p := &pipes{}
	for i := range firstStream + 3*boxes {
		// The helper reads its job, its end, and the inputs of programs, and writes the rest.
		r, w, err := os.Pipe()
		if err != nil {
			p.close()
			return nil, fmt.Errorf("making a pipe: %w", err)
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

// feed writes a text, whose reader may have gone.
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
