package train

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	serving "github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// writer is closed by its test.
type writer interface {
	rollout.Generator
	Close()
}

// rolloutServer serves a model as rltrain serve does.
type rolloutServer struct {
	url    string
	before func(r *http.Request) // of each request; nil = nothing

	lock   sync.Mutex
	loaded []string     // adapters
	direct http.Handler // the server without before
}

// startServer starts a server of the model in a folder that loads adapters from below adapters; it ends with the test.
func startServer(t testing.TB, model, adapters string) *rolloutServer {
	t.Helper()
	thread := torch.NewThread()
	s, started, ended := &rolloutServer{}, make(chan error), make(chan error)
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
			server, err := serving.New(p, serving.Config{
				Name: "base", AdapterDirs: []string{adapters}, MaxAdapters: 8, Slots: 4, Queue: 64, Logf: func(string, ...any) {},
			})
			if err != nil {
				started <- err
				return err
			}
			s.direct = server.Handler()
			started <- nil
			return server.Serve(ctx, listener)
		})
	}()
	must.Do(t, <-started)
	front := httptest.NewServer(s)
	s.url = front.URL
	t.Cleanup(func() {
		front.CloseClientConnections()
		front.Close()
		stop()
		<-ended
		thread.Close()
	})
	return s
}

// ServeHTTP notes which adapters are loaded.
func (s *rolloutServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.before != nil {
		s.before(r)
	}
	if r.URL.Path == "/v1/load_lora_adapter" {
		var body bytes.Buffer
		var order struct {
			Name string `json:"lora_name"`
		}
		_ = json.NewDecoder(io.TeeReader(r.Body, &body)).Decode(&order) // the server says what is wrong
		r.Body = io.NopCloser(&body)
		s.lock.Lock()
		s.loaded = append(s.loaded, order.Name)
		s.lock.Unlock()
	}
	s.direct.ServeHTTP(w, r)
}

// forget unloads all adapters, as a restart does.
func (s *rolloutServer) forget() {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, name := range s.loaded {
		order := fmt.Sprintf(`{"lora_name":%q}`, name)
		s.direct.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/unload_lora_adapter", strings.NewReader(order)))
	}
	s.loaded = nil
}

// serve starts servers of the policy's base model.
func (r tokenRun) serve(t testing.TB, p *policy.CausalLM) (writer, error) {
	t.Helper()
	c := remote.Config{
		Options: remote.Options{Dir: filepath.Join(t.TempDir(), "adapters"), Tolerance: 0.01, Timeout: 60}, Temperature: r.Options.Temperature,
		Retry: 5 * time.Millisecond, Warn: func(format string, args ...any) {
			if r.told != nil {
				r.told(fmt.Sprintf(format, args...))
			}
		},
	}
	for i := range r.servers {
		s := startServer(t, p.BaseModel, c.Dir)
		if r.quirk != nil {
			r.quirk(i, s)
		}
		c.URLs = append(c.URLs, s.url)
	}
	return remote.New(t.Context(), p, c)
}

// TestDyingServerChangesNothing: one of two servers dies and returns without its adapters. The run ends with the
// weights of a run on one healthy server, and each step trains on the same number of samples.
func TestDyingServerChangesNothing(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		t.Run(fmt.Sprintf("ahead=%v", ahead), func(t *testing.T) {
			train := func(servers int, quirk func(int, *rolloutServer), told func(string)) (weights [][]float32) {
				r := newTokenRun(newGRPO)
				r.Steps, r.evaluated, r.every, r.servers, r.quirk, r.told = 5, 4, 2, servers, quirk, told
				r.Async = ahead
				r.Options.Temperature = 0.9
				p := tinyToken(t, 4)
				var rows recorded
				must.Get(r.on(t.Context(), t, p, rows.hooks()))(t)
				weighed := 0
				for _, row := range rows.rows {
					if _, ok := row["sampling/importance_sampling_ratio/mean"]; ok {
						weighed++
					}
				}
				expect.True(t, weighed >= r.Steps, "%d of %d rows have importance weights", weighed, r.Steps)
				for _, v := range p.Params() {
					values := must.Get(v.Read())(t)
					weights = append(weights, values)
				}
				return weights
			}
			want := train(1, nil, nil)
			var said []string
			got := train(2, func(i int, s *rolloutServer) {
				if i == 1 {
					return
				}
				var asked atomic.Int64
				s.before = func(r *http.Request) {
					if r.URL.Path != "/v1/completions" {
						return
					}
					if n := asked.Add(1); n > 12 && n < 16 { // in the middle of a step
						s.forget()
						panic(http.ErrAbortHandler)
					}
				}
			}, func(line string) { said = append(said, line) })
			expect.Equal(t, want, got, "weights")
			expect.True(t, strings.Contains(strings.Join(said, "\n"), "sending its prompts to 1 others"), "log %q", said)
		})
	}
}

// teacherModel makes the model of a teacher, of the tokens of tinyToken.
func teacherModel(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir() + "/teacher"
	must.Do(t, policy.TinyModel(dir, 1, 64, 11))
	return dir
}

// servedTeacher starts the server of a teacher.
func (r tokenRun) servedTeacher(t testing.TB, p *policy.CausalLM) func(context.Context, []*rl.Trajectory) error {
	t.Helper()
	needs := r.algorithm().Needs()
	s := startServer(t, teacherModel(t), t.TempDir())
	if r.quirk != nil {
		r.quirk(0, s)
	}
	needs.Server.URL = s.url
	teacher := must.Get(remote.NewTeacher(t.Context(), p, remote.TeacherConfig{
		TeacherServer: needs.Server, Model: needs.Teacher, Pause: time.Millisecond, Warn: func(format string, args ...any) { r.told(fmt.Sprintf(format, args...)) },
	}))(t)
	t.Cleanup(teacher.Close)
	return teacher.Rate
}

// TestServedTeacherEqualsLocal: a teacher on a server, which fails now and then, teaches what it teaches in this process. Episodes with
// several segments count too.
func TestServedTeacherEqualsLocal(t *testing.T) {
	train := func(change func(r *tokenRun)) (found []float64, weights run.Snapshot) {
		r := newTokenRun(newServedDistill)
		r.taught, r.Steps, r.Optim, r.task = true, 3, "", spelling{}
		change(&r)
		var seen recorded
		p := trainedToken(t, 4)
		must.Get(r.on(t.Context(), t, p, seen.hooks()))(t)
		return seen.figure("divergence"), weightsOf(t, p)
	}
	var fails atomic.Int32
	var told []string
	served, weights := train(func(r *tokenRun) {
		r.told = func(line string) { told = append(told, line) }
		r.quirk = func(_ int, s *rolloutServer) {
			s.before = func(*http.Request) {
				if n := fails.Add(1); n > 20 && n%7 == 0 {
					panic(http.ErrAbortHandler)
				}
			}
		}
	})
	local, others := train(func(r *tokenRun) {
		r.algorithm = func() algo.Algorithm { return &algo.Distill{Teacher: "given", Divergence: "sampled"} }
		r.taught, r.Teacher = false, must.Open(policy.NewCausalLM(policy.Config{Dir: teacherModel(t)}))(t)
	})
	expect.Equal(t, local, served, cmpopts.EquateApprox(0, 1e-5))
	expect.Equal(t, others, weights, cmpopts.EquateApprox(0, 1e-5))
	expect.True(t, len(told) > 0 && len(told) <= 3 && strings.Contains(told[0], "check the teacher"), "want a warning for each step that waits: %q", told)
}
