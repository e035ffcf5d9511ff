package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/rltrain/rltrain/rl/policy"
)

// lane is a model name that requests can select: the base model or an adapter.
type lane struct {
	name    string
	dir     string           // of an adapter; "" for the base model
	policy  *policy.CausalLM // nil for a head, which answers questions alone
	decider *policy.Decider

	adapter int  // its number in the sampler
	jobs    int  // unfinished
	retired bool // unloaded: takes no requests and closes after its last job
}

// job generates the completions of one request.
type job struct {
	prompts [][]int32
	options policy.GenerateOptions
	stream  bool // report tokens as they are generated
	raw     bool // return log-probs before temperature and filters

	lane *lane
	next int     // prompt to submit next
	ids  []int64 // in the sampler
	left int     // unfinished completions

	lock   sync.Mutex
	news   []news
	err    error
	over   bool
	wake   chan struct{} // buffered: signals a change of the fields above
	queued bool          // counts as waiting
}

// news is progress of a choice: choice i·n + j is sample j of prompt i.
type news struct {
	choice int
	text   string
	ids    []int32
	logs   []float32
	done   *policy.Completion
}

func (j *job) tell(n news) {
	j.lock.Lock()
	j.news = append(j.news, n)
	j.lock.Unlock()
	j.rouse()
}

func (j *job) end(err error) {
	j.lock.Lock()
	j.err, j.over = errors.Join(j.err, err), true
	j.lock.Unlock()
	j.rouse()
}

func (j *job) rouse() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// heard returns the news since the last call. over means that no more follow.
func (j *job) heard() (all []news, over bool, err error) {
	j.lock.Lock()
	defer j.lock.Unlock()
	all, j.news = j.news, nil
	return all, j.over, j.err
}

// engine generates the completions of all requests, of all adapters, in one batch on the thread of run.
type engine struct {
	slots    int
	figures  *figures
	logf     func(format string, args ...any)
	finished chan struct{}

	lock    sync.Mutex
	orders  []func() // to run on the thread
	called  chan struct{}
	waiting int // requests without a slot
	most    int // limit of waiting
	asked   []*asked

	// Used only by the thread of run.
	lanes   []*lane // the model first
	sampler *policy.Sampler
	line    []*job // jobs with prompts without a slot, served round-robin so that a long list blocks nobody
	running map[*job]struct{}
}

var (
	errBusy    = errors.New("the queue is full; try again later")
	errStopped = errors.New("the server is stopping")
	errFailed  = errors.New("generation failed")
)

// order runs f on the thread between two steps.
func (e *engine) order(f func()) {
	e.lock.Lock()
	e.orders = append(e.orders, f)
	e.lock.Unlock()
	e.wake()
}

// wake ends the thread's wait for something to do.
func (e *engine) wake() {
	select {
	case e.called <- struct{}{}:
	default:
	}
}

