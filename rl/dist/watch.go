package dist

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// watch ends all ranks if one dies or hangs, with an error that names it. Every rank sends heartbeats to rank 0, and rank 0
// to every rank. A rank that is silent for half of the timeout has hung. Heartbeats also carry how long a rank has waited in
// an exchange, which finds a live rank that does not join it.
type watch struct {
	rank    int
	timeout time.Duration
	links   map[int]*link // rank 0: to all ranks; others: to rank 0
	now     func() time.Time

	lock    sync.Mutex
	entered int
	since   time.Time       // start of the current exchange; zero if there is none
	told    map[int]message // last heartbeat of each rank
	heard   map[int]time.Time
	gone    map[int]bool // ranks that have finished
	why     string
	broken  chan struct{} // closed once why is set
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

// silence is how long a rank may send no heartbeat.
func (w *watch) silence() time.Duration { return w.timeout / 2 }

// patience is how long ranks may wait in an exchange for a missing rank.
func (w *watch) patience() time.Duration { return w.timeout * 3 / 4 }

// start starts the watch.
func (w *watch) start() {
	for r, l := range w.links {
		go w.listen(r, l)
	}
	go w.tell()
}

// tell sends heartbeats and checks those of the others.
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
			go l.send(m) // an unreachable rank is found by its silence
		}
		if text := w.look(); text != "" {
			w.fail(text)
		}
	}
}

// state returns the heartbeat of this rank.
func (w *watch) state() message {
	w.lock.Lock()
	defer w.lock.Unlock()
	m := message{Kind: alive, Rank: w.rank, Entered: w.entered}
	if !w.since.IsZero() {
		m.Waiting = max(w.now().Sub(w.since).Seconds(), 1e-9)
	}
	return m
}

// look returns what is wrong with the other ranks, or "".
func (w *watch) look() string {
	own := w.state()
	w.lock.Lock()
	defer w.lock.Unlock()
	for r, at := range w.heard {
		if silent := w.now().Sub(at); !w.gone[r] && silent > w.silence() {
			return fmt.Sprintf("rank %d has not responded for %.1f s: it hangs, or its machine is down", r, silent.Seconds())
		}
	}
	if w.rank != 0 {
		return "" // only rank 0 knows all ranks
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
			late = append(late, fmt.Sprintf("rank %d, which has finished", r))
		default:
			late = append(late, fmt.Sprintf("rank %d", r))
		}
	}
	slices.Sort(late)
	if late == nil {
		return fmt.Sprintf("the network between the ranks is down: all have waited for %.1f s", longest)
	}
	return fmt.Sprintf("the other ranks have waited for %s for %.1f s", strings.Join(late, " and "), longest)
}

// listen receives the messages of a rank until it has finished.
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

// lost handles the end of the connection to a rank.
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
		w.fail(fmt.Sprintf("rank %d has not responded for %.1f s: it hangs, or its machine is down", rank, w.timeout.Seconds()))
		return
	}
	w.fail(fmt.Sprintf("rank %d exited early: %v", rank, err))
}

// fail ends the group and sends the reason to the others.
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
		told.Go(func() { _ = l.send(message{Kind: failed, Rank: w.rank, Text: why}) }) // fails for a lost rank
	}
	reached := make(chan struct{})
	go func() { told.Wait(); close(reached) }()
	select { // a rank that hangs must not block this one
	case <-reached:
	case <-time.After(w.timeout / 20):
	}
	close(w.broken)
}

// cause returns why the group ended.
func (w *watch) cause() error {
	w.lock.Lock()
	defer w.lock.Unlock()
	return &BrokenError{Rank: w.rank, Why: w.why}
}

// BrokenError is the error of a group that one rank has ended.
type BrokenError struct {
	Rank int // the rank that returns the error
	Why  string
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("rank %d: %s; start all ranks again with --resume to continue", e.Rank, e.Why)
}

// enter marks the start of an exchange, leave its end.
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

// close reports that this rank has finished.
func (w *watch) close() {
	close(w.ended)
	for _, l := range w.links {
		_ = l.send(message{Kind: bye, Rank: w.rank}) // fails for a rank that has exited
		l.conn.Close()
	}
}

// Member describes a process, for the check that all ranks match.
type Member struct {
	Version  string            `json:"version"`  // of the program
	Settings map[string]string `json:"settings"` // settings that results depend on
	Fault    string            `json:"fault"`    // why the process cannot take part; the others then end with it
}

// kind is the type of a message.
type kind string

const (
	hello   kind = "hello"   // a rank asks to join
	welcome kind = "welcome" // all ranks joined and match
	alive   kind = "alive"
	bye     kind = "bye"    // a rank is done
	failed  kind = "failed" // the group ends
)

// message is a line between rank 0 and another rank.
type message struct {
	Kind  kind   `json:"kind"`
	Rank  int    `json:"rank"`
	Token string `json:"token,omitempty"` // secret of the group

	Member  *Member `json:"member,omitempty"`
	Size    int     `json:"size,omitempty"`
	Entered int     `json:"entered,omitempty"` // exchanges the rank has entered
	Waiting float64 `json:"waiting,omitempty"` // seconds in the last of them; 0 if it is done
	Text    string  `json:"text,omitempty"`    // why the group ends
}

// longestMessage is the maximum length of a line in bytes.
const longestMessage = 4 << 20

// link is a connection for messages.
type link struct {
	conn  net.Conn
	lines *bufio.Scanner
	lock  sync.Mutex // of writing
	limit time.Duration
}

func newLink(conn net.Conn, limit time.Duration) *link {
	l := &link{conn: conn, lines: bufio.NewScanner(conn), limit: limit}
	l.lines.Buffer(nil, longestMessage)
	return l
}

func (l *link) send(m message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	if err := l.conn.SetWriteDeadline(time.Now().Add(l.limit)); err != nil {
		return err
	}
	_, err = l.conn.Write(append(line, '\n'))
	return err
}

// errEnded reports a connection closed by the other side.
var errEnded = errors.New("connection closed")

// ended reports whether the other side has closed the connection. It reads nothing.
func (l *link) ended() bool {
	raw, err := l.conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return true
	}
	ended := false
	err = raw.Control(func(fd uintptr) {
		n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ended = n == 0 && err == nil || err != nil && err != unix.EAGAIN && err != unix.EINTR
	})
	return ended || err != nil
}

// receive waits for a message until the deadline.
func (l *link) receive(deadline time.Time) (m message, err error) {
	if err := l.conn.SetReadDeadline(deadline); err != nil {
		return m, err
	}
	if !l.lines.Scan() {
		if err := l.lines.Err(); err != nil {
			return m, err
		}
		return m, errEnded
	}
	return m, json.Unmarshal(l.lines.Bytes(), &m)
}

// differs describes how a rank differs from rank 0; "" if it matches.
func (m Member) differs(from Member, rank int) string {
	switch {
	case m.Fault != "":
		return fmt.Sprintf("rank %d cannot take part: %s", rank, m.Fault)
	case from.Fault != "":
		return "rank 0 cannot take part: " + from.Fault
	}
	if m.Version != from.Version {
		return fmt.Sprintf("rank %d runs version %s, rank 0 runs %s", rank, m.Version, from.Version)
	}
	for _, name := range append(slices.Sorted(maps.Keys(m.Settings)), slices.Sorted(maps.Keys(from.Settings))...) {
		if a, b := m.Settings[name], from.Settings[name]; a != b {
			return fmt.Sprintf("rank %d has %s %s, rank 0 has %s; use the same options for all ranks", rank, name, cmp.Or(a, "nothing"), cmp.Or(b, "nothing"))
		}
	}
	return ""
}
