package serve

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

func TestCompletionsAreTheEngines(t *testing.T) {
	s := start(t, Config{})
	prompts := [][]int32{{5, 6, 7}, {8}, {9, 10, 11, 12}}
	body := `{"model":"tiny","prompt":[[5,6,7],[8],[9,10,11,12]],"n":2,"max_tokens":9,"seed":77,"temperature":0.8,"logprobs":0,"return_token_ids":true%s}`
	want := direct(t, s, "", prompts, policy.GenerateOptions{Samples: 2, MaxNew: 9, Seed: 77, Sampling: torch.Sampling{Temperature: 0.8, TopP: 1, RepetitionPenalty: 1}})
	whole := s.complete(t, "/v1/completions", fmt.Sprintf(body, ""))
	tokens := 0
	for i, c := range whole.Choices {
		w := want[i/2][i%2]
		tokens += len(w.IDs)
		expect.True(t, cmp.Diff(w.IDs, c.IDs) == "" && c.Index == i && c.Text == w.Text && string(w.Reason) == *c.Reason, "choice %d: %+v, the engine writes %+v", i, c, w)
		expect.Equal(t, w.BehaviorLogProbs, c.Logs.Values, fmt.Sprintf("choice %d, log", i))
		expect.Equal(t, prompts[i/2], c.Prompt, fmt.Sprintf("choice %d, prompt", i))
	}
	expect.True(t, len(whole.Choices) == 6 && whole.Usage.Prompt == 8 && whole.Usage.Completion == tokens, "%d choices, usage %+v, want 6, 8 and %d", len(whole.Choices), whole.Usage, tokens)
	stream := pieces(t, s.send(t, t.Context(), "/v1/completions", fmt.Sprintf(body, `,"stream":true,"stream_options":{"include_usage":true}`)))
	texts, ids, reasons := make([]string, 6), make([][]int32, 6), make([]string, 6)
	for _, piece := range stream {
		for _, c := range piece.Choices {
			texts[c.Index] += c.Text
			ids[c.Index] = append(ids[c.Index], c.IDs...)
			if c.Reason != nil {
				reasons[c.Index] = *c.Reason
			}
		}
	}
	for i, c := range whole.Choices {
		expect.True(t, texts[i] == c.Text && slices.Equal(ids[i], c.IDs) && reasons[i] == *c.Reason,
			"choice %d streamed: %q %v %s, unstreamed: %q %v %s", i, texts[i], ids[i], reasons[i], c.Text, c.IDs, *c.Reason)
	}
	last := stream[len(stream)-1]
	expect.True(t, last.Usage != nil && last.Usage.Completion == tokens, "the last piece has usage %+v", last.Usage)
}

func TestStopsAndChat(t *testing.T) {
	s := start(t, Config{})
	greedy := `{"model":"tiny","prompt":"ab","max_tokens":12,"temperature":0,"return_token_ids":true%s}`
	whole := s.complete(t, "/v1/completions", fmt.Sprintf(greedy, "")).Choices[0]
	expect.Require(t, len(whole.IDs) == 12, "%d tokens", len(whole.IDs))
	text, _ := json.Marshal(whole.Text[3:5])
	cut := s.complete(t, "/v1/completions", fmt.Sprintf(greedy, `,"stop":`+string(text))).Choices[0]
	at := strings.Index(whole.Text, whole.Text[3:5])
	expect.True(t, cut.Text == whole.Text[:at] && *cut.Reason == "stop", "stopped before %s: %q, full text %q", text, cut.Text, whole.Text)
	first := slices.Index(whole.IDs, whole.IDs[4])
	cut = s.complete(t, "/v1/completions", fmt.Sprintf(greedy, fmt.Sprintf(`,"stop_token_ids":[%d]`, whole.IDs[4]))).Choices[0]
	expect.True(t, slices.Equal(cut.IDs, whole.IDs[:first+1]) && *cut.Reason == "stop" && cut.Text == whole.Text[:first], "stopped by token %d: %v %q", whole.IDs[4], cut.IDs, cut.Text)
	body := `{"model":"tiny","messages":[{"role":"user","content":"1+2"}],"max_completion_tokens":7,"seed":3%s}`
	choice := s.complete(t, "/v1/chat/completions", fmt.Sprintf(body, `,"return_token_ids":true`)).Choices[0]
	expect.True(t, len(choice.IDs) != 0 && len(choice.IDs) <= 7, "token ids %v", choice.IDs)
	answer := choice.Message
	streamed := ""
	for i, piece := range pieces(t, s.send(t, t.Context(), "/v1/chat/completions", fmt.Sprintf(body, `,"stream":true`))) {
		streamed += piece.Choices[0].Delta.Content
		role := piece.Choices[0].Delta.Role
		expect.True(t, (i == 0) == (role == "assistant"), "piece %d has the role %q", i, role)
	}
	expect.True(t, answer.Role == "assistant" && answer.Content != "" && streamed == answer.Content, "%+v, streamed %q", answer, streamed)
}

