package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// running is a server under test.
type running struct {
	*Server
	url   string
	stop  func() // as a signal does
	ended chan error
	key   string

	client *http.Client
}

// start serves a small model with a chat template as "tiny".
func start(t testing.TB, c Config) *running {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	must.Do(t, policy.TinyChatModel(dir, 1, 32, 5))
	return startModel(t, dir, c)
}

func startModel(t testing.TB, dir string, c Config) *running {
	t.Helper()
	return startServer(t, c, func(c Config) (*Server, func(), error) {
		p, err := policy.NewCausalLM(policy.Config{Dir: dir})
		if err != nil {
			return nil, nil, err
		}
		s, err := New(p, c)
		return s, p.Close, err
	})
}

// startServer runs the server that create makes.
func startServer(t testing.TB, c Config, create func(Config) (s *Server, done func(), err error)) *running {
	t.Helper()
	torchtest.NoLeaks(t)
	if c.Name == "" {
		c.Name = "tiny"
	}
	c.Slots = max(c.Slots, 4)
	if c.Logf == nil {
		c.Logf = t.Logf
	}
	if c.Queue == 0 {
		c.Queue = 64
	}
	if c.Grace == 0 {
		c.Grace = time.Minute
	}
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, stop := context.WithCancel(context.Background())
	s := &running{url: "http://" + listener.Addr().String(), stop: stop, ended: make(chan error, 1), key: c.Key, client: http.DefaultClient}
	made := make(chan error, 1)
	thread := torch.NewThread()
	go func() {
		s.ended <- thread.Do(context.Background(), func(context.Context) error {
			server, done, err := create(c)
			s.Server = server
			if made <- err; err != nil {
				return err
			}
			defer done()
			return server.Serve(ctx, listener)
		})
	}()
	must.Do(t, <-made)
	t.Cleanup(func() {
		stop()
		<-s.ended
		thread.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// try posts a body, or sends GET if it is empty. The path may have another method before it.
func (s *running) try(ctx context.Context, path, body string) (*http.Response, error) {
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	if other, rest, found := strings.Cut(path, " "); found {
		method, path = other, rest
	}
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if s.key != "" {
		r.Header.Set("Authorization", "Bearer "+s.key)
	}
	return s.client.Do(r)
}

func (s *running) send(t testing.TB, ctx context.Context, path, body string) *http.Response {
	t.Helper()
	return must.Get(s.try(ctx, path, body))(t)
}

func (s *running) ask(t testing.TB, path, body string) (int, string) {
	t.Helper()
	answer := s.send(t, t.Context(), path, body)
	defer answer.Body.Close()
	text := must.Get(io.ReadAll(answer.Body))(t)
	return answer.StatusCode, string(text)
}

// said is the part of a response, or of a streamed chunk, that tests read.
type said struct {
	Choices []struct {
		Index   int
		Text    string
		Message struct{ Role, Content string }
		Delta   struct{ Role, Content string }
		Reason  *string `json:"finish_reason"`
		IDs     []int32 `json:"token_ids"`
		Prompt  []int32 `json:"prompt_token_ids"`
		Logs    *struct {
			Values []float32 `json:"token_logprobs"`
		} `json:"logprobs"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
	}
	Error *errorBody
}

func (s *running) complete(t testing.TB, path, body string) said {
	t.Helper()
	status, text := s.ask(t, path, body)
	var out said
	expect.Require(t, json.Unmarshal([]byte(text), &out) == nil && status == http.StatusOK, "%s: status %d, %s", body, status, text)
	return out
}

// pieces reads a stream to its end.
func pieces(t testing.TB, answer *http.Response) (all []said) {
	t.Helper()
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	ended := false
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		switch {
		case !ok:
		case string(data) == "[DONE]":
			ended = true
		default:
			var one said
			err := json.Unmarshal(data, &one)
			expect.Require(t, err == nil, "%s: %v", data, err)
			all = append(all, one)
		}
	}
	expect.True(t, ended, "the stream has no end")
	return all
}

// idle waits until the engine is idle.
func (s *running) idle(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		busy := 0
		must.Do(t, s.engine.ask(t.Context(), func() error {
			busy = len(s.engine.running) + len(s.engine.line) + s.engine.sampler.Unfinished()
			for _, l := range s.engine.lanes {
				expect.True(t, busy != 0 || l.jobs == 0, "%s counts %d requests, want 0", l.name, l.jobs)
			}
			return nil
		}))
		if busy == 0 {
			return
		}
		expect.Require(t, !time.Now().After(deadline), "%d requests and samples are still there", busy)
		runtime.Gosched()
	}
}

// direct is the engine's completion without a server.
func direct(t testing.TB, s *running, adapter string, prompts [][]int32, o policy.GenerateOptions) (all [][]policy.Completion) {
	t.Helper()
	must.Do(t, s.engine.ask(t.Context(), func() error {
		p := s.base
		if adapter != "" {
			var err error
			if p, err = s.base.WithAdapter(adapter); err != nil {
				return err
			}
			defer p.Close()
		}
		sampler, err := p.NewSampler(2)
		if err != nil {
			return err
		}
		defer sampler.Close()
		return sampler.Generate(context.Background(), prompts, o, func(_ int, done []policy.Completion) error {
			all = append(all, done)
			return nil
		})
	}))
	return all
}
