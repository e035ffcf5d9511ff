package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/rollout"
)

// with sends a request with a key and returns the status and the body.
func (s *running) with(t *testing.T, key, method, path, body string) (int, map[string]any) {
	t.Helper()
	s.key = key
	status, text := s.ask(t, method+" "+path, body)
	var got map[string]any
	_ = json.Unmarshal([]byte(text), &got)
	return status, got
}

// TestRecordedSessions: calls that go on are one segment with the tokens that were sampled, whether they stream or not, and the reward
// closes the session; keys are in no file.
func TestRecordedSessions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sessions")
	s := start(t, Config{Record: dir, Key: "secret"})
	path := filepath.Join(dir, rollout.RecordedFile)
	status, opened := s.with(t, "secret", "POST", "/v1/sessions", `{"group": "g"}`)
	expect.Require(t, status == 200, "%d %v", status, opened)
	key := opened["api_key"].(string)

	talk := []any{map[string]any{"role": "user", "content": "hi"}}
	say := func(fields string) string {
		messages := must.Get(json.Marshal(talk))(t)
		body := fmt.Sprintf(`{"model": "tiny", "max_tokens": 6, "messages": %s%s}`, messages, fields)
		s.key = key
		if !strings.Contains(fields, "stream") {
			return s.complete(t, "/v1/chat/completions", body).Choices[0].Message.Content
		}
		text := ""
		for _, piece := range pieces(t, s.send(t, t.Context(), "/v1/chat/completions", body)) {
			text += piece.Choices[0].Delta.Content
		}
		return text
	}
	for _, fields := range []string{"", `, "stream": true`, ""} {
		talk = append(talk, map[string]any{"role": "assistant", "content": say(fields)}, map[string]any{"role": "user", "content": "more"})
	}
	talk = talk[len(talk)-1:] // another conversation
	say("")
	for _, c := range []struct {
		method, path, body, want string
		status                   int
	}{
		{"POST", "/v1/chat/completions", `{"model": "tiny", "messages": [{"role":"user","content":"x"}], "top_p": 0.5}`, "temperature above 0", 400},
		{"POST", "/v1/chat/completions", `{"model": "tiny", "messages": [{"role":"user","content":"x"}], "temperature": 0.5}`, "open another one", 400},
		{"POST", "/v1/chat/completions", `{"model": "tiny", "messages": [{"role":"user","content":"x"}], "n": 2}`, "pass 1", 400},
		{"POST", "/v1/reward", `{"reward": "1"}`, "reward", 400},
		{"POST", "/v1/completions", `{"model": "tiny", "prompt": "x"}`, "API key", 401},
		{"POST", "/v1/sessions", `{}`, "API key", 401},
	} {
		status, got := s.with(t, key, c.method, c.path, c.body)
		expect.True(t, status == c.status && strings.Contains(fmt.Sprint(got), c.want), "%s %s: %d %v", c.path, c.body, status, got)
	}
	expect.True(t, len(must.Read(t, path)) == 0, "an open session is in the file")
	status, got := s.with(t, key, "POST", "/v1/reward", `{"reward": 0.5}`)
	expect.Require(t, status == 200, "%d %v", status, got)
	for _, method := range []string{"POST /v1/reward", "DELETE /v1/sessions"} {
		method, path, _ := strings.Cut(method, " ")
		status, _ := s.with(t, key, method, path, `{"reward": 1}`)
		expect.Same(t, http.StatusUnauthorized, status, "%s of a closed session", method)
	}

	text := must.Read(t, path)
	expect.True(t, !strings.Contains(text, key) && !strings.Contains(text, sessionKey), "the key is in the file")
	one := must.Into[rollout.Recorded](t, json.Unmarshal, []byte(text))
	x := &one.Trajectory
	must.Do(t, x.Validate())
	expect.True(t, one.Group == "g" && *one.Reward == 0.5 && one.Temperature == 1 && one.Model == "tiny" && len(x.Turns) == 4 && len(x.Segments) == 1, "%+v", one)
	first := x.Sample(1).Earlier[0]
	sampled := 0
	for i := range x.Segments[0] {
		if x.Source[i] == rl.Sampled {
			sampled++
			expect.True(t, x.LogProbs[i] < 0 && x.BehaviorLogProbs[i] < 0, "log-probabilities %v, %v", x.LogProbs[i], x.BehaviorLogProbs[i])
		}
	}
	expect.Same(t, first.Len(), sampled, "actions of the first segment")

	// A session closed without a reward has none, one without a call is not kept.
	for _, calls := range []int{1, 0} {
		_, opened := s.with(t, "secret", "POST", "/v1/sessions", `{}`)
		key = opened["api_key"].(string)
		for range calls {
			say("")
		}
		status, got = s.with(t, key, "DELETE", "/v1/sessions", "")
		expect.True(t, status == 200, "%d %v", status, got)
	}
	lines := strings.Split(strings.TrimSpace(must.Read(t, path)), "\n")
	expect.True(t, len(lines) == 2 && strings.Contains(lines[1], `"reward":null`), "%q", lines)

	_, err := openRecorder(dir)
	expect.True(t, expect.Names(err, "another server"), "%v", err)
}

// TestRecordsAreWhole: what a crash left of a line is gone when the next server starts, and nothing else.
func TestRecordsAreWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, rollout.RecordedFile)
	for text, want := range map[string]string{"": "", "a": "", "a\n": "a\n", "a\nb": "a\n", "a\n" + strings.Repeat("b", 200_000): "a\n"} {
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
		r := must.Get(openRecorder(dir))(t)
		must.Do(t, r.write(rollout.Recorded{Session: "s"}))
		must.Do(t, r.file.Close())
		got := must.Read(t, path)
		expect.True(t, strings.HasPrefix(got, want+`{"session":"s"`) && strings.HasSuffix(got, "}\n"), "%.20q: %.80q", text, got)
	}
}