func TestRefusals(t *testing.T) {
	s := start(t, Config{})
	completion, conversation := "/v1/completions", "/v1/chat/completions"
	for _, c := range []struct {
		path, body string
		status     int
		param      string
		want       string
	}{
		{completion, `{`, 400, "", "the body is not a JSON object"},
		{completion, `[]`, 400, "", "the body is not a JSON object"},
		{completion, `null`, 400, "", "the body is not a JSON object"},
		{completion, `{"prompt":"a"}`, 400, "model", "model is missing"},
		{completion, `{"model":"gpt","prompt":"a"}`, 404, "model", "not found; available: tiny"},
		{completion, `{"model":"tiny"}`, 400, "prompt", "prompt is missing"},
		{completion, `{"model":"tiny","prompt":[]}`, 400, "prompt", "empty list"},
		{completion, `{"model":"tiny","prompt":[[]]}`, 400, "prompt", "prompt 1 is empty"},
		{completion, `{"model":"tiny","prompt":{}}`, 400, "prompt", "must be a string"},
		{completion, `{"model":"tiny","prompt":[1,99999]}`, 400, "prompt", "99999 is not a token id"},
		{completion, `{"model":"tiny","prompt":[null,5]}`, 400, "prompt", "token id 1 is null"},
		{completion, `{"model":"tiny","prompt":[[5],[6,null]]}`, 400, "prompt", "prompt 2: token id 2 is null"},
		{completion, `{"model":"tiny","prompt":["a",5]}`, 400, "prompt", "must be a string"},
		{completion, `{"model":"tiny","prompt":["a"` + strings.Repeat(`,"a"`, mostChoices) + `]}`, 400, "prompt", "more than 4096 elements"},
		{completion, `{"model":"tiny","prompt":"a","stop_token_ids":[null]}`, 400, "", "token id 1 is null"},
		{completion, `{"model":"tiny","prompt":"a","Temperature":0}`, 400, "Temperature", "not supported"},
		{completion, `{"model":"tiny","prompt":"a\u0000b"}`, 400, "prompt", "prompt 1"},
		{completion, `{"model":"tiny","prompt":"a","max_tokens":0}`, 400, "max_tokens", "max_tokens 0 is out of range"},
		{completion, `{"model":"tiny","prompt":"a","max_tokens":99999}`, 400, "max_tokens", "room for 1 to"},
		{completion, `{"model":"tiny","prompt":"a","n":129}`, 400, "n", "out of range"},
		{completion, `{"model":"tiny","prompt":"a","temperature":-1}`, 400, "temperature", "out of range"},
		{completion, `{"model":"tiny","prompt":"a","temperature":"hot"}`, 400, "temperature", "got a string, want a number"},
		{completion, `{"model":"tiny","prompt":"a","top_p":2}`, 400, "top_p", "out of range"},
		{completion, `{"model":"tiny","prompt":"a","stop":[""]}`, 400, "stop", "1 to 1024"},
		{completion, `{"model":"tiny","prompt":"a","stop":7}`, 400, "stop", "a string or a list of strings"},
		{completion, `{"model":"tiny","prompt":"a","stop_token_ids":[-3]}`, 400, "stop_token_ids", "not a token id"},
		{completion, `{"model":"tiny","prompt":"a","logprobs":21}`, 400, "logprobs", "0 to 20"},
		{completion, `{"model":"tiny","prompt":"a","logprobs":2,"top_k":3}`, 400, "logprobs", "raw_logprobs"},
		{completion, `{"model":"tiny","prompt":"a","echo":1}`, 400, "echo", "true or false"},
		{conversation, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"top_logprobs":3}`, 400, "top_logprobs", "logprobs"},
		{conversation, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":21}`, 400, "top_logprobs", "0 to 20"},
		{completion, `{"model":"tiny","prompt":"a","presence_penalty":0.5}`, 400, "presence_penalty", "not supported"},
		{completion, `{"model":"tiny","prompt":"a","wish":1}`, 400, "wish", "wish is not supported"},
		{completion, `{"model":"tiny","prompt":"a","stream_options":{"include_usage":true}}`, 400, "stream_options", "needs stream"},
		{completion, `{"model":"tiny","prompt":"` + strings.Repeat("a", 5000) + `"}`, 400, "prompt", "leaves no room"},
		{conversation, `{"model":"tiny"}`, 400, "messages", "messages is missing"},
		{conversation, `{"model":"tiny","messages":[]}`, 400, "messages", "has no messages"},
		{conversation, `{"model":"tiny","messages":[{"content":"a"}]}`, 400, "messages", "role"},
		{conversation, `{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, 400, "messages", "image_url"},
		{conversation, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"max_tokens":1,"max_completion_tokens":2}`, 400, "max_completion_tokens", "conflict"},
		{completion, `{"model":"tiny","n":128,"prompt":["a\u0000"` + strings.Repeat(`,"a"`, 32) + `]}`, 400, "n", "33 prompts with 128 completions"}, // before any becomes tokens
		{completion, `{"model":"tiny","prompt":"a","n":1.5}`, 400, "n", "want a whole number"},
		{completion, `{"model":"tiny","prompt":"a","temperature":1e999}`, 400, "temperature", "want a number up to 1.8e308"},
		{completion, `{"model":"tiny","prompt":"a","seed":` + strings.Repeat("9", 200) + `}`, 400, "seed", strings.Repeat("9", 93) + ", want"},
		{completion, `{"model":"tiny","prompt":"a","stop_token_ids":[5` + strings.Repeat(",5", mostStopIDs) + `]}`, 400, "stop_token_ids", "1025 stop tokens"},
		{completion, `{"model":"tiny","prompt":[{}]}`, 400, "prompt", "prompt 1: want a list of token ids"},
		{completion, `{"model":"tiny","prompt":"a","` + strings.Repeat("k", 200) + `":1}`, 400, strings.Repeat("k", 100), "not supported"},
		{completion, `{"model":"tiny","echo":true,"max_tokens":0,"logprobs":20,"n":128,"prompt":[[5` + strings.Repeat(`],[5`+strings.Repeat(",5", 60), 31) + `]]}`, 400, "logprobs", "tokens and alternatives"},
		{"/v1/embeddings", `{}`, 404, "", "no route POST /v1/embeddings"},
		{"/v1/completions", "", 404, "", "no route GET /v1/completions"},
	} {
		status, text := s.ask(t, c.path, c.body)
		var got said
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.Error == nil {
			t.Errorf("%.80s: %s", c.body, text)
			continue
		}
		param := ""
		if got.Error.Param != nil {
			param = *got.Error.Param
		}
		expect.True(t, status == c.status && got.Error.Code == status && param == c.param && strings.Contains(got.Error.Message, c.want),
			"%.80s: status %d, param %q, %s\nwant %d, %q, %s", c.body, status, param, got.Error.Message, c.status, c.param, c.want)
	}
	status, text := s.ask(t, "/v1/load_lora_adapter", `{"lora_name":"`+strings.Repeat("a", longestOrder)+`"}`)
	expect.Same(t, http.StatusRequestEntityTooLarge, status, "a long request for an adapter: status %d, %s", status, text)
}

