// Package program talks to external programs over JSON lines: one question per line, one answer per line. Package reward
// documents how programs are started, timed and restarted.
package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/within"
	"github.com/rltrain/rltrain/internal/words"
)

// mostSaid is how many characters of a program's last words an error quotes: Python's name a file and what is wrong with it.
const mostSaid = 300

const (
	maxWaiting = 64      // questions in flight
	maxLine    = 1 << 20 // bytes of a question or answer, including the newline
	maxSilent  = 3       // consecutive exits without an answer
	closeLimit = time.Second
)

// Program is an external program. Its batches take turns.
type Program struct {
	command []string
	env     []string // nil = that of this process
	state   bool     // the process remembers earlier questions: another cannot answer in its place
	timeout time.Duration
	late    func(error) // nil = nothing

	turn    chan struct{} // held by the current batch, which alone uses the fields below
	running *process      // nil if not running
	lastID  uint64
	silent  int   // consecutive processes that exited without an answer
	broken  error // why no more questions are sent
}

// New looks up the program of a command line without starting it. timeout applies to each question;
// late, unless nil, gets the error of each question that is not answered in time, at once.
func New(line string, timeout time.Duration, late func(error)) (*Program, error) {
	command, err := Look(line)
	if err != nil {
		return nil, err
	}
	return &Program{command: command, timeout: timeout, late: late, turn: make(chan struct{}, 1)}, nil
}

// NewSession is New for a program that remembers earlier questions: if it exits, the open questions fail instead of going to
// another process, which the next questions start. Its environment is [Environment].
func NewSession(line string, timeout time.Duration) (*Program, error) {
	p, err := New(line, timeout, nil)
	if err != nil {
		return nil, err
	}
	p.state, p.env = true, Environment()
	return p, nil
}

