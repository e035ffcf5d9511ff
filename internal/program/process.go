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

// process is a running program. One goroutine uses the other ends of its channels.
type process struct {
	command   *exec.Cmd
	control   io.Closer     // ends the guard
	questions chan []byte   // input lines; closing it closes the input
	answers   chan []byte   // output lines; closed at end of output
	killed    chan struct{} // closed by kill
	errors    lastLine
	answered  bool // it has replied at least once
}

// start starts a program under a guard, so that kill and the end of this process end all of its children. env is its
// environment, nil for that of this process.
func start(words, env []string) (*process, error) {
	command, control, err := guarded(words, env)
	if err != nil {
		return nil, fmt.Errorf("starting the program: %w", err)
	}
	r := &process{
		command: command, control: control,
		questions: make(chan []byte, maxWaiting), answers: make(chan []byte), killed: make(chan struct{}),
	}
	r.command.Stderr = &r.errors
	// A process that escaped the guard may keep the pipes open.
	r.command.WaitDelay = closeLimit
	defer r.command.ExtraFiles[0].Close()
	input, err := r.command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the program: %w", err)
	}
	output, err := r.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("starting the program: %w", err)
	}
	if err := r.command.Start(); err != nil {
		control.Close()
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
			// If the program stops reading, its exit or the timeout reports it.
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
		r.say(fmt.Appendf(nil, "a line longer than %d bytes", maxLine))
	}
}

// say sends a line on, unless the process was killed.
func (r *process) say(line []byte) bool {
	select {
	case r.answers <- line:
		return true
	case <-r.killed:
		return false
	}
}

// full reports whether the process still has unread questions.
func (r *process) full() bool { return len(r.questions) == cap(r.questions) }

// kill ends the program with its children and returns its exit status and its last line of standard error.
func (r *process) kill() (status, lastWords string) {
	_ = r.control.Close() // the guard ends all
	// The pid is not reused before Wait.
	late := time.AfterFunc(closeLimit, func() { _ = syscall.Kill(-r.command.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	close(r.killed)
	status = "exit status 0"
	if err := r.command.Wait(); err != nil {
		status = err.Error()
	}
	return status, r.errors.String()
}

// finish closes the input, waits for the end of the output, then kills what is left.
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

// lastLine keeps the start of the last non-empty line.
type lastLine struct {
	lock       sync.Mutex
	line, last []byte // the current line, and the last complete one
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
