package remote_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote"
)

// teacherReply is the response of a teacher's server, in which a token's log-probability is −id/1024.
type teacherReply struct {
	Model   string         `json:"model"`
	Choices []teacherWords `json:"choices"`
}

type teacherWords struct {
	PromptIDs []int32      `json:"prompt_token_ids"`
	LogProbs  fakeLogProbs `json:"logprobs"`
}

// serveTeacher starts a server that change may disturb: it gets the number of the request for log-probabilities, from 1, and returns a
// status, 0 = 200.
func serveTeacher(t *testing.T, p *policy.CausalLM, change func(n int, reply *teacherReply) (status int)) *httptest.Server {
	t.Helper()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			fakeAnswer(w, 200, map[string]any{"data": []any{map[string]any{"id": "base"}, map[string]any{"id": "teacher", "parent": "base", "max_model_len": 100}}})
			return
		}
		var o struct {
			fakeOrder
			Echo bool
		}
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil || r.URL.Path != "/v1/completions" || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		var text string
		reply := teacherReply{Model: o.Model, Choices: make([]teacherWords, 1)}
		ids := &reply.Choices[0].PromptIDs
		if json.Unmarshal(o.Prompt, &text) == nil {
			*ids, _ = p.Tokenizer.EncodeRaw(text, false)
			change(0, &reply)
			fakeAnswer(w, 200, reply)
			return
		}
		var prompts [][]int32
		if err := json.Unmarshal(o.Prompt, &prompts); err != nil || len(prompts) != 1 || !o.Echo || o.LogProbs == nil || o.MaxTokens != 0 || *o.Temperature != 1 {
			t.Errorf("order %+v: %v", o, err)
		}
		*ids = prompts[0]
		values := []any{nil}
		for _, id := range prompts[0][1:] {
			values = append(values, -float64(id)/1024)
		}
		reply.Choices[0].LogProbs.Values = values
		if status := change(int(asked.Add(1)), &reply); status != 0 {
			fakeError(w, status, "quirk")
			return
		}
		fakeAnswer(w, 200, reply)
	}))
	t.Cleanup(server.Close)
	return server
}

// episode has two segments; of the second the last token is not sampled.
func episode() *rl.Trajectory {
	x := &rl.Trajectory{}
	x.AppendGiven(5)
	x.AppendSampled(6, -1, -1)
	x.EndTurn(0)
	x.BeginSegment(7, 8)
	x.AppendSampled(9, -1, -1)
	x.AppendGiven(10)
	x.EndTurn(1)
	return x
}

