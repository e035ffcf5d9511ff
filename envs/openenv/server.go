// Package openenv plays the environments of OpenEnv's servers: GET /schema says how completions become actions, and an episode is
// a WebSocket connection to /ws, with the messages reset, step and close. It follows version 0.10 of the Python package.
package openenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/within"
	"github.com/rltrain/rltrain/internal/words"
)

// Server is a server of environments.
type Server struct {
	base    string // its address, http or https, without a slash at the end
	client  *http.Client
	timeout time.Duration // of an answer
	form    form
	tools   []any
	tasks   map[envs.Part]split // nil = it has no list of tasks

	lock sync.Mutex
	held int  // open sessions
	most int  // sessions that the server allows; 0 = unknown
	down bool // the last attempt to begin an episode used up its time
}

// Address checks the address of a server, ws://HOST:PORT, wss://HOST or one of http and https.
func Address(text string) (base string, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", err
	}
	scheme, ok := map[string]string{"ws": "http", "wss": "https", "http": "http", "https": "https"}[u.Scheme]
	if !ok || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%s: want ws://HOST:PORT or wss://HOST", words.Quote(text))
	}
	u.Scheme = scheme
	return strings.TrimSuffix(u.String(), "/"), nil
}

// Open asks a server how its environment is played. timeout applies to each answer. heldOut is how many tasks are kept for
// evaluation if the server has a list with one split.
func Open(ctx context.Context, address string, timeout time.Duration, heldOut int) (*Server, error) {
	base, err := Address(address)
	if err != nil {
		return nil, err
	}
	s := &Server{base: base, timeout: timeout, client: &http.Client{
		// The server is the one that the user named.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := s.ask(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	if s.tasks, err = s.listTasks(ctx, heldOut); err != nil {
		return nil, fmt.Errorf("%s: tasks: %w", address, err)
	}
	return s, nil
}

// ask reads the schema, and the tools of an environment that has some.
func (s *Server) ask(ctx context.Context) error {
	body, status, err := s.fetch(ctx, http.MethodGet, "/schema", nil)
	if err != nil {
		return err
	}
	schema, _ := body.(dataset.Object)
	action, err := objectOf(schema, "action")
	if err == nil && (action == nil || status != http.StatusOK) {
		err = fmt.Errorf("status %d and no schema of actions", status)
	}
	if err == nil {
		s.form, err = formOf(action)
	}
	if err != nil {
		return fmt.Errorf("/schema: %w; is this an OpenEnv server?", err)
	}
	if !s.form.tools {
		return nil
	}
	e, r, err := s.first(ctx, "step", dataset.Object{{Name: "type", Value: "list_tools"}})
	if err != nil {
		return fmt.Errorf("list_tools: %w", err)
	}
	defer e.Close()
	if s.tools, err = readTools(r.Observation); err != nil {
		return fmt.Errorf("list_tools: %w", err)
	}
	return nil
}

// readTools reads the observation that lists tools.
func readTools(o dataset.Object) (all []any, err error) {
	list, _ := o.Get("tools")
	found, _ := list.([]any)
	for _, one := range found {
		described, _ := one.(dataset.Object)
		parameters, err := objectOf(described, "input_schema")
		if err != nil {
			return nil, err
		}
		all = append(all, tools.Tool{Name: textOf(described, "name"), Description: textOf(described, "description"), Parameters: parameters}.Described())
	}
	if _, err := tools.Names(all); err != nil {
		return nil, err
	}
	if all == nil {
		return nil, errors.New("the environment takes tool calls and has no tools")
	}
	return all, nil
}

// Tools are the tools of the environment as chat templates read them; nil if its actions are no tool calls.
func (s *Server) Tools() []any { return s.tools }

// TakesText reports whether every completion is an action.
func (s *Server) TakesText() bool { return s.form.text }

// Begin begins an episode. It tries again while the server cannot be reached, or others have all of its places, until the
// time for an answer is over. If all places are those of open sessions of this Server, the error is envs.ErrFull.
func (s *Server) Begin(ctx context.Context, data dataset.Object) (*Session, Result, error) {
	return s.first(ctx, "reset", data)
}

// patience is how long a server that did not answer in time gets at the next attempt.
const patience = 2 * time.Second

// first opens a session with its first message.
func (s *Server) first(ctx context.Context, kind string, data dataset.Object) (*Session, Result, error) {
	s.lock.Lock()
	full, limit := s.most > 0 && s.held >= s.most, s.timeout
	if s.down {
		limit = min(limit, patience)
	}
	s.lock.Unlock()
	if full {
		return nil, Result{}, envs.ErrFull
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		e, r, err := s.try(limited, kind, data)
		var refused *serverError
		switch {
		case err == nil:
			s.setDown(false)
			return e, r, nil
		case ctx.Err() != nil:
			return nil, r, ctx.Err()
		case errors.As(err, &refused) && refused.code == codeCapacity:
			if s.learn(refused.sessions) {
				return nil, r, envs.ErrFull
			}
		case errors.As(err, new(lostError)):
		case limited.Err() == nil && !errors.Is(err, within.ErrTimeout):
			return nil, r, err
		}
		select {
		case <-limited.Done():
			if ctx.Err() != nil {
				return nil, r, ctx.Err()
			}
			s.setDown(true)
			if errors.Is(err, context.DeadlineExceeded) {
				err = within.ErrTimeout
			}
			return nil, r, fmt.Errorf("no session of the server within %v: %w", limit, err)
		case <-time.After(pause):
		}
	}
}

// try opens a session with its first message, once.
func (s *Server) try(ctx context.Context, kind string, data dataset.Object) (*Session, Result, error) {
	e, err := s.connect(ctx)
	if err != nil {
		return nil, Result{}, err
	}
	r, err := e.ask(ctx, kind, data)
	if err != nil {
		_ = e.Close()
		return nil, r, err
	}
	return e, r, nil
}

// learn notes that the server has no free place, and how many it has. It reports whether this Server has some of them.
func (s *Server) learn(most int) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.most = most
	if most == 0 {
		s.most = max(1, s.held)
	}
	return s.held > 0
}

func (s *Server) hold(n int) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.held += n
}

func (s *Server) setDown(down bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.down = down
}

// fetch asks for JSON. An answer that is none is an error, whatever its status.
func (s *Server) fetch(ctx context.Context, method, path string, body any) (value any, status int, err error) {
	var data []byte
	if body != nil {
		if data, err = json.Marshal(body); err != nil {
			return nil, 0, err
		}
	}
	q, err := http.NewRequestWithContext(ctx, method, s.base+path, strings.NewReader(string(data)))
	if err != nil {
		return nil, 0, err
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := s.client.Do(q)
	if err != nil {
		return nil, 0, err
	}
	defer r.Body.Close()
	text, err := readAll(r.Body)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", path, err)
	}
	if value, err = dataset.Parse(text); err != nil {
		return nil, 0, fmt.Errorf("%s: status %d, not JSON: %s; is this an OpenEnv server?", path, r.StatusCode, words.QuoteTo(text, 60))
	}
	return value, r.StatusCode, nil
}
