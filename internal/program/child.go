package program

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// child is a program under a guard, so that kill and the end of this process end all of its children.
type child struct {
	command *exec.Cmd
	control io.Closer // ends the guard
	errors  lastLine
}

// launch starts a program and returns its input and output. env is its environment, nil for that of this process.
func launch(words, env []string) (c *child, input io.WriteCloser, output io.Reader, err error) {
	command, control, err := guarded(words, env)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("starting the program: %w", err)
	}
	c = &child{command: command, control: control}
	command.Stderr = &c.errors
	// A process that escaped the guard may keep the pipes open.
	command.WaitDelay = closeLimit
	defer command.ExtraFiles[0].Close()
	if input, err = command.StdinPipe(); err == nil {
		if output, err = command.StdoutPipe(); err == nil {
			err = command.Start()
		}
	}
	if err != nil {
		control.Close()
		return nil, nil, nil, fmt.Errorf("starting the program: %w", err)
	}
	return c, input, output, nil
}

// kill ends the program with its children and returns how it ended.
func (c *child) kill() error {
	_ = c.control.Close() // the guard ends all
	// The pid is not reused before Wait.
	late := time.AfterFunc(closeLimit, func() { _ = syscall.Kill(-c.command.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	return c.command.Wait()
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
