package agent

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/jsonapi"
)

// longest is how many bytes a request may have.
const longest = 16 << 20

// server answers the agents' calls on the loopback interface. A key stands for an episode.
type server struct {
	lock    sync.Mutex
	open    map[string]*episode
	http    *http.Server // nil until the first episode
	address string
}

// call is a request for the next message.
type call struct {
	messages []chat.Message
	list     []any  // its tools
	tools    string // the same as JSON, "" for none
	answer   chan reply
}

// reply is the answer to a call: a message, or what is wrong.
type reply struct {
	said   dataset.Object
	cut    bool // by the token limit
	status int
	fault  string
}

// enter gives an episode a key, and returns it with the address to call.
func (s *server) enter(e *episode) (key, address string, err error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.http == nil {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", err
		}
		routes := http.NewServeMux()
		routes.HandleFunc("POST /v1/chat/completions", s.chat)
		routes.HandleFunc("POST /v1/reward", s.reward)
		routes.HandleFunc("GET /v1/models", s.models)
		s.http = &http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second}
		s.address = "http://" + listener.Addr().String() + "/v1"
		go func() { _ = s.http.Serve(listener) }() // until close
	}
	key = "rltrain-" + rand.Text()
	s.open[key] = e
	return key, s.address, nil
}

func (s *server) leave(key string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.open, key)
}

func (s *server) close() error {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.http == nil {
		return nil
	}
	return s.http.Close()
}

// episode is that of a request's key; nil after an error response.
func (s *server) episode(w http.ResponseWriter, r *http.Request) *episode {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	s.lock.Lock()
	e := s.open[key]
	s.lock.Unlock()
	if e == nil {
		fail(w, http.StatusUnauthorized, "the API key is that of no running episode; use OPENAI_API_KEY, before the agent ends")
	}
	return e
}

func (s *server) models(w http.ResponseWriter, r *http.Request) {
	if s.episode(w, r) != nil {
		write(w, http.StatusOK, map[string]any{"object": "list", "data": []any{map[string]any{"id": "policy", "object": "model"}}})
	}
}

// reward takes the agent's verdict.
func (s *server) reward(w http.ResponseWriter, r *http.Request) {
	e := s.episode(w, r)
	if e == nil {
		return
	}
	var v verdict
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, longest)).Decode(&v); err != nil || v.Reward == nil {
		fail(w, http.StatusBadRequest, `want {"reward": 1}`)
		return
	}
	e.lock.Lock()
	e.posted = &v
	e.lock.Unlock()
	write(w, http.StatusOK, map[string]any{})
}

// chat hands a call to its episode and waits for the policy.
func (s *server) chat(w http.ResponseWriter, r *http.Request) {
	e := s.episode(w, r)
	if e == nil {
		return
	}
	c, err := read(http.MaxBytesReader(w, r.Body, longest), e.format != nil)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	run := e.running()
	if run == nil {
		fail(w, http.StatusUnauthorized, "the episode has ended")
		return
	}
	var got reply
	for sent := false; ; {
		calls := e.calls
		if sent {
			calls = nil
		}
		select {
		case calls <- c:
			sent = true
			continue
		case got = <-c.answer:
		case <-run.Done():
			return
		case <-r.Context().Done():
			return
		}
		break
	}
	if got.fault != "" {
		fail(w, got.status, got.fault)
		return
	}
	said := map[string]any{}
	for _, f := range got.said {
		said[f.Name] = f.Value
	}
	reason := "stop"
	if got.cut {
		reason = "length"
	}
	if list, ok := said["tool_calls"].([]any); ok {
		reason, said["tool_calls"] = "tool_calls", asText(list)
	}
	write(w, http.StatusOK, map[string]any{
		"id": "chatcmpl-" + rand.Text(), "object": "chat.completion", "created": time.Now().Unix(), "model": "policy",
		"choices": []any{map[string]any{"index": 0, "message": said, "finish_reason": reason}},
	})
}

// asText are calls with their arguments as JSON in a string, as OpenAI's API has them.
func asText(calls []any) (out []any) {
	for _, one := range calls {
		call, _ := one.(dataset.Object)
		described, _ := call.Get("function")
		function, _ := described.(dataset.Object)
		arguments, _ := function.Get("arguments")
		text, _ := json.Marshal(arguments) // of JSON
		out = append(out, call.With("function", function.With("arguments", string(text))))
	}
	return out
}

// neutral are the fields of requests that have no effect, with the values that they may have. rltrain's options say how tokens are
// sampled.
var neutral = map[string][]string{
	"model": {jsonapi.Any}, "temperature": {jsonapi.Any}, "top_p": {jsonapi.Any}, "top_k": {jsonapi.Any}, "min_p": {jsonapi.Any}, "seed": {jsonapi.Any},
	"max_tokens": {jsonapi.Any}, "max_completion_tokens": {jsonapi.Any}, "user": {jsonapi.Any}, "metadata": {jsonapi.Any}, "store": {jsonapi.Any},
	"n": {"1"}, "stream": {"false"}, "stream_options": {}, "stop": {"[]"}, "logprobs": {"false"}, "top_logprobs": {"0"}, "logit_bias": {"{}"},
	"presence_penalty": {"0", "0.0"}, "frequency_penalty": {"0", "0.0"}, "repetition_penalty": {"1", "1.0"},
	"response_format": {`{"type":"text"}`}, "modalities": {`["text"]`}, "parallel_tool_calls": {"true"}, "service_tier": {`"auto"`},
}

// read reads a request. Fields that would have an effect elsewhere and have none here are errors.
func read(body io.Reader, calling bool) (*call, error) {
	data, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	var q map[string]json.RawMessage
	if err := json.Unmarshal(data, &q); err != nil {
		return nil, fmt.Errorf("the body is no JSON object of a chat request: %w", err)
	}
	if _, err := jsonapi.DropNeutral(q, []string{"messages", "tools", "tool_choice"}, neutral); err != nil {
		return nil, fmt.Errorf("%w for an agent; leave it out", err)
	}
	c := &call{answer: make(chan reply, 1)}
	value, err := dataset.Parse(string(q["messages"]))
	if err == nil {
		c.messages, err = chat.Messages(value, false)
	}
	if err != nil {
		return nil, fmt.Errorf("messages: %w", err)
	}
	if last := c.messages[len(c.messages)-1]; last.Role() == "assistant" {
		return nil, errors.New("messages: the last message is the assistant's, but the model generates that one")
	}
	choice, described := strings.Trim(string(q["tool_choice"]), `"`), jsonapi.Compact(q["tools"])
	if described == "" || described == "null" || described == "[]" || choice == "none" {
		return c, nil
	}
	if choice != "" && choice != "null" && choice != "auto" {
		return nil, errors.New("tool_choice: want auto or none")
	}
	value, err = dataset.Parse(described)
	list, ok := value.([]any)
	if err != nil || !ok {
		return nil, errors.New("tools: want a list")
	}
	if _, err := tools.Names(list); err != nil {
		return nil, fmt.Errorf("tools: %w", err)
	}
	if !calling {
		return nil, errors.New("tools: the model's chat template does not describe tools; pass --chat-template FILE, or use another model")
	}
	c.list, c.tools = list, described
	return c, nil
}

func fail(w http.ResponseWriter, status int, message string) {
	write(w, status, map[string]any{"error": map[string]any{"message": message, "type": "invalid_request_error", "code": status}})
}

func write(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // fails if the agent has gone
}
