package judge

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

var yesNo = []string{"No", "Yes"}

// asked is a question whose verdict a model in this process would continue.
func asked(text string) envs.Observation {
	return envs.Observation{Messages: []envs.Message{{Role: envs.RoleSystem, Content: "You judge."}, {Role: envs.RoleUser, Content: text}, {Role: envs.RoleAssistant, Content: "Verdict:"}}}
}

// serve answers requests with respond, which gets the number of the request and its body.
func serve(t *testing.T, o Options, respond func(n int, body map[string]any) (code int, text string)) *Client {
	t.Helper()
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		err := json.NewDecoder(r.Body).Decode(&body)
		expect.True(t, err == nil && r.URL.Path == "/v1/chat/completions" && r.Header.Get("Authorization") == "Bearer secret", "%s: %v", r.URL.Path, err)
		code, text := respond(int(n.Add(1)), body)
		w.WriteHeader(code)
		fmt.Fprint(w, text)
	}))
	t.Cleanup(server.Close)
	o.URL = server.URL
	c := must.Get(New(o, "m", "secret"))(t)
	t.Cleanup(func() { must.Do(t, c.Close()) })
	c.pause = 1
	return c
}

// said is a response with the log-probabilities of its first token.
func said(text string, top ...any) string {
	var tokens []string
	for i := 0; i < len(top); i += 2 {
		tokens = append(tokens, fmt.Sprintf(`{"token":%q,"logprob":%v}`, top[i], top[i+1]))
	}
	logprobs := "null"
	if tokens != nil {
		logprobs = `{"content":[{"top_logprobs":[` + strings.Join(tokens, ",") + `]}]}`
	}
	return fmt.Sprintf(`{"choices":[{"message":{"content":%q},"logprobs":%s}],"usage":{"prompt_tokens":20,"completion_tokens":2}}`, text, logprobs)
}

func TestVerdicts(t *testing.T) {
	scores := []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}
	for _, test := range []struct {
		name, response string
		choices        []string
		want           map[string]float64
		wantErr        string
	}{
		{"probabilities", said("Yes", "Yes", -0.6931471805599453, " yes", -2.302585092994046, "No", -1.6094379124341003, "Maybe", -3), yesNo, map[string]float64{"Yes": 0.75, "No": 0.25}, ""},
		{"text alone", said(" **No**, because"), yesNo, map[string]float64{"No": 1}, ""},
		{"a first token that says little", said("yes.", "Well", -0.1, "Yes", -3), yesNo, map[string]float64{"Yes": 1}, ""},
		{"several tokens", said("10", "1", -0.1, "9", -3), scores, map[string]float64{"10": 1}, ""},
		{"one of ten", said("9", "9", -0.6931471805599453, "10", -0.6931471805599453), scores, map[string]float64{"9": 0.5, "10": 0.5}, ""},
		{"a reply that is none, with probabilities", said("Perhaps", "Perhaps", -0.1, "No", -4, "Yes", -4), yesNo, map[string]float64{"No": 0.5, "Yes": 0.5}, ""},
		{"no choice", said("Perhaps"), yesNo, nil, `"Perhaps" is none of No, Yes`},
		{"a word that begins so", said("Nobody knows"), yesNo, nil, "is none of"},
		{"nothing", `{"choices":[]}`, yesNo, nil, "no choice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := serve(t, Options{}, func(int, map[string]any) (int, string) { return 200, test.response })
			shares, err := c.Choose(t.Context(), asked("Is it good?"), test.choices)
			if test.wantErr != "" {
				expect.Error(t, err, test.wantErr)
				expect.Same(t, 1, c.Take().Failures, "failures")
				return
			}
			must.Do(t, err)
			got := map[string]float64{}
			for i, p := range shares {
				if p > 0 {
					got[test.choices[i]] = p
				}
			}
			expect.Equal(t, test.want, got, cmpopts.EquateApprox(0, 1e-12))
		})
	}
}

// TestQuestion: the server gets the messages without the beginning of the reply, and the choices.
func TestQuestion(t *testing.T) {
	c := serve(t, Options{}, func(_ int, body map[string]any) (int, string) {
		messages := body["messages"].([]any)
		last := messages[len(messages)-1].(map[string]any)
		expect.True(t, len(messages) == 2 && last["role"] == "user" && strings.HasPrefix(last["content"].(string), "Is it good?") && strings.HasSuffix(last["content"].(string), "No, Yes") &&
			body["model"] == "m" && body["temperature"] == 0.0 && body["logprobs"] == true, "body %v", body)
		return 200, said("Yes")
	})
	must.Get(c.Choose(t.Context(), asked("Is it good?"), yesNo))(t)
	expect.Equal(t, Count{Questions: 1, Requests: 1, PromptTokens: 20, CompletionTokens: 2}, c.Take())
	expect.Equal(t, Count{}, c.Take(), "after it was taken")
}