// TestTeacher: the log-probabilities of sampled tokens come, each given its own segment, or a clear error does.
func TestTeacher(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(dir, 1, 32, 3))
	p := newPolicy(t, dir)
	one := func(change func(c *teacherWords)) func(int, *teacherReply) int {
		return func(n int, r *teacherReply) int {
			if n > 0 {
				change(&r.Choices[0])
			}
			return 0
		}
	}
	later := func(status int, until int32) func(int, *teacherReply) int {
		return func(n int, _ *teacherReply) int {
			if n > 1 && n < int(until) {
				return status
			}
			return 0
		}
	}
	for _, c := range []struct {
		name     string
		model    string // "" = teacher
		long     bool   // the policy generates more than the teacher reads
		change   func(n int, r *teacherReply) (status int)
		startErr string
		rateErr  string
		warns    int
	}{
		{name: "well", change: later(0, 0)},
		{name: "503 and 429, then well", change: later(503, 5), warns: 1},
		{name: "lost for a while", change: later(404, 5), warns: 1},
		{name: "no such model", model: "other", change: later(0, 0), startErr: "it has no model other, only base; set teacher"},
		{name: "fewer positions", long: true, change: later(0, 0), startErr: "context of 100 tokens; 101 are needed"},
		{name: "another tokenizer", change: func(n int, r *teacherReply) int {
			if n == 0 {
				r.Choices[0].PromptIDs = append(r.Choices[0].PromptIDs, 1)
			}
			return 0
		}, startErr: "another tokenizer"},
		{name: "no echo", change: one(func(c *teacherWords) { c.LogProbs.Values = nil }), startErr: "supports echo"},
		{name: "no token ids", change: one(func(c *teacherWords) { c.PromptIDs = nil }), startErr: "return_token_ids"},
		{name: "another prompt", change: one(func(c *teacherWords) { c.PromptIDs[1]++ }), startErr: "the response is for a prompt"},
		{name: "another model", change: func(n int, r *teacherReply) int { r.Model += map[bool]string{true: "!"}[n > 0]; return 0 }, startErr: `from model "teacher!"`},
		{name: "no choice", change: func(n int, r *teacherReply) int { r.Choices = r.Choices[:min(1, max(0, 1-n))]; return 0 }, startErr: "0 choices"},
		{name: "above 0", change: one(func(c *teacherWords) { c.LogProbs.Values[2] = 0.5 }), startErr: "token 3 of the prompt has an impossible log-prob"},
		{name: "minus infinity", change: one(func(c *teacherWords) { c.LogProbs.Values[1] = -9999.0 }), startErr: "impossible"},
		{name: "null", change: one(func(c *teacherWords) { c.LogProbs.Values[1] = nil }), startErr: "impossible"},
		{name: "refused later", change: later(400, 100), rateErr: "status 400: quirk"},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := serveTeacher(t, p, c.change)
			positions, warns := 100, 0
			if c.long {
				positions = 101
			}
			model := "teacher"
			if c.model != "" {
				model = c.model
			}
			teacher, err := remote.NewTeacher(t.Context(), p, remote.TeacherConfig{
				TeacherServer: algo.TeacherServer{URL: server.URL + "/v1/", Concurrency: 2, Timeout: 60}, Model: model, Key: "secret", Positions: positions,
				Warn: func(string, ...any) { warns++ }, Pause: 1,
			})
			if c.startErr != "" {
				expect.Error(t, err, c.startErr)
				return
			}
			must.Do(t, err)
			all := []*rl.Trajectory{episode(), {}, episode(), episode()}
			err = teacher.Rate(t.Context(), all)
			expect.Same(t, c.warns, warns, "warnings")
			if c.rateErr != "" {
				expect.Error(t, err, c.rateErr)
				return
			}
			must.Do(t, err)
			for _, x := range []*rl.Trajectory{all[0], all[3]} {
				expect.Equal(t, []float32{0, -6. / 1024, 0, -8. / 1024, -9. / 1024, 0}, x.Teacher)
				s := x.Sample(1)
				expect.Equal(t, []float32{-9. / 1024}, s.Teacher)
				expect.Equal(t, []float32{-6. / 1024}, s.Earlier[0].Teacher)
			}
		})
	}
}

// TestTeacherEndsWithItsContext: a step that waits for a dead teacher ends.
func TestTeacherEndsWithItsContext(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(dir, 1, 32, 3))
	p := newPolicy(t, dir)
	server := serveTeacher(t, p, func(n int, _ *teacherReply) int { return map[bool]int{true: 503}[n > 1] })
	ctx, cancel := context.WithCancel(t.Context())
	var said string
	teacher := must.Get(remote.NewTeacher(ctx, p, remote.TeacherConfig{
		TeacherServer: algo.TeacherServer{URL: server.URL, Concurrency: 1, Timeout: 60}, Model: "teacher", Key: "secret", Pause: time.Hour,
		Warn: func(format string, args ...any) {
			said = fmt.Sprintf(format, args...)
			cancel()
		},
	}))(t)
	x := episode()
	err := teacher.Rate(ctx, []*rl.Trajectory{x})
	expect.True(t, err == context.Canceled && x.Teacher == nil && strings.Contains(said, "503"), "%v, %v, %q", err, x.Teacher, said)
}

// How vLLM-compatible servers can disturb a training run, and the test for each:
//
//	every default of generation_config.json is overridden                         TestServersUseCurrentWeights
//	requests and responses carry token ids; text is never retokenised             TestRefused/no_token_ids, another_prompt
//	log-probabilities are of the sampling distribution                            TestRefused/log-probabilities_of_another_temperature
//	capped, missing or too few log-probabilities are refused                      TestRefused/capped_log-probabilities, no_..., too_few_...
//	choices are sorted by index                                                   TestQuirks/choices_in_another_order
//	only the requested stop ids end a text                                        TestRefused/an_end_at_a_token_of_its_own
//	each prompt has a seed, the same at every server                              TestServersUseCurrentWeights, TestQuirks
//	each version has a name                                                       TestServersUseCurrentWeights
//	old versions are unloaded; their folders are removed one version later        TestServersUseCurrentWeights
//	versions in use stay                                                          TestVersionsInUseStay
//	an adapter lost by the server is loaded again                                 TestQuirks/an_evicted_adapter
//	an adapter loaded but not applied ends the run                                TestIgnoredAdapterEndsTheRun
//	a shared file system lags: 404 and 500 are retried, up to a limit             TestQuirks/lag_..., TestLagIsBounded
//	500 and 429 are retried; 503 and broken responses go to another server        TestQuirks
//	the time limit ends a slow drip                                               TestQuirks/slow_drip
//	servers may mount the folder elsewhere; every request has the key             TestServersOfAnotherMachine
//	another model or tokenizer, or fewer positions, are refused before step 1     TestRefused

