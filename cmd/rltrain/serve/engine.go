package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"rltrain/rl/policy"
)

// lane is one name that requests can ask for: the model, or an adapter on it. Its requests share a batch; the lanes take
// turns, a step of the engine each.
type lane struct {
	name    string
	dir     string // of an adapter
	policy  *policy.Token
	sampler *policy.Sampler
	waiting []*job // with prompts that have no slot yet: each gives one in turn, so a long list holds nobody up
	running map[*job]struct{}
	retired bool // takes no more requests, and is closed with the last that it has
}

func (l *lane) idle() bool { return len(l.waiting) == 0 && len(l.running) == 0 }

// job is the completions that one request asks for.
type job struct {
	prompts [][]int32
	options policy.GenerateOptions
	stream  bool // tokens are told as they come, not only the whole

	lane *lane
	next int     // prompt that is submitted next
	ids  []int64 // of the sampler
	left int     // completions that have not ended

	lock   sync.Mutex
	news   []news
	err    error
	over   bool
	wake   chan struct{} // has room for one: something above has changed
	queued bool          // counts among those that wait
}

// news is what became of a choice: choice i·n + j is sample j of prompt i.
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

// heard returns what was told since the last call. Once over is true nothing follows.
func (j *job) heard() (all []news, over bool, err error) {
	j.lock.Lock()
	defer j.lock.Unlock()
	all, j.news = j.news, nil
	return all, j.over, j.err
}

// engine writes the completions of all requests on the thread of run.
type engine struct {
	slots     int
	processed bool // log-probabilities are those of the distribution that a token was drawn from
	figures   *figures
	finished  chan struct{}

	lock    sync.Mutex
	orders  []func() // for the thread
	called  chan struct{}
	waiting int // requests of which nothing runs yet
	most    int // of those

	lanes []*lane // the thread's
}

var (
	errBusy    = errors.New("the queue is full: try again later")
	errStopped = errors.New("the server is stopping")
	errFailed  = errors.New("the model gave no usable answer")
)

// order has the thread run f between two steps.
func (e *engine) order(f func()) {
	e.lock.Lock()
	e.orders = append(e.orders, f)
	e.lock.Unlock()
	select {
	case e.called <- struct{}{}:
	default:
	}
}

// ask is order that waits for the outcome.
func (e *engine) ask(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	e.order(func() { done <- f() })
	select {
	case err := <-done:
		return err
	case <-e.finished:
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// full tells whether the next request would be refused.
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
		if l.retired || l.sampler == nil {
			e.leave(j)
			if l.retired {
				j.end(refuse(http.StatusNotFound, "model", "the adapter %q was unloaded", l.name))
			} else {
				j.end(errFailed)
			}
			return
		}
		l.waiting = append(l.waiting, j)
		l.running[j] = struct{}{}
	})
	return nil
}

// leave takes a job from those that wait.
func (e *engine) leave(j *job) {
	if !j.queued {
		return
	}
	j.queued = false
	e.lock.Lock()
	e.waiting--
	e.lock.Unlock()
}

// cancel frees what a job holds; it hears no more.
func (e *engine) cancel(j *job) {
	e.order(func() { e.drop(j) })
}

func (e *engine) drop(j *job) {
	l := j.lane
	if _, ours := l.running[j]; !ours {
		return
	}
	for _, id := range j.ids {
		_ = l.sampler.Cancel(id) // only a request that never was is an error
	}
	e.release(j)
}

// release forgets a job.
func (e *engine) release(j *job) {
	e.leave(j)
	l := j.lane
	delete(l.running, j)
	l.waiting = slices.DeleteFunc(l.waiting, func(other *job) bool { return other == j })
}

// run writes until ctx ends; then the jobs that are left end with errStopped, and the lanes are closed.
func (e *engine) run(ctx context.Context) {
	defer close(e.finished)
	for ctx.Err() == nil {
		e.obey()
		if !e.step() {
			select {
			case <-e.called:
			case <-ctx.Done():
			}
		}
	}
	e.obey()
	for _, l := range e.lanes {
		e.fail(l, errStopped)
		l.close()
	}
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

// step lets every lane with work take a step; false where none has any.
func (e *engine) step() bool {
	worked := false
	e.lanes = slices.DeleteFunc(e.lanes, func(l *lane) bool {
		if l.retired && l.idle() {
			l.close()
			return true
		}
		return false
	})
	for _, l := range e.lanes {
		e.fill(l)
		if l.sampler == nil || l.sampler.Unfinished() == 0 {
			continue
		}
		worked = true
		if err := l.sampler.Step(); err != nil {
			e.repair(l, err)
		}
	}
	return worked
}

// fill gives the lane's free slots to the jobs that wait, a prompt of each in turn.
func (e *engine) fill(l *lane) {
	for len(l.waiting) > 0 && l.sampler.Unfinished() < e.slots {
		j := l.waiting[0]
		l.waiting = l.waiting[1:]
		i := j.next
		id, err := l.sampler.Submit(j.prompts[i], uint64(i), j.options, func(h policy.Heard) { e.hear(j, i, h) })
		if err != nil { // the request was checked, so this is ours
			e.drop(j)
			j.end(err)
			continue
		}
		e.leave(j)
		j.ids = append(j.ids, id)
		if j.next++; j.next < len(j.prompts) {
			l.waiting = append(l.waiting, j)
		}
	}
}

// hear passes on what was written.
func (e *engine) hear(j *job, prompt int, h policy.Heard) {
	e.figures.written(j.lane.name)
	if !h.Done && !j.stream {
		return
	}
	n := news{choice: prompt*j.options.Samples + h.Sample, text: h.Text}
	last := len(h.Completion.IDs) - 1
	n.ids, n.logs = h.Completion.IDs[last:last+1:last+1], e.logs(*h.Completion)[last:last+1:last+1]
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

// logs are the log-probabilities that the server tells.
func (e *engine) logs(c policy.Completion) []float32 {
	if e.processed {
		return c.Drawn
	}
	return c.LogProbs
}

// repair ends the jobs of a lane whose engine has failed, and gives it another engine.
func (e *engine) repair(l *lane, err error) {
	e.fail(l, fmt.Errorf("%w: %w", errFailed, err))
	l.sampler.Close()
	if l.sampler, err = l.policy.NewSampler(e.slots); err != nil {
		l.sampler = nil
	}
}

// fail ends the jobs of a lane.
func (e *engine) fail(l *lane, err error) {
	for j := range l.running {
		e.release(j)
		j.end(err)
	}
}

// close frees a lane; the model itself is its caller's.
func (l *lane) close() {
	if l.sampler != nil {
		l.sampler.Close()
		l.sampler = nil
	}
	if l.dir != "" {
		l.policy.Close()
	}
}
