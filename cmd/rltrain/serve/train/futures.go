package train

import (
	"errors"
	"sync"

	"github.com/rltrain/rltrain/internal/tinker"
)

// future is the result of a request, now or later.
type future struct {
	id   string
	done chan struct{}

	// Valid once done.
	outcome tinker.Outcome
	err     error
	size    int
}

// Limits of the results that are held.
const (
	mostResults     = 1 << 16
	mostResultBytes = 512 << 20
)

// futures are the results of requests, by their ids. A client that repeats a request finds the same one. The oldest finished
// results are forgotten when all of them are too large.
type futures struct {
	lock     sync.Mutex
	all      map[string]*future
	finished []*future // oldest first
	bytes    int
}

func newFutures() *futures { return &futures{all: map[string]*future{}} }

// open returns the future of a request. fresh says that the request is new.
func (f *futures) open(id string) (fut *future, fresh bool) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if fut, ok := f.all[id]; ok {
		return fut, false
	}
	fut = &future{id: id, done: make(chan struct{})}
	f.all[id] = fut
	return fut, true
}

func (f *futures) get(id string) *future {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.all[id]
}

// drop forgets a request that was refused.
func (f *futures) drop(fut *future) {
	f.lock.Lock()
	defer f.lock.Unlock()
	delete(f.all, fut.id)
}

// finish sets the result.
func (f *futures) finish(fut *future, outcome tinker.Outcome, err error) {
	fut.outcome, fut.err = outcome, err
	fut.size = 256
	if err == nil {
		fut.size += len(outcome.Proto())
	}
	close(fut.done)
	f.lock.Lock()
	defer f.lock.Unlock()
	f.finished = append(f.finished, fut)
	f.bytes += fut.size
	for len(f.finished) > 1 && (len(f.finished) > mostResults || f.bytes > mostResultBytes) {
		f.bytes -= f.finished[0].size
		delete(f.all, f.finished[0].id)
		f.finished[0], f.finished = nil, f.finished[1:]
	}
}

// mistake is an error that the client made.
type mistake struct{ error }

func (m mistake) Unwrap() error { return m.error }

// failure is how the client receives an error of its request.
func failure(err error) map[string]string {
	category := "server"
	if errors.As(err, new(mistake)) {
		category = "user"
	}
	return map[string]string{"error": err.Error(), "category": category}
}
