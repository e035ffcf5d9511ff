package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rltrain/rl/policy"
	"rltrain/torch"
	"rltrain/torch/torchtest"
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

// start serves a small model with a chat template by the name "tiny".
func start(t testing.TB, c Config) *running {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := policy.TinyChatModel(dir, 1, 32, 5); err != nil {
		t.Fatal(err)
	}
	return startModel(t, dir, c)
}

func startModel(t testing.TB, dir string, c Config) *running {
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
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &running{url: "http://" + listener.Addr().String(), stop: stop, ended: make(chan error, 1), key: c.Key, client: http.DefaultClient}
	made := make(chan error, 1)
	thread := torch.NewThread()
	go func() {
		s.ended <- thread.Do(context.Background(), func(context.Context) error {
			p, err := policy.NewToken(policy.TokenConfig{Dir: dir})
			if err != nil {
				made <- err
				return err
			}
			defer p.Close()
			s.Server, err = New(p, c)
			if made <- err; err != nil {
				return err
			}
			return s.Serve(ctx, listener)
		})
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		<-s.ended
		thread.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return s
}

// send posts a body, or gets where it is empty.
func (s *running) send(t testing.TB, ctx context.Context, path, body string) *http.Response {
	t.Helper()
	method := http.MethodPost
	if body == "" {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if s.key != "" {
		r.Header.Set("Authorization", "Bearer "+s.key)
	}
	answer, err := s.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func (s *running) ask(t testing.TB, path, body string) (int, string) {
	t.Helper()
	answer := s.send(t, t.Context(), path, body)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// said is what tests read of an answer or of a piece of one.
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
	if err := json.Unmarshal([]byte(text), &out); err != nil || status != http.StatusOK {
		t.Fatalf("%s: status %d, %s", body, status, text)
	}
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
			if err := json.Unmarshal(data, &one); err != nil {
				t.Fatalf("%s: %v", data, err)
			}
			all = append(all, one)
		}
	}
	if !ended {
		t.Error("the stream has no end")
	}
	return all
}

// idle waits until the engine has nothing to do.
func (s *running) idle(t testing.TB) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		busy := 0
		if err := s.engine.ask(t.Context(), func() error {
			for _, l := range s.engine.lanes {
				busy += len(l.running) + len(l.waiting) + l.sampler.Unfinished()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if busy == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d requests and samples are still there", busy)
		}
		runtime.Gosched()
	}
}

// direct is what the engine writes without a server.
func direct(t testing.TB, s *running, adapter string, prompts [][]int32, o policy.GenerateOptions) (all [][]policy.Completion) {
	t.Helper()
	if err := s.engine.ask(t.Context(), func() error {
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
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

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
		if diff := cmp.Diff(w.IDs, c.IDs); diff != "" || c.Index != i || c.Text != w.Text || string(w.Reason) != *c.Reason {
			t.Errorf("choice %d: %+v, the engine writes %+v", i, c, w)
		}
		if diff := cmp.Diff(w.Drawn, c.Logs.Values); diff != "" {
			t.Errorf("choice %d, log-probabilities (-engine +server)\n%s", i, diff)
		}
		if diff := cmp.Diff(prompts[i/2], c.Prompt); diff != "" {
			t.Errorf("choice %d, prompt\n%s", i, diff)
		}
	}
	if len(whole.Choices) != 6 || whole.Usage.Prompt != 8 || whole.Usage.Completion != tokens {
		t.Errorf("%d choices, usage %+v, want 6, 8 and %d", len(whole.Choices), whole.Usage, tokens)
	}
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
		if texts[i] != c.Text || !slices.Equal(ids[i], c.IDs) || reasons[i] != *c.Reason {
			t.Errorf("choice %d streamed: %q %v %s, whole: %q %v %s", i, texts[i], ids[i], reasons[i], c.Text, c.IDs, *c.Reason)
		}
	}
	if last := stream[len(stream)-1]; last.Usage == nil || last.Usage.Completion != tokens {
		t.Errorf("the last piece has usage %+v", last.Usage)
	}
}

func TestRawLogProbabilities(t *testing.T) {
	s := start(t, Config{Raw: true})
	want := direct(t, s, "", [][]int32{{5}}, policy.GenerateOptions{Samples: 1, MaxNew: 6, Sampling: torch.Sampling{}})
	got := s.complete(t, "/v1/completions", `{"model":"tiny","prompt":[5],"max_tokens":6,"temperature":0,"logprobs":0}`)
	if diff := cmp.Diff(want[0][0].LogProbs, got.Choices[0].Logs.Values); diff != "" {
		t.Errorf("(-model's own +server)\n%s", diff)
	}
}

func TestStopsAndChat(t *testing.T) {
	s := start(t, Config{})
	greedy := `{"model":"tiny","prompt":"ab","max_tokens":12,"temperature":0,"return_token_ids":true%s}`
	whole := s.complete(t, "/v1/completions", fmt.Sprintf(greedy, "")).Choices[0]
	if len(whole.IDs) != 12 {
		t.Fatalf("%d tokens", len(whole.IDs))
	}
	text, _ := json.Marshal(whole.Text[3:5])
	cut := s.complete(t, "/v1/completions", fmt.Sprintf(greedy, `,"stop":`+string(text))).Choices[0]
	at := strings.Index(whole.Text, whole.Text[3:5])
	if cut.Text != whole.Text[:at] || *cut.Reason != "stop" {
		t.Errorf("stopped before %s: %q, whole %q", text, cut.Text, whole.Text)
	}
	first := slices.Index(whole.IDs, whole.IDs[4])
	cut = s.complete(t, "/v1/completions", fmt.Sprintf(greedy, fmt.Sprintf(`,"stop_token_ids":[%d]`, whole.IDs[4]))).Choices[0]
	if !slices.Equal(cut.IDs, whole.IDs[:first+1]) || *cut.Reason != "stop" || cut.Text != whole.Text[:first] {
		t.Errorf("stopped by token %d: %v %q", whole.IDs[4], cut.IDs, cut.Text)
	}
	body := `{"model":"tiny","messages":[{"role":"user","content":"1+2"}],"max_completion_tokens":7,"seed":3%s}`
	answer := s.complete(t, "/v1/chat/completions", fmt.Sprintf(body, "")).Choices[0].Message
	streamed := ""
	for i, piece := range pieces(t, s.send(t, t.Context(), "/v1/chat/completions", fmt.Sprintf(body, `,"stream":true`))) {
		streamed += piece.Choices[0].Delta.Content
		if role := piece.Choices[0].Delta.Role; (i == 0) != (role == "assistant") {
			t.Errorf("piece %d has the role %q", i, role)
		}
	}
	if answer.Role != "assistant" || answer.Content == "" || streamed != answer.Content {
		t.Errorf("%+v, streamed %q", answer, streamed)
	}
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
		{completion, `{`, 400, "", "the body is no JSON object"},
		{completion, `[]`, 400, "", "the body is no JSON object"},
		{completion, `null`, 400, "", "the body is no JSON object"},
		{completion, `{"prompt":"a"}`, 400, "model", "model is missing"},
		{completion, `{"model":"gpt","prompt":"a"}`, 404, "model", `there is no model "gpt" here; there are tiny`},
		{completion, `{"model":"tiny"}`, 400, "prompt", "prompt is missing"},
		{completion, `{"model":"tiny","prompt":[]}`, 400, "prompt", "empty list"},
		{completion, `{"model":"tiny","prompt":[[]]}`, 400, "prompt", "prompt 1 is empty"},
		{completion, `{"model":"tiny","prompt":{}}`, 400, "prompt", "must be a text"},
		{completion, `{"model":"tiny","prompt":[1,99999]}`, 400, "prompt", "99999 is not a token id from 0 to"},
		{completion, `{"model":"tiny","prompt":[-1]}`, 400, "prompt", "-1 is not a token id"},
		{completion, `{"model":"tiny","prompt":"a\u0000b"}`, 400, "prompt", "prompt 1"},
		{completion, `{"model":"tiny","prompt":"a","max_tokens":0}`, 400, "max_tokens", "max_tokens 0 is out of range"},
		{completion, `{"model":"tiny","prompt":"a","max_tokens":99999}`, 400, "max_tokens", "room for 1 to"},
		{completion, `{"model":"tiny","prompt":"a","n":0}`, 400, "n", "out of range"},
		{completion, `{"model":"tiny","prompt":"a","n":129}`, 400, "n", "out of range"},
		{completion, `{"model":"tiny","prompt":"a","temperature":-1}`, 400, "temperature", "out of range"},
		{completion, `{"model":"tiny","prompt":"a","temperature":"hot"}`, 400, "temperature", "a string is not what it takes"},
		{completion, `{"model":"tiny","prompt":"a","top_p":2}`, 400, "top_p", "out of range"},
		{completion, `{"model":"tiny","prompt":"a","stop":[""]}`, 400, "stop", "1 to 1024"},
		{completion, `{"model":"tiny","prompt":"a","stop":7}`, 400, "stop", "a text or a list of texts"},
		{completion, `{"model":"tiny","prompt":"a","stop_token_ids":[-3]}`, 400, "stop_token_ids", "not a token id"},
		{completion, `{"model":"tiny","prompt":"a","logprobs":5}`, 400, "logprobs", "give 0"},
		{completion, `{"model":"tiny","prompt":"a","echo":true}`, 400, "echo", "echo true is not supported"},
		{completion, `{"model":"tiny","prompt":"a","best_of":3}`, 400, "best_of", "not supported"},
		{completion, `{"model":"tiny","prompt":"a","presence_penalty":0.5}`, 400, "presence_penalty", "not supported"},
		{completion, `{"model":"tiny","prompt":"a","wish":1}`, 400, "wish", "wish is not supported"},
		{completion, `{"model":"tiny","prompt":"a","stream_options":{"include_usage":true}}`, 400, "stream_options", "go with stream"},
		{completion, `{"model":"tiny","prompt":"` + strings.Repeat("a", 5000) + `"}`, 400, "prompt", "leaves no room"},
		{conversation, `{"model":"tiny"}`, 400, "messages", "messages is missing"},
		{conversation, `{"model":"tiny","messages":[]}`, 400, "messages", "without messages"},
		{conversation, `{"model":"tiny","messages":[{"content":"a"}]}`, 400, "messages", "role"},
		{conversation, `{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`, 400, "messages", "image_url"},
		{conversation, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"tools":[{}]}`, 400, "tools", "not supported"},
		{conversation, `{"model":"tiny","messages":[{"role":"user","content":"a"}],"max_tokens":1,"max_completion_tokens":2}`, 400, "max_completion_tokens", "disagree"},
		{"/v1/embeddings", `{}`, 404, "", "there is no POST /v1/embeddings here"},
		{"/v1/completions", "", 404, "", "there is no GET /v1/completions here"},
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
		if status != c.status || got.Error.Code != status || param != c.param || !strings.Contains(got.Error.Message, c.want) {
			t.Errorf("%.80s: status %d, param %q, %s\nwant %d, %q, %s", c.body, status, param, got.Error.Message, c.status, c.param, c.want)
		}
	}
	answer, err := http.Post(s.url+"/v1/completions", "text/plain", strings.NewReader(`{"model":"tiny","prompt":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("a body of plain text: status %d", answer.StatusCode)
	}
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
			if status, text := s.ask(t, path, body); status != http.StatusUnauthorized || !strings.Contains(text, "authentication_error") {
				t.Errorf("%s with the key %q: status %d, %s", path, key, status, text)
			}
		}
	}
	s.key = "secret"
	if status, text := s.ask(t, "/health", ""); status != http.StatusOK {
		t.Errorf("with the key: status %d, %s", status, text)
	}
	status, text := s.ask(t, "/metrics", "")
	if status != http.StatusOK || !strings.Contains(text, `rltrain_answers_total{route="any",status="401"} 36`) {
		t.Errorf("status %d\n%s", status, text)
	}
}