// times limits a quirk to the first n requests of a route.
func times(n int, path string, what func(w http.ResponseWriter, r *http.Request)) func(http.ResponseWriter, *http.Request) bool {
	var seen atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != path || seen.Add(1) > int64(n) {
			return false
		}
		what(w, r)
		return true
	}
}

func answer(status int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "quirk", status) }
}

// TestQuirks: with any quirk, each prompt gets the same completion as from a healthy server.
func TestQuirks(t *testing.T) {
	b := newBench(t, 1)
	b.learn(t)
	want := write(t, b.start(t))
	for _, c := range []struct {
		name  string
		quirk func(b *bench)
		said  string
	}{
		{name: "lag of a shared file system", quirk: func(b *bench) { b.servers[0].Before = times(2, "/v1/load_lora_adapter", answer(404)) }},
		{name: "500 while it loads", quirk: func(b *bench) { b.servers[1].Before = times(1, "/v1/load_lora_adapter", answer(500)) }},
		{name: "500", quirk: func(b *bench) { b.servers[0].Before = times(2, "/v1/completions", answer(500)) }},
		{name: "429", quirk: func(b *bench) { b.servers[0].Before = times(2, "/v1/completions", answer(429)) }},
		{name: "an evicted adapter", quirk: func(b *bench) {
			evict := times(1, "/v1/completions", func(http.ResponseWriter, *http.Request) {})
			b.servers[0].Before = func(w http.ResponseWriter, r *http.Request) bool {
				if evict(w, r) {
					b.servers[0].Forget()
				}
				return false
			}
		}},
		{name: "503", quirk: func(b *bench) { b.servers[1].Before = times(1, "/v1/completions", answer(503)) }, said: ": status 503"},
		{name: "an answer that is cut off", quirk: func(b *bench) {
			b.servers[1].Before = times(1, "/v1/completions", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "1000")
				_, _ = w.Write([]byte(`{"model":"x","choi`))
			})
		}, said: "unexpected EOF"},
		{name: "a body that decoding the response", quirk: func(b *bench) {
			b.servers[1].Before = times(1, "/v1/completions", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"model":"x","choi`)) })
		}, said: "decoding the response"},
		{name: "slow drip", quirk: func(b *bench) {
			b.servers[1].Before = times(1, "/v1/completions", func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write([]byte(`{`))
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
		}, said: "no complete response within 2s"},
		{name: "choices in another order", quirk: func(b *bench) {
			b.servers[0].Change = func(_ fakeOrder, all []fakeChoice) []fakeChoice {
				slices.Reverse(all)
				return all
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, 2)
			b.learn(t)
			b.config.Timeout = 2
			s := b.start(t)
			b.learn(t)
			b.unlearn(t)
			b.servers[0].Lock()
			b.servers[1].Lock()
			c.quirk(b)
			b.servers[0].Unlock()
			b.servers[1].Unlock()
			expect.Equal(t, want, write(t, s))
			said := strings.Join(b.said, "\n")
			expect.True(t, (c.said != "" || said == "") && strings.Contains(said, c.said), "log %q, want %q", said, c.said)
		})
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		quirk func(t *testing.T, b *bench)
		want  string
	}{
		{"another model", func(t *testing.T, b *bench) {
			dir := filepath.Join(t.TempDir(), "other")
			must.Do(t, policy.TinyModel(dir, 1, 32, 6))
			b.config.URLs[0] = newFakeServer(t, dir).URL
		}, "nats on average, above rollout_tolerance"},
		{"adapters that are not applied", func(t *testing.T, b *bench) { b.learn(t); b.servers[0].Frozen = true }, "does not apply the adapter"},
		{"log-probabilities of another temperature", func(_ *testing.T, b *bench) { b.servers[0].Raw = true }, "at temperature 1, not 0.7; start it with --logprobs-mode processed_logprobs"},
		{"another tokenizer", func(_ *testing.T, b *bench) {
			b.servers[0].Change = func(o fakeOrder, all []fakeChoice) []fakeChoice {
				if o.Model == "base" {
					all[0].PromptIDs = all[0].PromptIDs[1:]
				}
				return all
			}
		}, "it has another tokenizer"},
		{"fewer positions", func(_ *testing.T, b *bench) { b.servers[0].Length = 39 }, "has a context of 39 tokens; 40 are needed"},
		{"no such model", func(_ *testing.T, b *bench) { b.config.Model = "mine" }, "it has no model mine, only base"},
		{"capped log-probabilities", first(func(c *fakeChoice) { c.LogProbs.Values[0] = -9999.0 }), "an impossible log-prob"},
		{"no log-probability", first(func(c *fakeChoice) { c.LogProbs.Values[0] = nil }), "an impossible log-prob"},
		{"too few log-probabilities", first(func(c *fakeChoice) { c.LogProbs.Values = c.LogProbs.Values[1:] }), "not have one log-prob per token"},
		{"no token ids", first(func(c *fakeChoice) { c.IDs = nil }), "has no token_ids"},
		{"tokens of another vocabulary", first(func(c *fakeChoice) { c.IDs[0] = 9999 }), "token 9999 is out of range"},
		{"another prompt", first(func(c *fakeChoice) { c.PromptIDs = append([]int32{1}, c.PromptIDs...) }), "changed the prompt"},
		{"a choice twice", first(func(c *fakeChoice) { c.Index = 1 }), "is a duplicate"},
		{"an end at a token of its own", first(func(c *fakeChoice) { c.Reason, c.IDs[len(c.IDs)-1] = "stop", 20 }), "stops at token 20, which is not a stop token here"},
		{"more tokens than asked for", first(func(c *fakeChoice) { c.IDs = append(c.IDs, make([]int32, 99)...) }), "more than max_tokens"},
		{"nobody there", func(_ *testing.T, b *bench) { b.servers[0].Die() }, "EOF"},
		{"a wrong key", func(_ *testing.T, b *bench) {
			b.servers[0].Before = func(w http.ResponseWriter, r *http.Request) bool { answer(401)(w, r); return true }
		}, "status 401"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, 1)
			c.quirk(t, b)
			s, err := remote.New(t.Context(), b.policy, b.config)
			if err == nil {
				s.Close()
			}
			expect.Error(t, err, c.want, b.config.URLs[0])
		})
	}
}

