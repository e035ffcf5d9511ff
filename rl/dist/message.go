package dist

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// Member describes a process, for the check that all ranks match.
type Member struct {
	Version  string            `json:"version"`  // of the program
	Settings map[string]string `json:"settings"` // settings that results depend on
	Data     map[string]string `json:"data"`     // checksums of input files
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
	if m.Version != from.Version {
		return fmt.Sprintf("rank %d runs version %s, rank 0 runs %s", rank, m.Version, from.Version)
	}
	compare := func(a, b map[string]string, say func(name, a, b string) string) string {
		for _, name := range append(slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b))...) {
			if a[name] != b[name] {
				return say(name, cmp.Or(a[name], "nothing"), cmp.Or(b[name], "nothing"))
			}
		}
		return ""
	}
	if text := compare(m.Settings, from.Settings, func(name, a, b string) string {
		return fmt.Sprintf("rank %d has %s %s, rank 0 has %s; use the same options for all ranks", rank, name, a, b)
	}); text != "" {
		return text
	}
	return compare(m.Data, from.Data, func(name, a, b string) string {
		return fmt.Sprintf("%s has different content on rank %d (%s) and rank 0 (%s)", name, rank, a, b)
	})
}
