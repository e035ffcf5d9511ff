package dist

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// Member is what a process says of itself before it is let into the group.
type Member struct {
	Version  string            `json:"version"`  // of the program
	Settings map[string]string `json:"settings"` // those that results depend on
	Data     map[string]string `json:"data"`     // sums of the files that settings name
}

// kind says what a message is about.
type kind string

const (
	hello   kind = "hello"   // a rank asks to be let in
	welcome kind = "welcome" // all ranks are there and fit each other
	alive   kind = "alive"
	bye     kind = "bye"    // a rank is done
	failed  kind = "failed" // the group ends
)

// message is a line between rank 0 and another rank.
type message struct {
	Kind  kind   `json:"kind"`
	Rank  int    `json:"rank"`
	Token string `json:"token,omitempty"` // of the group: strangers do not have it

	Member  *Member `json:"member,omitempty"`
	Size    int     `json:"size,omitempty"`
	Entered int     `json:"entered,omitempty"` // exchanges that the rank has come to
	Waiting float64 `json:"waiting,omitempty"` // seconds in the last of them; 0 where it is done
	Text    string  `json:"text,omitempty"`    // why the group ends
}

// longestMessage bounds a line, in bytes, also of a stranger.
const longestMessage = 4 << 20

// link is a connection that messages travel over.
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

// errEnded is the error of a connection that the other side has closed.
var errEnded = errors.New("its connection was closed")

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

// differs says in what a rank does not fit rank 0, "" where it does.
func (m Member) differs(from Member, rank int) string {
	if m.Version != from.Version {
		return fmt.Sprintf("rank %d runs version %s of the program, rank 0 version %s", rank, m.Version, from.Version)
	}
	compare := func(a, b map[string]string, say func(name, a, b string) string) string {
		names := slices.Sorted(maps.Keys(a))
		names = append(names, slices.Sorted(maps.Keys(b))...)
		for _, name := range names {
			if a[name] != b[name] {
				return say(name, orNothing(a[name]), orNothing(b[name]))
			}
		}
		return ""
	}
	if text := compare(m.Settings, from.Settings, func(name, a, b string) string {
		return fmt.Sprintf("rank %d has %s %s, rank 0 has %s: all need the same", rank, name, a, b)
	}); text != "" {
		return text
	}
	return compare(m.Data, from.Data, func(name, a, b string) string {
		return fmt.Sprintf("what %s names has another content for rank %d (%s) than for rank 0 (%s)", name, rank, a, b)
	})
}

func orNothing(text string) string {
	if text == "" {
		return "nothing"
	}
	return text
}