// first applies a quirk to the first choice of every response.
func first(change func(*fakeChoice)) func(*testing.T, *bench) {
	return func(_ *testing.T, b *bench) {
		b.servers[0].Change = func(_ fakeOrder, all []fakeChoice) []fakeChoice {
			change(&all[0])
			return all
		}
	}
}

// TestServersOfAnotherMachine: the servers have another path for the adapter folder, and require a key.
func TestServersOfAnotherMachine(t *testing.T) {
	b := newBench(t, 1)
	link := filepath.Join(t.TempDir(), "mounted")
	must.Do(t, os.Symlink(b.config.Dir, link))
	b.config.ServerDir, b.config.Key = link, "secret"
	one := b.servers[0]
	var wrong atomic.Int64
	one.Before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "Bearer secret" {
			wrong.Add(1)
		}
		return false
	}
	write(t, b.start(t))
	n := wrong.Load()
	expect.True(t, n <= 0, "%d requests without the key", n)
	expect.True(t, len(one.Paths) == 1 && filepath.Dir(one.Paths[0]) == link, "it was to load %v, not from %s", one.Paths, link)
}

// TestLagIsBounded: waiting ends if an adapter never appears.
func TestLagIsBounded(t *testing.T) {
	b := newBench(t, 1)
	b.config.Lag = time.Nanosecond
	b.servers[0].Before = times(1000, "/v1/load_lora_adapter", answer(404))
	s, err := remote.New(t.Context(), b.policy, b.config)
	if err == nil {
		s.Close()
	}
	expect.Error(t, err, "loading an adapter from "+b.config.Dir)
}
