package program

import (
	"fmt"
	"io"
	"sync"
)

// Pipe is a running program with its input and output. Its environment is [Environment].
type Pipe struct {
	io.Reader
	io.Writer
	child *child
	close sync.Once
}

// Open starts the program of a command line.
func Open(line string) (*Pipe, error) {
	words, err := Look(line)
	if err != nil {
		return nil, err
	}
	c, input, output, err := launch(words, Environment())
	if err != nil {
		return nil, err
	}
	return &Pipe{Reader: output, Writer: input, child: c}, nil
}

// Close ends the program with its children.
func (p *Pipe) Close() error {
	p.close.Do(func() { _ = p.child.kill() })
	return nil
}

// Ended closes the program and adds its last words to an error that its end has caused.
func (p *Pipe) Ended(err error) error {
	_ = p.Close()
	if last := p.child.errors.String(); last != "" {
		return fmt.Errorf("%w (%s)", err, last)
	}
	return err
}
