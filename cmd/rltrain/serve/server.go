// Package serve is an OpenAI-compatible HTTP server for a language model and its LoRA adapters, which requests can load
// and unload as in vLLM.
package serve

import (
	"cmp"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Config configures a server.
type Config struct {
	Name        string            // of the model
	Adapters    map[string]string // folders by name
	AdapterDirs []string          // requests may load adapters from these folders and below; nil = not at all
	MaxAdapters int
	Slots       int           // completions generated at the same time
	Queue       int           // requests that may wait for a slot
	Timeout     time.Duration // per request; 0 = none
	Grace       time.Duration // for running requests when the server stops
	Key         string        // API key of every request; "" = none

	BodyPatience     time.Duration // to receive the body of a request; 0 = a minute
	StrangerPatience time.Duration // the same for requests without the key; 0 = 5 s

	// Defaults are how requests sample that say nothing; the zero value is OpenAI's defaults.
	Defaults torch.Sampling

	// Record is a folder: requests may open sessions, whose tokens and rewards are kept there; "" = none.
	Record string

	Raw  bool // return log-probs before temperature and filters
	Logf func(format string, args ...any)
}

// Server serves one model. Its engine runs on the thread of Serve.
type Server struct {
	config  Config
	base    *policy.CausalLM // nil for a head
	engine  *engine
	figures *figures
	started time.Time

	recorder *recorder // of Config.Record; nil without it

	preparing, preparingLong chan struct{} // places for requests that are decoded, or whose texts become tokens

	bodies atomic.Int64 // bytes of the requests that are being read or answered

	added    []route             // of Add
	measures []func(one measure) // of AddMetrics
	drains   []func(ctx context.Context)
	opens    []func(r *http.Request) bool // of AllowSigned

	lock     sync.Mutex
	lanes    map[string]*lane // available to requests, by name
	names    []string         // of lanes, oldest first
	stopping bool
}

// New creates a server for p, which the caller closes after Serve returns. Call New on the thread of Serve.
func New(p *policy.CausalLM, c Config) (*Server, error) {
	decider, err := p.Decider()
	if err != nil {
		return nil, err
	}
	return create(&lane{name: c.Name, policy: p, decider: decider}, c)
}

// NewForHead creates a server for a decision model with a head. It answers questions alone.
func NewForHead(p *policy.Decider, c Config) (*Server, error) {
	return create(&lane{name: c.Name, decider: p}, c)
}

func create(first *lane, c Config) (*Server, error) {
	if c.Defaults == (torch.Sampling{}) {
		c.Defaults = unfiltered(1)
	}
	s := &Server{config: c, base: first.policy, figures: newFigures(), started: time.Now(), lanes: map[string]*lane{}, preparing: make(chan struct{}, runtime.NumCPU()), preparingLong: make(chan struct{}, runtime.NumCPU())}
	s.engine = &engine{slots: c.Slots, most: c.Queue, logf: c.Logf, figures: s.figures, finished: make(chan struct{}), called: make(chan struct{}, 1), running: map[*job]struct{}{}}
	s.open(first)
	if c.Record != "" {
		var err error
		if s.recorder, err = openRecorder(c.Record); err != nil {
			return nil, err
		}
		s.AllowSigned(s.inSession)
		s.added = append(s.added, route{"POST /v1/sessions", s.openSession}, route{"DELETE /v1/sessions", s.abandon}, route{"POST /v1/reward", s.reward})
	}
	if err := s.engine.start(); err != nil {
		s.closeRecorder()
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

// Close frees a server without calling Serve.
func (s *Server) Close() {
	s.engine.close()
	s.closeRecorder()
}

// Serve serves requests until ctx ends. Then it rejects new requests and gives running ones Config.Grace to finish. It
// returns the error of ctx or of the listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	defer s.closeRecorder()
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
			s.config.Logf("stopping: cancelled requests that did not finish within %v", s.config.Grace)
		}
		for _, drain := range s.drains {
			drain(grace)
		}
		over <- ctx.Err()
		stop()
		<-s.engine.finished // the last requests receive their error
		_ = server.Close()
	}()
	s.engine.run(running)
	return <-over
}

// route answers the requests of a pattern.
type route struct {
	pattern string
	answer  Answer
}

