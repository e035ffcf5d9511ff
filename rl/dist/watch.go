package dist

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// watch sees to it that a rank that dies or hangs ends all, each with its name. Every rank tells rank 0 how it goes on,
// and rank 0 tells every rank; who is silent for half of the time that the group may wait has hung. A rank that lives but
// does not come to an exchange for which the others wait is found by their telling how long they do.
type watch struct {
	rank    int
	timeout time.Duration
	links   map[int]*link // of rank 0 to all, of the others to rank 0
	now     func() time.Time

	lock    sync.Mutex
	entered int
	since   time.Time       // of waiting in an exchange; zero where there is none under way
	told    map[int]message // the last that each rank has told
	heard   map[int]time.Time
	gone    map[int]bool // ranks that are done
	why     string
	broken  chan struct{} // closed once why is there
	ended   chan struct{} // closed by close
}

func newWatch(rank int, timeout time.Duration, links map[int]*link) *watch {
	w := &watch{
		rank: rank, timeout: timeout, links: links, now: time.Now, told: map[int]message{}, heard: map[int]time.Time{}, gone: map[int]bool{},
		broken: make(chan struct{}), ended: make(chan struct{}),
	}
	for r := range links {
		w.heard[r] = w.now()
	}
	return w
}

// silence is how long a rank may say nothing.
func (w *watch) silence() time.Duration { return w.timeout / 2 }

// patience is how long ranks may wait in an exchange for one that does not come.
func (w *watch) patience() time.Duration { return w.timeout * 3 / 4 }

// start begins to watch.
func (w *watch) start() {
	for r, l := range w.links {
		go w.listen(r, l)
	}
	go w.tell()
}

// tell says at every beat how this rank goes on, and looks at how the others do.
func (w *watch) tell() {
	beat := time.NewTicker(min(w.timeout/20, 5*time.Second))
	defer beat.Stop()
	for {
		select {
		case <-w.ended:
			return
		case <-w.broken:
			return
		case <-beat.C:
		}
		m := w.state()
		for _, l := range w.links {
			go l.send(m) // who cannot be told is found out by its silence
		}
		if text := w.look(); text != "" {
			w.fail(text)
		}
	}
}

// state is what this rank tells.
func (w *watch) state() message {
	w.lock.Lock()
	defer w.lock.Unlock()
	m := message{Kind: alive, Rank: w.rank, Entered: w.entered}
	if !w.since.IsZero() {
		m.Waiting = max(w.now().Sub(w.since).Seconds(), 1e-9)
	}
	return m
}

// look finds what is wrong with the others, "" for nothing.
func (w *watch) look() string {
	own := w.state()
	w.lock.Lock()
	defer w.lock.Unlock()
	for r, at := range w.heard {
		if silent := w.now().Sub(at); !w.gone[r] && silent > w.silence() {
			return fmt.Sprintf("rank %d has not answered for %.1f s: it hangs, or its machine is gone", r, silent.Seconds())
		}
	}
	if w.rank != 0 {
		return "" // rank 0 knows how all go on
	}
	states := map[int]message{0: own}
	for r := range w.links {
		states[r] = w.told[r]
	}
	latest, longest := 0, 0.0
	for _, m := range states {
		if m.Waiting > 0 && m.Entered >= latest {
			if m.Entered > latest {
				longest = 0
			}
			latest, longest = m.Entered, max(longest, m.Waiting)
		}
	}
	if longest < w.patience().Seconds() {
		return ""
	}
	var late []string
	for r, m := range states {
		switch {
		case m.Entered >= latest:
		case w.gone[r]:
			late = append(late, fmt.Sprintf("rank %d, which is done", r))
		default:
			late = append(late, fmt.Sprintf("rank %d", r))
		}
	}
	slices.Sort(late)
	if late == nil {
		return fmt.Sprintf("the network between the ranks carries nothing: all have waited for each other for %.1f s", longest)
	}
	return fmt.Sprintf("the others have waited for %s for %.1f s", strings.Join(late, " and "), longest)
}

// listen hears a rank until it is done.
func (w *watch) listen(rank int, l *link) {
	for {
		m, err := l.receive(w.now().Add(w.timeout))
		if err != nil {
			w.lost(rank, err)
			return
		}
		w.lock.Lock()
		w.heard[rank], w.told[rank] = w.now(), m
		if m.Kind == bye {
			w.gone[rank] = true
		}
		w.lock.Unlock()
		if m.Kind == failed {
			w.fail(m.Text)
			return
		}
	}
}

// lost hears that the connection to a rank has ended.
func (w *watch) lost(rank int, err error) {
	w.lock.Lock()
	done := w.gone[rank]
	w.lock.Unlock()
	select {
	case <-w.ended:
		return
	default:
	}
	if done {
		return
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.fail(fmt.Sprintf("rank %d has not answered for %.1f s: it hangs, or its machine is gone", rank, w.timeout.Seconds()))
		return
	}
	w.fail(fmt.Sprintf("rank %d has ended before its time: %v", rank, err))
}

// fail ends the group, and tells the others why.
func (w *watch) fail(why string) {
	w.lock.Lock()
	first := w.why == ""
	if first {
		w.why = why
	}
	w.lock.Unlock()
	if !first {
		return
	}
	var told sync.WaitGroup
	for _, l := range w.links {
		told.Add(1)
		go func() {
			defer told.Done()
			_ = l.send(message{Kind: failed, Rank: w.rank, Text: why}) // it may be the one that is lost
		}()
	}
	reached := make(chan struct{})
	go func() { told.Wait(); close(reached) }()
	select { // one that hangs does not keep this rank
	case <-reached:
	case <-time.After(w.timeout / 20):
	}
	close(w.broken)
}

// cause is why the group ended.
func (w *watch) cause() error {
	w.lock.Lock()
	defer w.lock.Unlock()
	return &BrokenError{Rank: w.rank, Why: w.why}
}

// BrokenError is the error of a group that a rank has ended.
type BrokenError struct {
	Rank int // who tells
	Why  string
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("rank %d: the run cannot go on: %s; to go on, start all ranks again with --resume", e.Rank, e.Why)
}

// enter and leave are called around an exchange.
func (w *watch) enter() {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.entered++
	w.since = w.now()
}

func (w *watch) leave() {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.since = time.Time{}
}

// close says that this rank is done.
func (w *watch) close() {
	close(w.ended)
	for _, l := range w.links {
		_ = l.send(message{Kind: bye, Rank: w.rank}) // who is gone needs no word
		l.conn.Close()
	}
}
