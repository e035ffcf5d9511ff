package serve

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rltrain/rltrain/rl/rollout"
)

// Limits of recording.
const (
	mostSessions = 4096      // open at the same time
	sessionIdle  = time.Hour // after which a session without a call is dropped
	mostRecorded = 4 << 20   // tokens of a session
	longestGroup = 256
	sessionKey   = "rltrain-session-" // what the keys of sessions begin with
)

// recorder keeps the sessions that are open, and a file of those that are closed. Keys are in memory alone.
type recorder struct {
	lock sync.Mutex
	file *os.File
	size int64
	open map[string]*session // by key
}

// openRecorder opens the file of a folder, which no other process may write. What a crash left of a line is cut off.
func openRecorder(dir string) (*recorder, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, rollout.RecordedFile)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	r := &recorder{file: file, open: map[string]*session{}}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: another server writes it: %w", path, err)
	}
	if r.size, err = endOfLines(file); err == nil {
		err = file.Truncate(r.size)
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// endOfLines is where the last complete line of a file ends.
func endOfLines(file *os.File) (int64, error) {
	end, err := file.Seek(0, io.SeekEnd)
	for part := make([]byte, 64<<10); err == nil && end > 0; {
		from := max(0, end-int64(len(part)))
		n, failed := file.ReadAt(part[:end-from], from)
		if failed != nil && failed != io.EOF {
			return 0, failed
		}
		if at := bytes.LastIndexByte(part[:n], '\n'); at >= 0 {
			return from + int64(at) + 1, nil
		}
		end = from
	}
	return end, err
}

// closeRecorder lets another server write the folder.
func (s *Server) closeRecorder() {
	if s.recorder != nil {
		_ = s.recorder.file.Close()
	}
}

// write appends a session to the file, all of it or nothing.
func (r *recorder) write(s rollout.Recorded) error {
	line, err := json.Marshal(s)
	if err != nil {
		return err
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if _, err = r.file.WriteAt(append(line, '\n'), r.size); err == nil {
		err = r.file.Sync()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("the session could not be written: %w", err), r.file.Truncate(r.size))
	}
	r.size += int64(len(line)) + 1
	return nil
}

// keyOf is the session key of a request, "" if it has none.
func keyOf(r *http.Request) string {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !strings.HasPrefix(key, sessionKey) {
		return ""
	}
	return key
}

// sessionOf is the open session of a request's key; nil if the request has no session key.
func (s *Server) sessionOf(r *http.Request) (*session, error) {
	key := keyOf(r)
	if key == "" || s.recorder == nil {
		return nil, nil
	}
	s.recorder.lock.Lock()
	defer s.recorder.lock.Unlock()
	found := s.recorder.open[key]
	if found == nil {
		return nil, refuse(http.StatusUnauthorized, "", "the API key is that of no open session; POST /v1/sessions opens one")
	}
	found.used = time.Now()
	return found, nil
}

// inSession lets requests of an open session pass without the server's key, on the routes that an agent needs.
func (s *Server) inSession(r *http.Request) bool {
	switch r.Method + " " + r.URL.Path {
	case "POST /v1/chat/completions", "POST /v1/reward", "DELETE /v1/sessions", "GET /v1/models":
		found, err := s.sessionOf(r)
		return found != nil && err == nil
	}
	return false
}

// openSession opens a session. Sessions of a group are compared with each other in training.
func (s *Server) openSession(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Group string `json:"group"`
	}
	if err := s.readBody(w, r, longestOrder, &q, nil); err != nil {
		return err
	}
	if len(q.Group) > longestGroup {
		return bad("group", "group has %d bytes, at most %d", len(q.Group), longestGroup)
	}
	c, now := s.recorder, time.Now()
	c.lock.Lock()
	defer c.lock.Unlock()
	for key, old := range c.open {
		if now.Sub(old.used) > sessionIdle {
			delete(c.open, key)
		}
	}
	if len(c.open) >= mostSessions {
		return refuse(http.StatusTooManyRequests, "", "%d sessions are open; close some", mostSessions)
	}
	key, id := sessionKey+rand.Text(), rand.Text()
	one := &session{turn: make(chan struct{}, 1), used: now}
	one.Session, one.Group = id, q.Group
	c.open[key] = one
	writeJSON(w, http.StatusOK, map[string]string{"id": id, "api_key": key})
	return nil
}

// reward closes a session with its reward.
func (s *Server) reward(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Reward *float64 `json:"reward"`
	}
	if err := s.readBody(w, r, longestOrder, &q, nil); err != nil {
		return err
	}
	if q.Reward == nil || math.IsInf(*q.Reward, 0) {
		return bad("reward", `want {"reward": 1}`)
	}
	return s.closeSession(w, r, q.Reward)
}

// abandon closes a session without a reward.
func (s *Server) abandon(w http.ResponseWriter, r *http.Request) error {
	return s.closeSession(w, r, nil)
}

func (s *Server) closeSession(w http.ResponseWriter, r *http.Request, reward *float64) error {
	one, err := s.sessionOf(r)
	if err != nil {
		return err
	}
	if one == nil {
		return refuse(http.StatusUnauthorized, "", "send the API key of a session")
	}
	if err := one.take(r.Context()); err != nil { // a call that runs is recorded
		return err
	}
	defer one.give()
	if len(one.Trajectory.Turns) == 0 && reward != nil {
		return bad("", "the session has no call yet")
	}
	if one.Reward = reward; len(one.Trajectory.Turns) > 0 {
		if err := s.recorder.write(one.Recorded); err != nil {
			return err
		}
	}
	one.over = true
	s.recorder.lock.Lock()
	delete(s.recorder.open, keyOf(r))
	s.recorder.lock.Unlock()
	writeJSON(w, http.StatusOK, map[string]string{"id": one.Session})
	return nil
}