// TestPagesOfABrowser: a page in a browser cannot use a local server with a request that needs no permission.
func TestPagesOfABrowser(t *testing.T) {
	s := start(t, Config{})
	for _, c := range []struct {
		kind, origin string
		status       int
	}{
		{"", "", 200}, {"application/x-www-form-urlencoded", "", 200}, {"application/json; charset=utf-8", "", 200},
		{"text/plain", "http://example.com", 415}, {"", "http://example.com", 415}, {"application/json", "http://example.com", 200},
	} {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/v1/completions", strings.NewReader(`{"model":"tiny","prompt":"a","max_tokens":1}`)))(t)
		if r.Header.Set("Content-Type", c.kind); c.kind == "" {
			r.Header.Del("Content-Type")
		}
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		answer := must.Get(http.DefaultClient.Do(r))(t)
		answer.Body.Close()
		expect.Same(t, c.status, answer.StatusCode, "type %q, origin %q: status", c.kind, c.origin)
	}
}

func TestTopP0IsGreedy(t *testing.T) {
	s := start(t, Config{})
	greedy := s.complete(t, "/v1/completions", `{"model":"tiny","prompt":"ab","max_tokens":8,"temperature":0,"return_token_ids":true}`).Choices[0].IDs
	for seed := range 3 {
		got := s.complete(t, "/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":"ab","max_tokens":8,"top_p":0,"seed":%d,"return_token_ids":true}`, seed)).Choices[0].IDs
		expect.Equal(t, greedy, got, fmt.Sprintf("seed %d", seed))
	}
}

// TestOffsets: tokens that are parts of characters have their own bytes, and places in characters of the text.
func TestOffsets(t *testing.T) {
	var o offsets
	got := []int{}
	for _, token := range []string{"a", "\xe2", "\x82", "\xac", "bc", "\xf0\x9f", "\x98\x80d", "\xff", "e"} {
		got = append(got, o.add([]byte(token)))
	}
	expect.Equal(t, []int{0, 1, 1, 1, 2, 4, 4, 6, 7}, got)
}

// TestTokensOfOneText: of alternatives with the same text, such as parts of characters, the most likely one is named.
func TestTokensOfOneText(t *testing.T) {
	s := start(t, Config{})
	const id = 5 // stands for three tokens
	text, _ := spell(s.base, id)
	for _, logs := range [][]float32{{-1, -2, -3}, {-2, -1, -3}, {-3, -2, -1}} {
		top := policy.TopLogProbs{LogProb: logs[0], IDs: []int32{id, id}, LogProbs: logs[1:]}
		p := &part{offsets: &offsets{}, ids: []int32{id}, written: 1, top: []policy.TopLogProbs{top}}
		expect.Equal(t, []map[string]float32{{text: -1}}, p.logProbs(s.base).Top, logs)
	}
}

// TestSlowBodies: a body that does not arrive is given up, with the key and without.
func TestSlowBodies(t *testing.T) {
	s := start(t, Config{Key: "secret", BodyPatience: 50 * time.Millisecond, StrangerPatience: 50 * time.Millisecond})
	for _, c := range []struct {
		path, key string
		status    string
	}{{"/v1/completions", "secret", "408"}, {"/v1/completions", "", "401"}, {"/nothing", "secret", "404"}} {
		connection := must.Open(net.Dial("tcp", strings.TrimPrefix(s.url, "http://")))(t)
		fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n{", c.path, c.key)
		all, err := io.ReadAll(connection) // ends when the server closes the connection
		expect.True(t, err == nil && strings.Contains(string(all), "HTTP/1.1 "+c.status), "%s, key %q: %q, %v", c.path, c.key, all, err)
	}
}

// TestPanic: a panic in a request ends that request alone.
func TestPanic(t *testing.T) {
	s := start(t, Config{Logf: func(string, ...any) {}})
	expect.Error(t, s.engine.ask(t.Context(), func() error { panic("fault") }), "fault")
	h := s.route("GET /x", func(http.ResponseWriter, *http.Request) error { panic("fault") })
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/x", nil))
	expect.Same(t, http.StatusInternalServerError, w.Code, "status")
	s.complete(t, "/v1/completions", `{"model":"tiny","prompt":[5],"max_tokens":1}`)
}

func TestTheKeyGuardsEveryRoute(t *testing.T) {
	s := start(t, Config{Key: "secret"})
	routes := []string{"/health", "/metrics", "/v1/models", "/v1/models/tiny", "/nothing", "/v1/completions", "/v1/chat/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
	for _, key := range []string{"", "secre", "secret2", "Secret"} {
		s.key = key
		for i, path := range routes {
			body := ""
			if i > 4 {
				body = `{"model":"tiny","prompt":"a"}`
			}
			status, text := s.ask(t, path, body)
			expect.True(t, status == http.StatusUnauthorized && strings.Contains(text, "authentication_error"), "%s with the key %q: status %d, %s", path, key, status, text)
		}
	}
	s.key = "secret"
	status, text := s.ask(t, "/health", "")
	expect.True(t, status == http.StatusOK, "with the key: status %d, %s", status, text)
	status, text = s.ask(t, "/metrics", "")
	expect.True(t, status == http.StatusOK && strings.Contains(text, `rltrain_answers_total{route="any",status="401"} 36`), "status %d\n%s", status, text)
}

// FuzzRequests: any request gets an OpenAI error or a completion, and the server stays up.
func FuzzRequests(f *testing.F) {
	for _, body := range []string{
		`{"model":"tiny","prompt":"ab","max_tokens":2}`, `{"model":"tiny","prompt":[[5,6],[7]],"n":2,"max_tokens":2,"logprobs":0,"return_token_ids":true}`,
		`{"model":"tiny","messages":[{"role":"user","content":"1+2"}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"model":"tiny","prompt":"a","stop":["b"],"stop_token_ids":[7],"temperature":0,"top_k":-1,"min_p":0.1,"repetition_penalty":2}`,
		`{"lora_name":"a","lora_path":"/tmp/../etc"}`, `{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"max_tokens":1}`, `[`, `{"prompt":{"prompt":1}}`, ``,
		`{"model":"tiny","prompt":["a",[5,6]],"echo":true,"max_tokens":0,"logprobs":0,"n":2}`, `{"model":"tiny","prompt":[5],"echo":true,"max_tokens":1,"logprobs":20,"temperature":3e-39,"top_p":1e-300,"stream":true}`,
		`{"model":"tiny","messages":[{"role":"user","content":"a"}],"max_tokens":2,"logprobs":true,"top_logprobs":20,"temperature":1e-40}`,
	} {
		for route := range 4 {
			f.Add(route, []byte(body))
		}
	}
	s := start(f, Config{AdapterDirs: []string{f.TempDir()}, Timeout: time.Second})
	paths := []string{"/v1/completions", "/v1/chat/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
	f.Fuzz(func(t *testing.T, route int, body []byte) {
		path := paths[uint(route)%4]
		status, text := s.ask(t, path, string(body)+" ")
		var got said
		expect.True(t, status == http.StatusOK || json.Unmarshal([]byte(text), &got) == nil && got.Error != nil && got.Error.Message != "" && got.Error.Code == status, "%q: status %d, %s", body, status, text)
		expect.True(t, status < 500 || status == http.StatusGatewayTimeout, "%q: status %d, %s", body, status, text)
	})
}

// TestDefaults: a model's own sampling settings apply to requests that give none, and never to log-probs of alternatives.
func TestDefaults(t *testing.T) {
	s := start(t, Config{Defaults: torch.Sampling{Temperature: 1, TopK: 1, TopP: 1, RepetitionPenalty: 1}})
	ids := func(more string) []int32 {
		return s.complete(t, "/v1/completions", `{"model":"tiny","prompt":"ab","max_tokens":12,"return_token_ids":true,"seed":3`+more+`}`).Choices[0].IDs
	}
	greedy := ids(`,"temperature":0`)
	got := ids("")
	expect.True(t, slices.Equal(got, greedy), "without fields: %v, want %v", got, greedy)
	own := ids(`,"top_k":0`)
	expect.True(t, !slices.Equal(own, greedy), "a request's own top_k changes nothing")
	got = ids(`,"logprobs":2`)
	expect.True(t, slices.Equal(got, own), "with alternatives: %v, want %v", got, own)
	chat := func(more string) []int32 {
		return s.complete(t, "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"ab"}],"max_tokens":12,"return_token_ids":true,"seed":3`+more+`}`).Choices[0].IDs
	}
	greedy, own = chat(`,"temperature":0`), chat(`,"top_k":0`)
	expect.True(t, !slices.Equal(own, greedy), "a chat's own top_k changes nothing")
	for more, want := range map[string][]int32{"": greedy, `,"logprobs":true`: greedy, `,"logprobs":true,"top_logprobs":2`: own} {
		got := chat(more)
		expect.True(t, slices.Equal(got, want), "chat with %q: %v, want %v", more, got, want)
	}
}

// TestContentParts: a content in parts is the same prompt, and variables reach the template.
func TestContentParts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	must.Do(t, policy.TinyModel(dir, 1, 32, 5))
	must.Do(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("{% if think is defined and not think %}no {% endif %}{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}"), 0o644))
	s := startModel(t, dir, Config{})
	for body, want := range map[string]int{
		`"messages":[{"role":"user","content":"a question"}]`:                                                    10,
		`"messages":[{"role":"user","content":[{"type":"text","text":"a question"}]}]`:                           10,
		`"messages":[{"role":"user","content":"a question"}],"chat_template_kwargs":{"think":false}`:             13,
		`"messages":[{"role":"user","content":"a question"}],"chat_template_kwargs":null`:                        10,
		`"messages":[{"role":"user","content":[{"type":"text","text":"a "},{"type":"text","text":"question"}]}]`: 11,
	} {
		expect.Same(t, want, s.complete(t, "/v1/chat/completions", `{"model":"tiny","max_tokens":1,`+body+`}`).Usage.Prompt, "%s: tokens", body)
	}
	status, text := s.ask(t, "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"a"}],"chat_template_kwargs":[1]}`)
	expect.True(t, status == http.StatusBadRequest && strings.Contains(text, "chat_template_kwargs"), "%d, %s", status, text)
}
