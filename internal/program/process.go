package program

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"time"
)

// process is a running program. One goroutine uses the other ends of its channels.
type process struct {
	child     *child
	questions chan []byte   // input lines; closing it closes the input
	answers   chan []byte   // output lines; closed at end of output
	killed    chan struct{} // closed by kill
	answered  bool          // it has replied at least once
}

// start starts a program with an environment, nil for that of this process.
func start(words, env []string) (*process, error) {
	c, input, output, err := launch(words, env)
	if err != nil {
		return nil, err
	}
	r := &process{child: c, questions: make(chan []byte, maxWaiting), answers: make(chan []byte), killed: make(chan struct{})}
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
	close(r.killed)
	status = "exit status 0"
	if err := r.child.kill(); err != nil {
		status = err.Error()
	}
	return status, r.child.errors.String()
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