func TestRetries(t *testing.T) {
	for _, test := range []struct {
		name      string
		responses []string // CODE TEXT; the last one repeats
		requests  int
		wantErr   string
	}{
		{"overloaded", []string{"503 busy", "429 slow down", "500 oops", "200 " + said("Yes")}, 4, ""},
		{"cut off", []string{"200 {\"choices", "200 " + said("Yes")}, 2, ""},
		{"without log-probabilities", []string{`400 {"error":{"message":"logprobs are not supported"}}`, "200 " + said("Yes")}, 2, ""},
		{"always overloaded", []string{"503 busy"}, attempts, "status 503: busy"},
		{"a wrong key", []string{`401 {"error":{"message":"invalid key"}}`}, 1, "status 401: invalid key"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := serve(t, Options{}, func(n int, body map[string]any) (int, string) {
				var code int
				response := test.responses[min(n, len(test.responses))-1]
				must.Get(fmt.Sscan(response, &code))(t)
				expect.True(t, !strings.HasPrefix(test.name, "without") || n != 2 || body["logprobs"] == nil, "log-probabilities are asked for again")
				return code, response[4:]
			})
			_, err := c.Choose(t.Context(), asked("?"), yesNo)
			if test.wantErr != "" {
				expect.Error(t, err, test.wantErr)
			} else {
				must.Do(t, err)
			}
			n := c.Take()
			expect.True(t, n.Requests == test.requests && n.Retries == test.requests-1, "counts %+v", n)
		})
	}
}

func TestCancelledQuestion(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := serve(t, Options{}, func(int, map[string]any) (int, string) { cancel(); return 503, "" })
	c.pause = mostPause
	expect.Failure(c.Choose(ctx, asked("?"), yesNo))(t, context.Canceled.Error())
}

// TestEqualQuestionsAreAskedOnce: at the same time, later, and by a later run with the same file.
func TestEqualQuestionsAreAskedOnce(t *testing.T) {
	var running, most, requests atomic.Int32
	respond := func(int, map[string]any) (int, string) {
		requests.Add(1)
		if now := running.Add(1); now > most.Load() {
			most.Store(now)
		}
		for range 1000 { // others may begin meanwhile
			runtime.Gosched()
		}
		defer running.Add(-1)
		return 200, said("Yes", "Yes", -0.1, "No", -2.3)
	}
	path := filepath.Join(t.TempDir(), "verdicts.jsonl")
	c := serve(t, Options{Cache: path, Concurrency: 3}, respond)
	ask := func(c *Client) {
		var wait sync.WaitGroup
		for i := range 60 {
			wait.Go(func() {
				_, err := c.Choose(t.Context(), asked(fmt.Sprint(i%10)), yesNo)
				expect.True(t, err == nil, "%v", err)
			})
		}
		wait.Wait()
	}
	ask(c)
	n := c.Take()
	expect.True(t, requests.Load() == 10 && most.Load() <= 3 && n.Questions == 60 && n.Cached == 50, "%d requests, %d at a time, counts %+v", requests.Load(), most.Load(), n)
	before := string(must.Get(os.ReadFile(path))(t))
	must.Do(t, os.WriteFile(path, []byte(before+`{"key":"torn`), 0o600))
	later := serve(t, Options{Cache: path}, respond)
	ask(later)
	expect.True(t, requests.Load() == 10 && string(must.Get(os.ReadFile(path))(t)) == before, "%d requests; the file has changed", requests.Load())
	_, err := later.Choose(t.Context(), asked("3"), []string{"Yes", "No"}) // another question
	expect.True(t, err == nil && requests.Load() == 11, "%v, %d requests", err, requests.Load())

	must.Do(t, os.WriteFile(path, []byte("epochs: 3\n"), 0o600))
	expect.Failure(New(Options{URL: "http://host", Cache: path}, "m", ""))(t, "verdicts.jsonl:1")
}

func TestAddresses(t *testing.T) {
	for address, ok := range map[string]bool{"http://host:8000": true, "https://host/v1/": true, "host:8000": false, "ftp://host": false, "http://u:p@host": false, "http://host/?a=b": false} {
		o := Options{URL: address}
		if err := o.Check(); ok {
			must.Do(t, err)
		} else {
			expect.Error(t, err, "judge_url")
		}
	}
	expect.Same(t, "https://host/v1/chat/completions", must.Get(New(Options{URL: "https://host/v1/"}, "m", ""))(t).url, "address")
}

func FuzzVerdict(f *testing.F) {
	for _, seed := range []string{said("Yes", "Yes", -1), said("10"), `{"choices":[{"message":{"content":"No"},"logprobs":{"content":[{"top_logprobs":[{"token":"No","logprob":1e9}]}]}}]}`, "{}", "null"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r reply
		if json.Unmarshal([]byte(text), &r) != nil {
			return
		}
		shares, err := r.verdict(yesNo)
		expect.True(t, err != nil || (line{"k", shares}).valid(), "%q has the verdict %v", text, shares)
	})
}
