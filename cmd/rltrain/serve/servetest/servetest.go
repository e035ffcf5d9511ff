// Package servetest runs servers of small models for tests of their clients.
package servetest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Front stands before a server of the model "base". Fields may be changed between requests, under Lock.
type Front struct {
	sync.Mutex
	URL string
	// Before may answer a request instead of the server: then it returns true.
	Before func(w http.ResponseWriter, r *http.Request) bool
	// Ask, if set, returns the body that the server gets, and Answer the body that the client gets.
	Ask    func(path string, asked []byte) []byte
	Answer func(path string, asked, answer []byte) []byte

	Loaded, Paths []string // adapters and their folders, in the order in which they came
	Unloaded      []string

	direct http.Handler
}

// Start starts a server of the model in a folder, as rltrain serve does. It loads adapters from below adapters, and ends with
// the test.
func Start(t testing.TB, model, adapters string) *Front {
	t.Helper()
	thread := torch.NewThread()
	f, started, ended := &Front{}, make(chan error), make(chan error)
	ctx, stop := context.WithCancel(context.Background())
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	go func() {
		ended <- thread.Do(ctx, func(ctx context.Context) error {
			p, err := policy.NewCausalLM(policy.Config{Dir: model})
			if err != nil {
				started <- err
				return err
			}
			defer p.Close()
			server, err := serve.New(p, serve.Config{
				Name: "base", AdapterDirs: []string{adapters}, MaxAdapters: 8, Slots: 4, Queue: 64, Logf: func(string, ...any) {},
			})
			if err != nil {
				started <- err
				return err
			}
			f.direct = server.Handler()
			started <- nil
			return server.Serve(ctx, listener)
		})
	}()
	must.Do(t, <-started)
	front := httptest.NewServer(f)
	f.URL = front.URL
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		stop()
		<-ended
		thread.Close()
	})
	return f
}

// ServeHTTP passes a request on.
func (f *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.Lock()
	before, ask, answer := f.Before, f.Ask, f.Answer
	f.Unlock()
	if before != nil && before(w, r) {
		return
	}
	asked, _ := io.ReadAll(r.Body) // the client has gone
	body := asked
	if ask != nil {
		body = ask(r.URL.Path, asked)
	}
	inner := r.Clone(r.Context())
	inner.Body, inner.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	recorder := httptest.NewRecorder()
	f.direct.ServeHTTP(recorder, inner)
	text := recorder.Body.Bytes()
	if recorder.Code == http.StatusOK {
		f.note(r.URL.Path, asked)
		if answer != nil {
			text = answer(r.URL.Path, asked, text)
		}
	}
	maps.Copy(w.Header(), recorder.Header())
	w.Header().Del("Content-Length")
	w.WriteHeader(recorder.Code)
	_, _ = w.Write(text)
}

func (f *Front) note(path string, asked []byte) {
	var order struct {
		Name string `json:"lora_name"`
		Path string `json:"lora_path"`
	}
	_ = json.Unmarshal(asked, &order) // the server has read it
	f.Lock()
	defer f.Unlock()
	switch path {
	case "/v1/load_lora_adapter":
		f.Loaded, f.Paths = append(f.Loaded, order.Name), append(f.Paths, order.Path)
	case "/v1/unload_lora_adapter":
		f.Unloaded = append(f.Unloaded, order.Name)
	}
}

// Send asks the server behind the front.
func (f *Front) Send(path, body string) (status int, answer []byte) {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Host = "127.0.0.1"
	r.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	f.direct.ServeHTTP(recorder, r)
	return recorder.Code, recorder.Body.Bytes()
}

// Forget unloads all adapters, as a restart does.
func (f *Front) Forget() {
	f.Lock()
	names := slices.Clone(f.Loaded)
	f.Unlock()
	for _, name := range names {
		f.Send("/v1/unload_lora_adapter", `{"lora_name":"`+name+`"}`)
	}
}

// Die makes the front cut every connection off, until the result is called.
func (f *Front) Die() (rise func()) {
	f.Lock()
	defer f.Unlock()
	before := f.Before
	f.Before = func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
	return func() {
		f.Lock()
		defer f.Unlock()
		f.Before = before
	}
}
