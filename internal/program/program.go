// Package program asks a program outside of this process: a question a line, and an answer a line, both JSON. How
// programs are started, timed and started again is described in package reward, whose judges are such programs.
package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/rltrain/rltrain/internal/within"
	"github.com/rltrain/rltrain/internal/words"
)

const (
	maxWaiting = 64      // questions that a program has not answered yet
	maxLine    = 1 << 20 // bytes of a question or an answer, and of the line's end
	maxSilent  = 3       // ends in a row without an answer
	closeLimit = time.Second
)

// Program is a program outside of this process. Its batches take turns.
type Program struct {
	command []string
	timeout time.Duration

	turn    chan struct{} // held by the batch under way, which alone uses what follows
	running *process      // nil where none is
	lastID  uint64
	silent  int   // processes in a row that ended without an answer
	broken  error // why nothing is asked any more
}

// New finds the program of a command line, and starts nothing yet. timeout is that of each question.
func New(line string, timeout time.Duration) (*Program, error) {
	command, err := splitWords(line)
	if err != nil {
		return nil, err
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return nil, err
	}
	return &Program{command: command, timeout: timeout, turn: make(chan struct{}, 1)}, nil
}

// Close ends the program, and makes all later questions fail.
func (p *Program) Close() {
	p.turn <- struct{}{}
	defer func() { <-p.turn }()
	p.broken = errors.New("the program has been closed")
	if p.running != nil {
		p.running.finish(closeLimit)
		p.running = nil
	}
}

// Answer is what a program says to a question.
type Answer[T any] struct {
	ID    uint64
	Value T
	Err   error // why there is no value
}

// Ask asks n questions; question makes one, to be written as JSON, and read reads a line of the program, of which an
// error means that it is no answer. What has an error has no value. What ctx interrupts fails by its error, and the
// program is ended.
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

// batch is a batch of questions on its way through a program.
type batch[T any] struct {
	program  *Program
	question func(i int, id uint64) any
	read     func(line []byte) (Answer[T], error)
	values   []T
	errs     []error
	todo     []int     // questions not asked, or not yet of this process
	waiting  []waiting // for an answer, in the order in which they were asked
	timer    *time.Timer
	timed    uint64 // the question that the timer is set for
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
			if p.running, p.broken = start(p.command); p.broken != nil {
				continue
			}
		}
		b.send()
		if len(b.waiting) == 0 {
			continue
		}
		// A question's time begins when all before it are answered: a program may take one
		// after the other.
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
			b.giveUp(fmt.Errorf("%w within %v", within.ErrTimeout, p.timeout))
		case <-ctx.Done():
			p.running.kill()
			p.running = nil
			b.failAll(ctx.Err())
			return
		}
	}
}

// send asks as much as may wait.
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

// hear takes one answer. An error means that it is none.
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
	return fmt.Errorf("the program answers question %d, which is not open", a.ID)
}

// ended has the process's end seen to. Where it has answered before, all that waits is asked
// again; where not, the question that waited longest may be why.
func (b *batch[T]) ended() {
	if answered := b.program.running.answered; !answered {
		b.giveUp(nil)
		return
	}
	b.program.running.kill()
	b.again()
}

// giveUp kills the process for a reason, nil where it ended by itself, and fails the question
// that waited longest; the others are asked again.
func (b *batch[T]) giveUp(reason error) {
	p := b.program
	answered := p.running.answered
	status, said := p.running.kill()
	if reason == nil {
		reason = fmt.Errorf("the program ended without an answer: %s", status)
	}
	if said != "" {
		reason = fmt.Errorf("%w; its last line of errors: %s", reason, words.Quote(said))
	}
	b.fail(b.waiting[0].sample, reason)
	b.waiting = b.waiting[1:]
	b.again()
	if answered {
		return
	}
	if p.silent++; p.silent == maxSilent {
		p.broken = fmt.Errorf("the program was started %d times in a row and gave no answer, the last time: %w", maxSilent, reason)
	}
}

// again puts what waits in front of what is to be asked, of a new process.
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

// failAll fails all that has no answer.
func (b *batch[T]) failAll(err error) {
	for _, w := range b.waiting {
		b.fail(w.sample, err)
	}
	for _, sample := range b.todo {
		b.fail(sample, err)
	}
	b.waiting, b.todo = nil, nil
}

// encode writes a question as a line.
func encode(question any) ([]byte, error) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false) // for programs that look for a text without reading JSON
	if err := encoder.Encode(question); err != nil {
		return nil, err
	}
	if line.Len() > maxLine {
		return nil, fmt.Errorf("the question has %d bytes: at most %d can be asked", line.Len(), maxLine)
	}
	return line.Bytes(), nil
}
