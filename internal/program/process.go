package program

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// process is a program that runs. Of its channels one goroutine uses the other ends.
type process struct {
	command   *exec.Cmd
	questions chan []byte   // lines to its input, which ends when this is closed
	answers   chan []byte   // lines of its output, closed at its end
	killed    chan struct{} // closed by kill
	errors    lastLine
	answered  bool // at least once
}

// start starts a program in a process group of its own, so that all that it starts can be
// ended with it, and so that the keys which interrupt this process leave it alone.
func start(words []string) (*process, error) {
	r := &process{
		command:   exec.Command(words[0], words[1:]...),
		questions: make(chan []byte, maxWaiting), answers: make(chan []byte), killed: make(chan struct{}),
	}
	r.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.command.Stderr = &r.errors
	// Something outside of the group may hold the pipes open.
	r.command.WaitDelay = closeLimit
	input, err := r.command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the program: %w", err)
	}
	output, err := r.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the program: %w", err)
	}
	if err := r.command.Start(); err != nil {
		return nil, fmt.Errorf("starting the program: %w", err)
	}
	go r.write(input)
	go r.read(output)
	return r, nil
}

func (r *process) write(input io.WriteCloser) {
	defer input.Close()
	for {
		select {
		case line, more := <-r.questions:
			if !more {
				return
			}
			// A program that reads no more is found by its end, or by the time it takes.
			if _, err := input.Write(line); err != nil {
				return
			}
		case <-r.killed:
			return
		}
	}
}

func (r *process) read(output io.Reader) {
	defer close(r.answers)
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if !r.say(bytes.Clone(lines.Bytes())) {
			return
		}
	}
	if lines.Err() == bufio.ErrTooLong {
		r.say(fmt.Appendf(nil, "a line of more than %d bytes", maxLine))
	}
}

// say hands a line over, unless the process was killed.
func (r *process) say(line []byte) bool {
	select {
	case r.answers <- line:
		return true
	case <-r.killed:
		return false
	}
}

// full says that the process has not taken what it was asked before.
func (r *process) full() bool { return len(r.questions) == cap(r.questions) }

// kill ends the process and its group, and returns how it ended and the last line that it
// wrote as an error.
func (r *process) kill() (status, lastWords string) {
	// Its own id is not given to another one before Wait. An error means that it is gone.
	_ = syscall.Kill(-r.command.Process.Pid, syscall.SIGKILL)
	close(r.killed)
	status = "exit status 0"
	if err := r.command.Wait(); err != nil {
		status = err.Error()
	}
	return status, r.errors.String()
}

// finish ends the input and waits for the end of the output, then kills what is left.
func (r *process) finish(limit time.Duration) {
	close(r.questions)
	late := time.After(limit)
	for more := true; more; {
		select {
		case _, more = <-r.answers:
		case <-late:
			more = false
		}
	}
	r.kill()
}

// lastLine keeps the last line written that is not empty, or its beginning.
type lastLine struct {
	lock       sync.Mutex
	line, last []byte // under way, and finished before it
}

// Write implements io.Writer.
func (l *lastLine) Write(text []byte) (int, error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	for line := range bytes.Lines(text) {
		l.line = append(l.line, line[:min(len(line), maxLastLine-len(l.line))]...)
		if line[len(line)-1] == '\n' {
			if trimmed := bytes.TrimSpace(l.line); len(trimmed) > 0 {
				l.last = bytes.Clone(trimmed)
			}
			l.line = l.line[:0]
		}
	}
	return len(text), nil
}

const maxLastLine = 512

func (l *lastLine) String() string {
	l.lock.Lock()
	defer l.lock.Unlock()
	if trimmed := bytes.TrimSpace(l.line); len(trimmed) > 0 {
		return string(trimmed)
	}
	return string(l.last)
}
