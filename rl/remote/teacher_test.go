package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
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
			teacher, err := NewTeacher(t.Context(), p, TeacherConfig{
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
	teacher := must.Get(NewTeacher(ctx, p, TeacherConfig{
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
