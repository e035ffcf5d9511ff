// Package serve answers requests in the form of OpenAI's API with a language model and adapters on it, which come and go
// while it runs, as vLLM's do.
package serve

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/rl/policy"
)

// Config says what a server does.
type Config struct {
	Name        string            // of the model
	Adapters    map[string]string // folders by name
	AdapterDirs []string          // adapters may be loaded from these folders and what is in them; none = from nowhere
	MaxAdapters int
	Slots       int           // completions that are written at the same time
	Queue       int           // requests that may wait for a slot
	Timeout     time.Duration // of a request; 0 = none
	Grace       time.Duration // for what is under way when the server stops
	Key         string        // that every request must have; "" = none
	Raw         bool          // log-probabilities of the model's own distribution, not of the one drawn from
	Logf        func(format string, args ...any)
}

// Server is a server; its engine runs on the thread of Serve.
type Server struct {
	config  Config
	base    *policy.CausalLM
	engine  *engine
	figures *figures
	started time.Time

	lock     sync.Mutex
	lanes    map[string]*lane // that take requests, by name
	names    []string         // of lanes, in the order in which they came
	stopping bool
}

// New makes a server of a model, which is closed after Serve has returned. It must be called on the thread of Serve.
func New(p *policy.CausalLM, c Config) (*Server, error) {
	s := &Server{config: c, base: p, figures: newFigures(), started: time.Now(), lanes: map[string]*lane{}}
	s.engine = &engine{slots: c.Slots, most: c.Queue, processed: !c.Raw, figures: s.figures, finished: make(chan struct{}), called: make(chan struct{}, 1), running: map[*job]struct{}{}}
	s.open(&lane{name: c.Name, policy: p})
	if err := s.engine.start(); err != nil {
		return nil, err
	}
	for _, name := range sortedKeys(c.Adapters) {
		if err := s.load(name, c.Adapters[name]); err != nil {
			s.Close()
			return nil, fmt.Errorf("adapter %s: %w", name, err)
		}
	}
	return s, nil
}

// Close frees what a server that never served holds.
func (s *Server) Close() { s.engine.close() }

// Serve answers what comes to the listener until ctx ends. Then new requests are refused, and those under way have
// Config.Grace to end. The error is ctx's, or the listener's.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	running, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	over := make(chan error, 1)
	go func() {
		defer stop()
		select {
		case err := <-served:
			over <- err
			return
		case <-ctx.Done():
		}
		s.lock.Lock()
		s.stopping = true
		s.lock.Unlock()
		grace, cancel := context.WithTimeout(context.Background(), s.config.Grace)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			s.config.Logf("stopping: requests that were not finished within %v are given up", s.config.Grace)
		}
		over <- ctx.Err()
		stop()
		<-s.engine.finished // so that the last requests hear of it
		_ = server.Close()
	}()
	s.engine.run(running)
	return <-over
}

// Handler is the routes.
func (s *Server) Handler() http.Handler {
	routes := http.NewServeMux()
	for _, r := range []struct {
		pattern string
		answer  func(http.ResponseWriter, *http.Request) error
	}{
		{"GET /health", s.health},
		{"GET /metrics", s.metrics},
		{"GET /v1/models", s.models},
		{"GET /v1/models/{name...}", s.model},
		{"POST /v1/completions", s.completions},
		{"POST /v1/chat/completions", s.chat},
		{"POST /v1/load_lora_adapter", s.loadAdapter},
		{"POST /v1/unload_lora_adapter", s.unloadAdapter},
	} {
		routes.Handle(r.pattern, s.route(r.pattern, r.answer))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.allowed(r) {
			s.figures.answered("any", http.StatusUnauthorized)
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeError(w, refuse(http.StatusUnauthorized, "", "the API key is missing or wrong: send the header Authorization: Bearer KEY"))
			return
		}
		if _, pattern := routes.Handler(r); pattern == "" {
			s.figures.answered("unknown", http.StatusNotFound)
			writeError(w, refuse(http.StatusNotFound, "", "there is no %s %.100s here", r.Method, r.URL.Path))
			return
		}
		routes.ServeHTTP(w, r)
	})
}

// allowed compares the key in constant time.
func (s *Server) allowed(r *http.Request) bool {
	if s.config.Key == "" {
		return true
	}
	key, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && subtle.ConstantTimeCompare([]byte(key), []byte(s.config.Key)) == 1
}

// route answers with what answer returns where that is an error.
func (s *Server) route(pattern string, answer func(http.ResponseWriter, *http.Request) error) http.Handler {
	_, path, _ := strings.Cut(pattern, " ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		seen := &watched{ResponseWriter: w}
		err := answer(seen, r)
		if err != nil && seen.status == 0 {
			writeError(seen, err)
		}
		s.figures.answered(path, seen.status)
		s.figures.took(time.Since(began))
	})
}

// watched remembers the status of an answer.
type watched struct {
	http.ResponseWriter
	status int
}

func (w *watched) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Write(data []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(data)
}

// Unwrap serves http.ResponseController.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// refusal is an answer that is an error.
type refusal struct {
	status int
	param  string
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(status int, param, format string, args ...any) error {
	return &refusal{status, param, fmt.Sprintf(format, args...)}
}

// bad is a mistake in a field of a request.
func bad(param, format string, args ...any) error {
	return refuse(http.StatusBadRequest, param, format, args...)
}

// errorBody is an error as OpenAI's clients read it.
type errorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// statusGone is of a request whose client went away, for the metrics: nobody reads it.
const statusGone = 499

var errorTypes = map[int]string{
	http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error", http.StatusNotFound: "not_found_error",
	http.StatusTooManyRequests: "rate_limit_error", http.StatusGatewayTimeout: "timeout_error",
	http.StatusInternalServerError: "server_error", http.StatusServiceUnavailable: "server_error",
}

// bodyOf is what to say of an error.
func bodyOf(err error) (int, errorBody) {
	var r *refusal
	status := http.StatusInternalServerError
	body := errorBody{Message: err.Error()}
	switch {
	case errors.As(err, &r):
		status = r.status
		if r.param != "" {
			body.Param = &r.param
		}
	case errors.Is(err, errBusy):
		status = http.StatusTooManyRequests
	case errors.Is(err, errStopped):
		status = http.StatusServiceUnavailable
	case errors.Is(err, context.Canceled):
		status = statusGone
	case errors.Is(err, context.DeadlineExceeded):
		status, body.Message = http.StatusGatewayTimeout, "the completion took longer than this server's limit"
	}
	body.Code = status
	if body.Type = errorTypes[status]; body.Type == "" {
		body.Type = "invalid_request_error"
	}
	return status, body
}

func writeError(w http.ResponseWriter, err error) {
	status, body := bodyOf(err)
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, map[string]errorBody{"error": body})
}

// writePatience is how long a client may take to read a piece of an answer.
const writePatience = 30 * time.Second

func writeJSON(w http.ResponseWriter, status int, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"error":{"message":"the answer cannot be written","type":"server_error","param":null,"code":500}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writePatience)) // not every writer has one
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // the client has gone
}

// health answers 200 while requests are taken.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) error {
	if s.stops() {
		return errStopped
	}
	writeJSON(w, http.StatusOK, struct{}{})
	return nil
}

func (s *Server) stops() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.stopping
}