// ask runs f on the thread and waits for its result.
func (e *engine) ask(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	e.order(func() { done <- guarded(e.logf, f) })
	select {
	case err := <-done:
		return err
	case <-e.finished:
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// full reports whether the queue is full.
func (e *engine) full() bool {
	e.lock.Lock()
	defer e.lock.Unlock()
	return e.waiting >= e.most
}

// submit queues a job of a lane.
func (e *engine) submit(l *lane, j *job) error {
	e.lock.Lock()
	if e.waiting >= e.most {
		e.lock.Unlock()
		return errBusy
	}
	e.waiting++
	e.lock.Unlock()
	j.lane, j.queued, j.left, j.wake = l, true, len(j.prompts)*j.options.Samples, make(chan struct{}, 1)
	e.order(func() {
		if l.retired || e.sampler == nil {
			e.leave(j)
			if l.retired {
				j.end(refuse(http.StatusNotFound, "model", "adapter %q was unloaded", l.name))
			} else {
				j.end(errFailed)
			}
			return
		}
		j.options.Adapter = l.adapter
		e.line = append(e.line, j)
		e.running[j] = struct{}{}
		l.jobs++
	})
	return nil
}

// leave removes a job from the queue.
func (e *engine) leave(j *job) {
	if !j.queued {
		return
	}
	j.queued = false
	e.lock.Lock()
	e.waiting--
	e.lock.Unlock()
}

// cancel ends a job without further news.
func (e *engine) cancel(j *job) {
	e.order(func() { e.drop(j) })
}

func (e *engine) drop(j *job) {
	if _, ours := e.running[j]; !ours {
		return
	}
	for _, id := range j.ids {
		_ = e.sampler.Cancel(id) // fails only for unknown ids
	}
	e.release(j)
}

// release removes a job from the engine.
func (e *engine) release(j *job) {
	e.leave(j)
	delete(e.running, j)
	e.line = slices.DeleteFunc(e.line, func(other *job) bool { return other == j })
	j.lane.jobs--
}

// run generates until ctx ends. Then it ends all jobs with errStopped and closes the engine.
func (e *engine) run(ctx context.Context) {
	defer close(e.finished)
	for ctx.Err() == nil {
		e.obey()
		answered := e.answer(ctx)
		if !e.step() && !answered {
			select {
			case <-e.called:
			case <-ctx.Done():
			}
		}
	}
	e.obey()
	e.fail(errStopped)
	e.close()
}

func (e *engine) obey() {
	e.lock.Lock()
	orders := e.orders
	e.orders = nil
	e.lock.Unlock()
	for _, f := range orders {
		f()
	}
}

// step generates a token for each completion in a slot. It returns false if there is none.
func (e *engine) step() bool {
	e.lanes = slices.DeleteFunc(e.lanes, e.goes)
	e.fill()
	if e.sampler == nil || e.sampler.Unfinished() == 0 {
		return false
	}
	if err := guarded(e.logf, e.sampler.Step); err != nil {
		e.repair(err)
	}
	return true
}

// goes closes an unloaded lane after its last completion.
func (e *engine) goes(l *lane) bool {
	if !l.retired || l.jobs > 0 || e.sampler != nil && e.sampler.Unload(l.adapter) != nil {
		return false
	}
	l.policy.Close()
	return true
}

// fill assigns free slots to waiting jobs, round-robin.
func (e *engine) fill() {
	for len(e.line) > 0 && e.sampler != nil && e.sampler.Unfinished() < e.slots {
		j := e.line[0]
		e.line = e.line[1:]
		i := j.next
		id, err := e.sampler.Submit(j.prompts[i], uint64(i), j.options, func(h policy.Progress) { e.hear(j, i, h) })
		if err != nil { // the request was validated, so this is a server error
			e.drop(j)
			j.end(err)
			continue
		}
		e.leave(j)
		j.ids = append(j.ids, id)
		if j.next++; j.next < len(j.prompts) {
			e.line = append(e.line, j)
		}
	}
}

// hear forwards a generated token.
func (e *engine) hear(j *job, prompt int, h policy.Progress) {
	if h.Err != nil {
		e.drop(j)
		j.end(fmt.Errorf("%w: %w", errFailed, h.Err))
		return
	}
	e.figures.written(j.lane.name)
	if !h.Done && !j.stream {
		return
	}
	n := news{choice: prompt*j.options.Samples + h.Sample, text: h.Text}
	last := len(h.Completion.IDs) - 1
	n.ids, n.logs = h.Completion.IDs[last:last+1:last+1], j.logs(*h.Completion)[last:last+1:last+1]
	if h.Done {
		n.done = h.Completion
	}
	j.tell(n)
	if h.Done {
		if j.left--; j.left == 0 {
			e.release(j)
			j.end(nil)
		}
	}
}

// logs returns the log-probs of a completion that the server returns.
func (j *job) logs(c policy.Completion) []float32 {
	if j.raw {
		return c.LogProbs
	}
	return c.BehaviorLogProbs
}

// start creates the sampler and loads all adapters. A head has none.
func (e *engine) start() (err error) {
	if e.lanes[0].policy == nil {
		return nil
	}
	if e.sampler, err = e.lanes[0].policy.NewSampler(e.slots); err != nil {
		return err
	}
	for _, l := range e.lanes[1:] {
		if l.adapter, err = e.sampler.Load(l.policy); err != nil {
			e.sampler.Close()
			e.sampler = nil
			return err
		}
	}
	return nil
}

// repair ends all jobs after a failure of the sampler and creates a new one.
func (e *engine) repair(err error) {
	e.fail(fmt.Errorf("%w: %w", errFailed, err))
	e.sampler.Close()
	if err := e.start(); err != nil {
		e.sampler = nil
	}
}

// fail ends all jobs.
func (e *engine) fail(err error) {
	for j := range e.running {
		e.release(j)
		j.end(err)
	}
}

// close frees the sampler and the adapters, not the base model.
func (e *engine) close() {
	if e.sampler != nil {
		e.sampler.Close()
		e.sampler = nil
	}
	for _, l := range e.lanes[1:] {
		l.policy.Close()
	}
	e.lanes = nil
}
