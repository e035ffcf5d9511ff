package program

import (
	"bytes"
	"sync"
)

// Once is a program that runs once: it gets its input at its start, and its last line of output is its result.
type Once struct {
	process *process
	end     sync.Once
	done    chan struct{}

	last, status, said string // once done
}

// Start starts the program of a command, which [Look] returned, with an environment and an input.
func Start(command, env []string, input []byte) (*Once, error) {
	p, err := start(command, env)
	if err != nil {
		return nil, err
	}
	o := &Once{process: p, done: make(chan struct{})}
	p.questions <- input
	close(p.questions)
	go func() {
		defer close(o.done)
		for line := range p.answers {
			if line = bytes.TrimSpace(line); len(line) > 0 {
				o.last = string(line)
			}
		}
		o.Kill()
	}()
	return o, nil
}

// Done is closed when the program has ended.
func (o *Once) Done() <-chan struct{} { return o.done }

// Kill ends the program with all that it started.
func (o *Once) Kill() { o.end.Do(func() { o.status, o.said = o.process.kill() }) }

// Result returns the last line of output, how the program ended and its last line of standard error. It has ended.
func (o *Once) Result() (last, status, said string) {
	<-o.done
	return o.last, o.status, o.said
}
