package program

import (
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Pipe is a running program with its input and output. Its environment is [Environment].
type Pipe struct {
	io.Reader
	io.Writer
	command *exec.Cmd
	control io.Closer // ends the guard
	errors  lastLine
	close   sync.Once
}

// Open starts the program of a command line.
func Open(line string) (*Pipe, error) {
	words, err := Words(line)
	if err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(words[0]); err != nil {
		return nil, err
	}
	command, control, err := guarded(words, Environment())
	if err != nil {
		return nil, err
	}
	p := &Pipe{command: command, control: control}
	command.Stderr, command.WaitDelay = &p.errors, closeLimit
	defer command.ExtraFiles[0].Close()
	if p.Writer, err = command.StdinPipe(); err == nil {
		if p.Reader, err = command.StdoutPipe(); err == nil {
			err = command.Start()
		}
	}
	if err != nil {
		control.Close()
		return nil, fmt.Errorf("starting the program: %w", err)
	}
	return p, nil
}

// Close ends the program with its children.
func (p *Pipe) Close() error {
	p.close.Do(func() {
		_ = p.control.Close() // the guard ends all
		late := time.AfterFunc(closeLimit, func() { _ = syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL) })
		defer late.Stop()
		_ = p.command.Wait()
	})
	return nil
}

// Ended closes the program and adds its last words to an error that its end has caused.
func (p *Pipe) Ended(err error) error {
	_ = p.Close()
	if last := p.errors.String(); last != "" {
		return fmt.Errorf("%w (%s)", err, last)
	}
	return err
}
