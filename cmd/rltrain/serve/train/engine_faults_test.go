package train

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote/tinker"
	rltrun "github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// between is a policy on a service behind a proxy, which asks fault first; true = it has answered.
func (s *service) between(fault func(w http.ResponseWriter, r *http.Request, pass http.Handler) bool) *tinker.Policy {
	s.t.Helper()
	pass := httputil.NewSingleHostReverseProxy(must.Get(url.Parse(s.root()))(s.t))
	pass.ErrorLog = nil
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !fault(w, r, pass) {
			pass.ServeHTTP(w, r)
		}
	}))
	s.t.Cleanup(front.Close)
	words := must.Get(policy.ReadCausalLM(s.model))(s.t)
	s.t.Cleanup(words.Close)
	p := must.Get(tinker.New(s.t.Context(), words, tinker.Config{URL: front.URL, Key: "tml-key", Rank: 4, Seed: 7, Patience: 300 * time.Millisecond}))(s.t)
	s.t.Cleanup(p.Close)
	return p
}

// drop ends a connection without a response.
func drop(w http.ResponseWriter) {
	connection, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		connection.Close()
	}
}

// TestEngineRepeats lets every third request fail: refused, lost on the way there, or lost on the way back. The losses are those
// of a network without faults. The client that has them also knows no protocol buffers.
func TestEngineRepeats(t *testing.T) {
	s := tiny(t)
	want, _ := learnt(t, s.engine(7, ""), objectives["grpo"], 4, rltrun.Hooks{})
	var n, faults atomic.Int64
	p := s.between(func(w http.ResponseWriter, r *http.Request, pass http.Handler) bool {
		if strings.HasSuffix(r.URL.Path, "client/config") {
			w.WriteHeader(http.StatusNotFound)
			return true
		}
		at := n.Add(1)
		if at%3 != 0 || strings.HasSuffix(r.URL.Path, "capabilities") {
			return false
		}
		faults.Add(1)
		switch at / 3 % 5 {
		case 0:
			w.WriteHeader(http.StatusTooManyRequests)
		case 1:
			drop(w)
		case 2:
			pass.ServeHTTP(httptest.NewRecorder(), r) // taken, but the client does not hear of it
			drop(w)
		case 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			pass.ServeHTTP(httptest.NewRecorder(), r)
			w.WriteHeader(http.StatusBadGateway)
		}
		return true
	})
	got, _ := learnt(t, p, objectives["grpo"], 4, rltrun.Hooks{})
	expect.Equal(t, want, got)
	expect.True(t, faults.Load() > 10, "%d faults", faults.Load())
}

// TestEngineEnds: a service that is gone, or has lost a request, ends training with an error that names it.
func TestEngineEnds(t *testing.T) {
	s := tiny(t)
	for name, x := range map[string]struct {
		fault func(w http.ResponseWriter)
		want  []string
	}{
		"gone": {drop, []string{"no success in 300ms", "http://127.0.0.1"}},
		"lost": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusGone) }, []string{"has lost request", "resume the run"}},
		"broken": {func(w http.ResponseWriter) {
			_, _ = w.Write([]byte(`{"error": "out of memory", "category": "server"}`))
		}, []string{"out of memory"}},
		"key": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) }, []string{"status 401"}},
	} {
		var steps, ended atomic.Int64
		p := s.between(func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
			if strings.HasSuffix(r.URL.Path, "optim_step") {
				steps.Add(1)
			}
			if steps.Load() < 2 || !strings.HasSuffix(r.URL.Path, "retrieve_future") {
				return false
			}
			ended.Add(1)
			x.fault(w)
			return true
		})
		c := train.Defaults(5)
		_, err := train.Run(t.Context(), p, recorded{func() *rl.Step { return recordedTexts(false) }}, algo.New[algo.SFT](), c, rltrun.Hooks{})
		expect.Require(t, err != nil && ended.Load() > 0, "%s: no error", name)
		expect.Contains(t, err.Error(), append(x.want, "step 2")...)
		expect.True(t, !errors.Is(err, rltrun.ErrStopped), "%s: %v", name, err)
	}
}

// TestEngineRefuses names what a policy on a service cannot do, before the first step.
func TestEngineRefuses(t *testing.T) {
	p := tiny(t).engine(7, "")
	for option, change := range map[string]func(c *train.Config) algo.Algorithm{
		"entropy_coef":         func(c *train.Config) algo.Algorithm { c.EntropyCoef = 0.1; return algo.New[algo.GRPO]() },
		"top_entropy_quantile": func(c *train.Config) algo.Algorithm { c.TopEntropy = 0.5; return algo.New[algo.GRPO]() },
		"temperature":          func(c *train.Config) algo.Algorithm { c.Temperature = 0.7; return algo.New[algo.GRPO]() },
		"algorithm":            func(*train.Config) algo.Algorithm { return algo.New[algo.PPO]() },
		"sync_ref_model": func(c *train.Config) algo.Algorithm {
			c.KLCoef, c.Sync, c.Samples = 0.1, true, 2
			return algo.New[algo.GRPO]()
		},
	} {
		c := train.Defaults(1)
		c.Samples = 2
		a := change(&c)
		_, err := train.New(p, recorded{}, a, c, rltrun.Hooks{})
		expect.Require(t, err != nil, "%s: no error", option)
		expect.Contains(t, err.Error(), option)
	}
	words := must.Open(policy.ReadCausalLM(tiny(t).model))(t)
	for text, c := range map[string]tinker.Config{
		"has no tinker.json":         {URL: "http://127.0.0.1:1", From: t.TempDir()},
		"the service has the models": {URL: tiny(t).root(), Key: "tml-key", Model: "other", Rank: 4},
		"no success":                 {URL: "http://127.0.0.1:1", Rank: 4, Patience: time.Millisecond},
		"must be 1 to 1024":          {URL: tiny(t).root(), Key: "tml-key", Rank: 1 << 20},
	} {
		_, err := tinker.New(t.Context(), words, c)
		expect.Require(t, err != nil, "%s: no error", text)
		expect.Contains(t, err.Error(), text)
	}
}
