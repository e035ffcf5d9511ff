package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// fakeOrder is a request for completions.
type fakeOrder struct {
	Model             string
	Prompt            json.RawMessage
	N                 int
	MaxTokens         int `json:"max_tokens"`
	Temperature       *float64
	TopP              *float64 `json:"top_p"`
	TopK              *int     `json:"top_k"`
	MinP              *float64 `json:"min_p"`
	RepetitionPenalty *float64 `json:"repetition_penalty"`
	Seed              int64
	Stop              []string
	StopIDs           []int32 `json:"stop_token_ids"`
	LogProbs          *int    `json:"logprobs"`
	TokenIDs          bool    `json:"return_token_ids"`
}

// fakeChoice is a completion as the server sends it; a quirk may change it.
type fakeChoice struct {
	Index     int           `json:"index"`
	Text      string        `json:"text"`
	Reason    string        `json:"finish_reason"`
	IDs       []int32       `json:"token_ids"`
	PromptIDs []int32       `json:"prompt_token_ids"`
	LogProbs  *fakeLogProbs `json:"logprobs"`
}

// fakeLogProbs are those of a choice's tokens.
type fakeLogProbs struct {
	Values []any `json:"token_logprobs"`
}

// fakeServer samples for a policy as vLLM does, with its quirks. Its fields may be changed between requests under Lock.
type fakeServer struct {
	sync.Mutex
	URL string
	// Before may answer a request instead of the server: then it returns true.
	Before func(w http.ResponseWriter, r *http.Request) bool
	// Change changes what a request for completions is answered.
	Change func(o fakeOrder, choices []fakeChoice) []fakeChoice
	Raw    bool // log-probabilities are those of temperature 1
	Frozen bool // adapters are loaded and not applied
	Length int  // what it says of the model's positions; 0 = nothing

	Orders   []fakeOrder // requests for completions
	Loaded   []string    // adapters, in the order in which they came
	Paths    []string    // their folders
	Unloaded []string

	t        testing.TB
	http     *httptest.Server
	thread   *torch.Thread
	base     fakeModel
	adapters map[string]fakeModel
}

// fakeModel generates.
type fakeModel struct {
	*policy.CausalLM
	*policy.Sampler
}

func newFakeModel(p *policy.CausalLM, err error) (fakeModel, error) {
	if err != nil {
		return fakeModel{}, err
	}
	sampler, err := p.NewSampler(4)
	if err != nil {
		p.Close()
	}
	return fakeModel{p, sampler}, err
}

func (w fakeModel) close() {
	w.Sampler.Close()
	w.CausalLM.Close()
}

// newFakeServer starts a server of the model of a folder; it ends with the test.
func newFakeServer(t testing.TB, dir string) *fakeServer {
	t.Helper()
	s := &fakeServer{t: t, thread: torch.NewThread(), adapters: map[string]fakeModel{}}
	must.Do(t, s.do(func() (err error) {
		s.base, err = newFakeModel(policy.NewCausalLM(policy.Config{Dir: dir}))
		return err
	}))
	s.http = httptest.NewServer(s)
	s.URL = s.http.URL
	t.Cleanup(func() {
		s.http.CloseClientConnections()
		s.http.Close()
		s.Forget()
		s.base.close()
		s.thread.Close()
	})
	return s
}

func (s *fakeServer) do(f func() error) error {
	return s.thread.Do(context.Background(), func(context.Context) error { return f() })
}

// Forget drops all adapters, as a server that was started anew.
func (s *fakeServer) Forget() {
	s.Lock()
	defer s.Unlock()
	for name, p := range s.adapters {
		p.close()
		delete(s.adapters, name)
	}
}

// ServeHTTP answers one request at a time.
func (s *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.Lock()
	before := s.Before
	s.Unlock()
	if before != nil && before(w, r) {
		return
	}
	s.Lock()
	defer s.Unlock()
	switch r.URL.Path {
	case "/health":
	case "/v1/models":
		model := map[string]any{"id": "base"}
		if s.Length > 0 {
			model["max_model_len"] = s.Length
		}
		fakeAnswer(w, 200, map[string]any{"data": []any{model}})
	case "/v1/load_lora_adapter":
		s.load(w, r)
	case "/v1/unload_lora_adapter":
		var o struct {
			Name string `json:"lora_name"`
		}
		_ = json.NewDecoder(r.Body).Decode(&o)
		if p, ok := s.adapters[o.Name]; ok {
			p.close()
			delete(s.adapters, o.Name)
			s.Unloaded = append(s.Unloaded, o.Name)
			return
		}
		fakeError(w, 404, "no such adapter")
	case "/v1/completions":
		s.complete(w, r)
	default:
		fakeError(w, 404, "no such route")
	}
}