// adapter writes an adapter on the model of s that changes it.
func adapter(t testing.TB, s *running, dir string, seed uint64) {
	t.Helper()
	if err := s.engine.ask(t.Context(), func() error {
		p, err := policy.NewToken(policy.TokenConfig{Dir: s.base.BaseModel, R: 2, Alpha: 4, Seed: seed})
		if err != nil {
			return err
		}
		defer p.Close()
		for i, v := range p.Params() {
			values, err := v.Read()
			if err != nil {
				return err
			}
			for j := range values {
				values[j] += float32((i*7+j*13+int(seed)*5)%11-5) / 20
			}
			if err := v.Write(values); err != nil {
				return err
			}
		}
		return p.SaveAdapter(dir)
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAdaptersComeAndGo(t *testing.T) {
	allowed, outside := t.TempDir(), t.TempDir()
	s := start(t, Config{AdapterDirs: []string{allowed}, MaxAdapters: 2})
	for name, dir := range map[string]string{"a": allowed + "/a", "b": allowed + "/b", "c": allowed + "/deep/c", "x": outside + "/x"} {
		adapter(t, s, dir, uint64(name[0]))
	}
	if err := os.Symlink(outside+"/x", allowed+"/link"); err != nil {
		t.Fatal(err)
	}
	load := func(name, path string, want int, text string) {
		t.Helper()
		status, got := s.ask(t, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, name, path))
		if status != want || !strings.Contains(got, text) {
			t.Errorf("loading %s from %s: status %d, %s, want %d, %s", name, path, status, got, want, text)
		}
	}
	load("x", outside+"/x", 403, "none of the folders")
	load("x", allowed+"/link", 403, "none of the folders")
	load("x", allowed+"/../"+filepath.Base(outside)+"/x", 403, "none of the folders")
	load("x", "a", 400, "absolute path")
	load("x", allowed+"/nothing", 404, "no folder")
	load("x", allowed+"/deep", 404, "no adapter_config.json")
	load("tiny", allowed+"/a", 400, "already been loaded")
	load("", allowed+"/a", 400, "lora_name")
	load("a", allowed+"/a", 200, "Success")
	load("a", allowed+"/b", 400, "already been loaded")
	load("b", allowed+"/b", 200, "Success")
	load("c", allowed+"/deep/c", 400, "--max-adapters")

	prompt := [][]int32{{5, 6, 7}}
	o := policy.GenerateOptions{Samples: 3, MaxNew: 8, Seed: 4, Sampling: torch.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}}
	want := map[string][]policy.Completion{"tiny": direct(t, s, "", prompt, o)[0], "a": direct(t, s, allowed+"/a", prompt, o)[0], "b": direct(t, s, allowed+"/b", prompt, o)[0]}
	if slices.Equal(want["a"][0].IDs, want["b"][0].IDs) && slices.Equal(want["a"][1].IDs, want["b"][1].IDs) {
		t.Fatal("the adapters write the same")
	}
	var clients sync.WaitGroup
	for i := range 12 {
		name := []string{"tiny", "a", "b"}[i%3]
		clients.Go(func() {
			got := s.complete(t, "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":[5,6,7],"n":3,"max_tokens":8,"seed":4,"return_token_ids":true}`, name))
			for k, c := range got.Choices {
				if !slices.Equal(c.IDs, want[name][k].IDs) {
					t.Errorf("%s, sample %d: %v, want %v", name, k, c.IDs, want[name][k].IDs)
				}
			}
		})
	}
	clients.Wait()
	var list struct{ Data []struct{ ID, Parent string } }
	if _, text := s.ask(t, "/v1/models", ""); json.Unmarshal([]byte(text), &list) != nil || len(list.Data) != 3 || list.Data[1].ID != "a" || list.Data[1].Parent != "tiny" {
		t.Errorf("models: %s", text)
	}
	for _, c := range []struct {
		name string
		want int
	}{{"a", 200}, {"a", 404}, {"tiny", 404}} {
		if status, text := s.ask(t, "/v1/unload_lora_adapter", fmt.Sprintf(`{"lora_name":%q}`, c.name)); status != c.want {
			t.Errorf("unloading %s: status %d, %s", c.name, status, text)
		}
	}
	if status, _ := s.ask(t, "/v1/completions", `{"model":"a","prompt":"x"}`); status != 404 {
		t.Errorf("an adapter that was unloaded answers with status %d", status)
	}
	s.idle(t)
	load("c", allowed+"/deep/c", 200, "Success")
}

// manyClients has clients ask at once, every other of which goes away after the first piece of its answer. All others have
// to get what the engine writes for them alone.
func manyClients(t *testing.T, n, tokens int) {
	s := start(t, Config{Queue: n, Slots: 16})
	before := runtime.NumGoroutine()
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() {
			body := fmt.Sprintf(`{"model":"tiny","prompt":[%d,6],"max_tokens":%d,"seed":%d,"n":2,"stream":%v,"return_token_ids":true}`, 5+i%20, tokens, i, i%2 == 1 || i%3 == 0)
			ctx, cut := context.WithCancel(t.Context())
			defer cut()
			answer := s.send(t, ctx, "/v1/completions", body)
			if i%2 == 1 {
				_, _ = bufio.NewReader(answer.Body).ReadString('\n')
				cut()
				answer.Body.Close()
				return
			}
			ids := make([][]int32, 2)
			if i%3 == 0 {
				for _, piece := range pieces(t, answer) {
					for _, c := range piece.Choices {
						ids[c.Index] = append(ids[c.Index], c.IDs...)
					}
				}
			} else {
				var got said
				err := json.NewDecoder(answer.Body).Decode(&got)
				answer.Body.Close()
				if err != nil || len(got.Choices) != 2 {
					t.Errorf("client %d: %v, %+v", i, err, got)
					return
				}
				ids[0], ids[1] = got.Choices[0].IDs, got.Choices[1].IDs
			}
			want := direct(t, s, "", [][]int32{{int32(5 + i%20), 6}}, policy.GenerateOptions{Samples: 2, MaxNew: tokens, Seed: uint64(i), Sampling: torch.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}})[0]
			for k := range ids {
				if !slices.Equal(ids[k], want[k].IDs) {
					t.Errorf("client %d, sample %d: %v, want %v", i, k, ids[k], want[k].IDs)
				}
			}
		})
	}
	clients.Wait()
	s.idle(t)
	s.engine.lock.Lock()
	if s.engine.waiting != 0 {
		t.Errorf("%d requests are counted as waiting", s.engine.waiting)
	}
	s.engine.lock.Unlock()
	http.DefaultClient.CloseIdleConnections()
	for deadline := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before+4 && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	if now := runtime.NumGoroutine(); now > before+4 {
		t.Errorf("%d goroutines, %d before", now, before)
	}
}

func TestClientsThatGoAwayLeaveNothingBehind(t *testing.T) { manyClients(t, 24, 40) }

// hold keeps the engine from its next step until release is called.
func (s *running) hold() (release func()) {
	held, gate := make(chan struct{}), make(chan struct{})
	s.engine.order(func() {
		close(held)
		<-gate
	})
	<-held
	return sync.OnceFunc(func() { close(gate) })
}

// later asks without waiting for the answer.
func (s *running) later(t *testing.T, ctx context.Context, body string) (answered <-chan string) {
	all := make(chan string, 1)
	go func() {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			all <- err.Error()
			return
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			all <- err.Error()
			return
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		all <- answer.Status + " " + string(text)
	}()
	return all
}

func TestTheQueueIsBounded(t *testing.T) {
	s := start(t, Config{Queue: 2})
	release := s.hold()
	defer release()
	ctx, cut := context.WithCancel(t.Context())
	gone, stays := s.later(t, ctx, `{"model":"tiny","prompt":[5],"n":128,"max_tokens":2000}`), s.later(t, t.Context(), `{"model":"tiny","prompt":[6]}`)
	for !s.engine.full() {
		runtime.Gosched()
	}
	answer := s.send(t, t.Context(), "/v1/completions", `{"model":"tiny","prompt":[5]}`)
	var got said
	if err := json.NewDecoder(answer.Body).Decode(&got); err != nil || answer.StatusCode != 429 || got.Error.Type != "rate_limit_error" || answer.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, %+v", answer.StatusCode, got.Error)
	}
	answer.Body.Close()
	cut()
	<-gone
	release()
	if text := <-stays; !strings.HasPrefix(text, "200 OK") {
		t.Errorf("a request that waited: %s", text)
	}
	s.idle(t)
	s.complete(t, "/v1/completions", `{"model":"tiny","prompt":[5]}`)
}

func TestDeadline(t *testing.T) {
	s := start(t, Config{Timeout: 20 * time.Millisecond})
	release := s.hold()
	defer release()
	status, text := s.ask(t, "/v1/completions", `{"model":"tiny","prompt":[5],"n":8}`)
	if status != http.StatusGatewayTimeout || !strings.Contains(text, "timeout_error") {
		t.Errorf("status %d, %s", status, text)
	}
	release()
	s.idle(t)
}

func TestStopLetsRequestsEnd(t *testing.T) {
	s := start(t, Config{})
	release := s.hold()
	answered := s.later(t, t.Context(), `{"model":"tiny","prompt":[5],"max_tokens":50}`)
	for s.waiting() == 0 {
		runtime.Gosched()
	}
	s.stop()
	for !s.stops() {
		runtime.Gosched()
	}
	release()
	if text := <-answered; !strings.HasPrefix(text, "200 OK") {
		t.Errorf("a request that had come before: %s", text)
	}
	if err := <-s.ended; err != context.Canceled {
		t.Errorf("it ended with %v", err)
	}
	s.ended <- nil
	if answer, err := http.Get(s.url + "/health"); err == nil {
		t.Errorf("after its end it answers %s", answer.Status)
	}
}

func (s *running) waiting() int {
	s.engine.lock.Lock()
	defer s.engine.lock.Unlock()
	return s.engine.waiting
}

func TestStopGivesUpAfterItsGrace(t *testing.T) {
	gave := make(chan struct{})
	s := start(t, Config{Grace: time.Nanosecond, Logf: func(format string, _ ...any) {
		if strings.Contains(format, "given up") {
			close(gave)
		}
	}})
	release := s.hold()
	answered := s.later(t, t.Context(), `{"model":"tiny","prompt":[5],"n":128,"max_tokens":2000}`)
	for s.waiting() == 0 {
		runtime.Gosched()
	}
	s.stop()
	<-gave
	release()
	if text := <-answered; !strings.HasPrefix(text, "503") && !strings.HasPrefix(text, "Post") {
		t.Errorf("a request that was given up: %.200s", text)
	}
}

// FuzzRequests: whatever is sent, the answer is an error in OpenAI's form or a completion, and the server goes on.
func FuzzRequests(f *testing.F) {
	for _, body := range []string{
		`{"model":"tiny","prompt":"ab","max_tokens":2}`, `{"model":"tiny","prompt":[[5,6],[7]],"n":2,"max_tokens":2,"logprobs":0,"return_token_ids":true}`,
		`{"model":"tiny","messages":[{"role":"user","content":"1+2"}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"model":"tiny","prompt":"a","stop":["b"],"stop_token_ids":[7],"temperature":0,"top_k":-1,"min_p":0.1,"repetition_penalty":2}`,
		`{"lora_name":"a","lora_path":"/tmp/../etc"}`, `{"model":"tiny","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"max_tokens":1}`, `[`, `{"prompt":{"prompt":1}}`, ``,
	} {
		for route := range 4 {
			f.Add(route, []byte(body))
		}
	}
	s := start(f, Config{AdapterDirs: []string{f.TempDir()}, Timeout: time.Second})
	paths := []string{"/v1/completions", "/v1/chat/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
	f.Fuzz(func(t *testing.T, route int, body []byte) {
		path := paths[uint(route)%4]
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatalf("%q: %v", body, err)
		}
		var got said
		if answer.StatusCode != http.StatusOK && (json.Unmarshal(text, &got) != nil || got.Error == nil || got.Error.Message == "" || got.Error.Code != answer.StatusCode) {
			t.Errorf("%q: status %d, %s", body, answer.StatusCode, text)
		}
		if answer.StatusCode >= 500 && answer.StatusCode != http.StatusGatewayTimeout {
			t.Errorf("%q: status %d, %s", body, answer.StatusCode, text)
		}
	})
}