// Environment is the environment variables that a program gets with which a model talks: where programs, files of the user and
// temporary files are, and the language; nothing that may be secret.
func Environment() []string {
	env := []string{} // nil would be that of this process
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// Close stops the program; later questions fail.
func (p *Program) Close() {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	p.broken = errors.New("the program is closed")
	if p.running != nil {
		p.running.finish(closeLimit)
		p.running = nil
	}
}

// Answer is a reply to a question.
type Answer[T any] struct {
	ID    uint64
	Value T
	Err   error // why there is no value
}

// Ask sends n questions. question returns one, to be encoded as JSON; read decodes a line of the program and returns an
// error for an invalid one. A sample with an error has no value. If ctx ends, the open questions fail with its error and
// the program is killed.
func Ask[T any](ctx context.Context, p *Program, n int, question func(i int, id uint64) any, read func(line []byte) (Answer[T], error)) (values []T, errs []error) {
	b := &batch[T]{program: p, question: question, read: read, values: make([]T, n), errs: make([]error, n)}
	for i := range n {
		b.todo = append(b.todo, i)
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
		b.run(ctx)
	case <-ctx.Done():
		b.failAll(ctx.Err())
	}
	return b.values, b.errs
}

// batch is the state of a batch of questions.
type batch[T any] struct {
	program  *Program
	question func(i int, id uint64) any
	read     func(line []byte) (Answer[T], error)
	values   []T
	errs     []error
	todo     []int     // questions not yet sent to this process
	waiting  []waiting // in flight, in the order sent
	timer    *time.Timer
	timed    uint64 // the question with the running timer
}

type waiting struct {
	id     uint64
	sample int
}

func (b *batch[T]) run(ctx context.Context) {
	p := b.program
	b.timer = time.NewTimer(p.timeout)
	defer b.timer.Stop()
	for len(b.todo)+len(b.waiting) > 0 {
		if p.broken != nil {
			b.failAll(p.broken)
			return
		}
		if p.running == nil {
			if p.running, p.broken = start(p.command, p.env); p.broken != nil {
				continue
			}
		}
		b.send()
		if len(b.waiting) == 0 {
			continue
		}
		// The timer of a question starts when all earlier ones are answered, because a program may handle one at a time.
		if first := b.waiting[0].id; first != b.timed {
			b.timed = first
			b.timer.Reset(p.timeout)
		}
		select {
		case line, more := <-p.running.answers:
			if !more {
				b.ended()
			} else if err := b.hear(line); err != nil {
				b.giveUp(err)
			}
		case <-b.timer.C:
			b.giveUp(fmt.Errorf("%w after %v", within.ErrTimeout, p.timeout))
		case <-ctx.Done():
			p.running.kill()
			p.running = nil
			b.failAll(ctx.Err())
			return
		}
	}
}

// send sends as many questions as may be in flight.
func (b *batch[T]) send() {
	p := b.program
	for len(b.todo) > 0 && len(b.waiting) < maxWaiting && !p.running.full() {
		sample := b.todo[0]
		b.todo = b.todo[1:]
		p.lastID++
		line, err := encode(b.question(sample, p.lastID))
		if err != nil {
			b.fail(sample, err)
			continue
		}
		p.running.questions <- line
		b.waiting = append(b.waiting, waiting{p.lastID, sample})
	}
}

// hear handles one reply. An error means that the line is invalid.
func (b *batch[T]) hear(line []byte) error {
	a, err := b.read(line)
	if err != nil {
		return err
	}
	for at, w := range b.waiting {
		if w.id != a.ID {
			continue
		}
		b.waiting = append(b.waiting[:at], b.waiting[at+1:]...)
		b.program.running.answered, b.program.silent = true, 0
		b.values[w.sample], b.errs[w.sample] = a.Value, a.Err
		return nil
	}
	return fmt.Errorf("reply to question %d, which is not open", a.ID)
}

// ended handles the exit of the process. If it had replied before, all open questions are sent again; if not, the oldest
// one fails, because it may be the cause.
func (b *batch[T]) ended() {
	if answered := b.program.running.answered; !answered || b.program.state {
		b.giveUp(nil)
		return
	}
	b.program.running.kill()
	b.again()
}

// giveUp kills the process and fails the oldest question; the others are sent again. reason is nil if the process exited
// by itself.
func (b *batch[T]) giveUp(reason error) {
	p := b.program
	answered := p.running.answered
	status, said := p.running.kill()
	if reason == nil {
		reason = fmt.Errorf("the program exited without an answer: %s", status)
	}
	if said != "" {
		reason = fmt.Errorf("%w; last line of standard error: %s", reason, words.QuoteTo(said, mostSaid))
	}
	if p.late != nil && errors.Is(reason, within.ErrTimeout) {
		p.late(reason)
	}
	b.fail(b.waiting[0].sample, reason)
	b.waiting = b.waiting[1:]
	b.again()
	if answered {
		return
	}
	if p.silent++; p.silent == maxSilent {
		p.broken = fmt.Errorf("the program was started %d times without an answer; last error: %v", maxSilent, reason) // not itself a time-out
	}
}

// again queues the open questions first, for a new process.
func (b *batch[T]) again() {
	samples := make([]int, len(b.waiting), len(b.waiting)+len(b.todo))
	for i, w := range b.waiting {
		samples[i] = w.sample
	}
	b.todo, b.waiting, b.program.running = append(samples, b.todo...), nil, nil
}

func (b *batch[T]) fail(sample int, err error) {
	b.errs[sample] = err
}

// failAll fails all unanswered questions.
func (b *batch[T]) failAll(err error) {
	for _, w := range b.waiting {
		b.fail(w.sample, err)
	}
	for _, sample := range b.todo {
		b.fail(sample, err)
	}
	b.waiting, b.todo = nil, nil
}

// encode writes a question as one line.
func encode(question any) ([]byte, error) {
	line, err := files.EncodeLine(question) // which programs can search, as it has no escapes
	if err != nil {
		return nil, err
	}
	line = append(line, '\n')
	if len(line) > maxLine {
		return nil, fmt.Errorf("the question has %d bytes, maximum %d", len(line), maxLine)
	}
	return line, nil
}