func (s *fakeServer) load(w http.ResponseWriter, r *http.Request) {
	var o struct {
		Name string `json:"lora_name"`
		Path string `json:"lora_path"`
	}
	_ = json.NewDecoder(r.Body).Decode(&o)
	if _, ok := s.adapters[o.Name]; ok {
		fakeError(w, 400, fmt.Sprintf("The lora adapter '%s' has already been loaded.", o.Name))
		return
	}
	if _, err := os.Stat(filepath.Join(o.Path, "adapter_config.json")); err != nil {
		fakeError(w, 404, "no adapter there")
		return
	}
	if err := s.do(func() error {
		p, err := newFakeModel(s.base.WithAdapter(o.Path))
		if err == nil {
			s.adapters[o.Name] = p
		}
		return err
	}); err != nil {
		fakeError(w, 400, err.Error())
		return
	}
	s.Loaded, s.Paths = append(s.Loaded, o.Name), append(s.Paths, o.Path)
}

func (s *fakeServer) complete(w http.ResponseWriter, r *http.Request) {
	var o fakeOrder
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		fakeError(w, 400, err.Error())
		return
	}
	s.Orders = append(s.Orders, o)
	p, ok := s.adapters[o.Model]
	if o.Model == "base" || ok && s.Frozen {
		p, ok = s.base, true
	}
	if !ok {
		fakeError(w, 404, "The model `"+o.Model+"` does not exist.")
		return
	}
	var prompts [][]int32
	var text string
	if json.Unmarshal(o.Prompt, &text) == nil {
		ids, err := p.Tokenizer.EncodeRaw(text, false)
		if err != nil {
			fakeError(w, 400, err.Error())
			return
		}
		prompts = [][]int32{ids}
	} else if err := json.Unmarshal(o.Prompt, &prompts); err != nil {
		fakeError(w, 400, err.Error())
		return
	}
	options := policy.GenerateOptions{Samples: o.N, MaxNew: o.MaxTokens, Stop: o.Stop, StopIDs: o.StopIDs, Seed: uint64(o.Seed),
		Sampling: torch.Sampling{Temperature: *o.Temperature, TopP: *o.TopP, TopK: *o.TopK, MinP: *o.MinP, RepetitionPenalty: *o.RepetitionPenalty}}
	var choices []fakeChoice
	keep := func(i int, done []policy.Completion) error {
		for j, c := range done {
			logs := &fakeLogProbs{}
			for t := range c.IDs {
				value := float64(c.BehaviorLogProbs[t])
				if s.Raw {
					value = float64(c.LogProbs[t])
				}
				logs.Values = append(logs.Values, value)
			}
			choices = append(choices, fakeChoice{i*o.N + j, c.Text, string(c.Reason), c.IDs, slices.Clone(prompts[i]), logs})
		}
		return nil
	}
	if err := s.do(func() error { return p.Generate(context.Background(), prompts, options, keep) }); err != nil {
		fakeError(w, 400, err.Error())
		return
	}
	if s.Change != nil {
		choices = s.Change(o, choices)
	}
	fakeAnswer(w, 200, map[string]any{"model": o.Model, "choices": choices})
}

func fakeError(w http.ResponseWriter, status int, message string) {
	fakeAnswer(w, status, map[string]any{"error": map[string]any{"message": message, "code": status}})
}

func fakeAnswer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value) // the client has gone
}

// Die makes the server cut every connection off, until the result is called.
func (s *fakeServer) Die() (rise func()) {
	s.Lock()
	defer s.Unlock()
	before := s.Before
	s.Before = func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) }
	return func() {
		s.Lock()
		defer s.Unlock()
		s.Before = before
	}
}