// Handler returns the routes.
func (s *Server) Handler() http.Handler {
	routes := http.NewServeMux()
	for _, r := range append([]route{
		{"GET /health", s.health},
		{"GET /metrics", s.metrics},
		{"GET /v1/models", s.models},
		{"GET /v1/models/{name...}", s.model},
		{"POST /v1/completions", s.completions},
		{"POST /v1/chat/completions", s.chat},
		{"POST /v1/systemone", s.decide},
		{"POST /v1/load_lora_adapter", s.loadAdapter},
		{"POST /v1/unload_lora_adapter", s.unloadAdapter},
	}, s.added...) {
		routes.Handle(r.pattern, s.route(r.pattern, r.answer))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// net/http reads the rest of a body after an early response, so the deadline is set before anything is refused.
		allowed, patience := s.allowed(r), cmp.Or(s.config.BodyPatience, time.Minute)
		if !allowed {
			patience = cmp.Or(s.config.StrangerPatience, 5*time.Second)
		}
		if r.ContentLength != 0 {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience)) // not all connections support it
		}
		if !allowed {
			s.figures.answered("any", http.StatusUnauthorized)
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeError(w, refuse(http.StatusUnauthorized, "", "missing or wrong API key; send the header Authorization: Bearer KEY"))
			return
		}
		if !s.local(r.Host) {
			s.figures.answered("any", http.StatusForbidden)
			writeError(w, refuse(http.StatusForbidden, "", "host %.100q is not this machine; use http://127.0.0.1, or start the server with --api-key", r.Host))
			return
		}
		if _, pattern := routes.Handler(r); pattern == "" {
			s.figures.answered("unknown", http.StatusNotFound)
			writeError(w, refuse(http.StatusNotFound, "", "no route %s %.100s", r.Method, r.URL.Path))
			return
		}
		routes.ServeHTTP(w, r)
	})
}

// allowed compares the key in constant time.
func (s *Server) allowed(r *http.Request) bool {
	if s.config.Key == "" || slices.ContainsFunc(s.opens, func(open func(*http.Request) bool) bool { return open(r) }) {
		return true
	}
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if key == "" { // as Tinker's clients send it
		scheme, key = "Bearer", r.Header.Get("X-API-Key")
	}
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare([]byte(strings.TrimLeft(key, " ")), []byte(s.config.Key)) == 1
}

// local reports whether a request may name this host. Without a key, a web page could reach the server by a domain that it
// points to this machine; names without a dot and addresses cannot be had that way.
func (s *Server) local(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	return s.config.Key != "" || !strings.Contains(host, ".") || strings.HasSuffix(host, ".localhost") || net.ParseIP(host) != nil
}

// route wraps a handler: it sends the error that answer returns, and counts status and time.
func (s *Server) route(pattern string, answer func(http.ResponseWriter, *http.Request) error) http.Handler {
	_, path, _ := strings.Cut(pattern, " ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		seen := &watched{ResponseWriter: w}
		if s.config.Timeout > 0 {
			ctx, cancel := context.WithTimeout(r.Context(), s.config.Timeout)
			defer cancel()
			r = r.WithContext(ctx)
		}
		body := &counted{ReadCloser: r.Body, all: &s.bodies}
		defer body.release()
		r.Body = body
		err := guarded(s.config.Logf, func() error { return answer(seen, r) })
		if err != nil && seen.status == 0 {
			writeError(seen, err)
		}
		s.figures.answered(path, seen.status)
		s.figures.took(time.Since(began))
	})
}

// guarded runs f and turns a panic into an error, so that one request cannot end the server.
func guarded(logf func(string, ...any), f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			logf("internal error: %v; please report it with this stack: %s", r, debug.Stack())
			err = fmt.Errorf("internal error: %v", r)
		}
	}()
	return f()
}

// watched records the status of a response.
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

// Unwrap implements the interface of http.ResponseController.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// refusal is an error with an HTTP status and the request's field.
type refusal struct {
	status int
	param  string
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(status int, param, format string, args ...any) error {
	return &refusal{status, param, fmt.Sprintf(format, args...)}
}

// bad is an invalid field of a request.
func bad(param, format string, args ...any) error {
	return refuse(http.StatusBadRequest, param, format, args...)
}

// errorBody is an error in OpenAI's format.
type errorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// statusGone counts requests whose client disconnected.
const statusGone = 499

var errorTypes = map[int]string{
	http.StatusUnauthorized: "authentication_error", http.StatusForbidden: "permission_error", http.StatusNotFound: "not_found_error",
	http.StatusTooManyRequests: "rate_limit_error", http.StatusGatewayTimeout: "timeout_error",
	http.StatusInternalServerError: "server_error", http.StatusServiceUnavailable: "server_error",
}

// bodyOf returns the status and body of an error.
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
		status, body.Message = http.StatusGatewayTimeout, "the request exceeded the server's time limit"
	}
	body.Code = status
	body.Type = cmp.Or(errorTypes[status], "invalid_request_error")
	return status, body
}

func writeError(w http.ResponseWriter, err error) {
	status, body := bodyOf(err)
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, map[string]errorBody{"error": body})
}

// writePatience is the time for a client to read a chunk of a response.
const writePatience = 30 * time.Second

func writeJSON(w http.ResponseWriter, status int, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"error":{"message":"the response cannot be encoded","type":"server_error","param":null,"code":500}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writePatience)) // not all writers support it
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // fails if the client disconnected
}

// health returns 200 until the server stops.
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
