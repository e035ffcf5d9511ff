package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/internal/jsonapi"
	"github.com/rltrain/rltrain/internal/transfer"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// mostBytes is the maximum size of a response.
const mostBytes = 256 << 20

// is reports whether err is a response with one of these codes.
func is(err error, codes ...int) bool {
	var s *jsonapi.Status
	return errors.As(err, &s) && slices.Contains(codes, s.Code)
}

// call sends a request and decodes the response into into, unless that is nil. Temporary errors are transient.
func (s *server) call(ctx context.Context, limit time.Duration, method, path string, body, into any) error {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := jsonapi.Call(within, s.client, method, s.url+path, s.key, body, into, mostBytes)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, context.DeadlineExceeded) && within.Err() != nil:
		return jsonapi.Temporary(fmt.Errorf("no complete response within %v", limit))
	}
	return err
}

// models is the response of /v1/models.
type models struct {
	Data []struct {
		ID       string  `json:"id"`
		Parent   *string `json:"parent"`
		MaxModel int     `json:"max_model_len"`
	} `json:"data"`
}

// order is the body for /v1/completions. It sets all fields, because some servers default to the model's
// generation_config.json.
type order struct {
	Model             string   `json:"model"`
	Prompt            any      `json:"prompt"`
	N                 int      `json:"n"`
	MaxTokens         int      `json:"max_tokens"`
	Temperature       float64  `json:"temperature"`
	TopP              float64  `json:"top_p"`
	TopK              int      `json:"top_k"`
	MinP              float64  `json:"min_p"`
	RepetitionPenalty float64  `json:"repetition_penalty"`
	Seed              int64    `json:"seed"`
	Stop              []string `json:"stop,omitempty"`
	StopIDs           []int32  `json:"stop_token_ids,omitempty"`
	LogProbs          int      `json:"logprobs"`
	TokenIDs          bool     `json:"return_token_ids"`
	SkipSpecial       bool     `json:"skip_special_tokens"`
	AddSpecial        bool     `json:"add_special_tokens"`
	Echo              bool     `json:"echo,omitempty"`
}

// answered is the response of /v1/completions.
type answered struct {
	Model   string `json:"model"`
	Choices []struct {
		Index     int     `json:"index"`
		Text      string  `json:"text"`
		Reason    *string `json:"finish_reason"`
		IDs       []int32 `json:"token_ids"`
		PromptIDs []int32 `json:"prompt_token_ids"`
		LogProbs  *struct {
			Values []*float64 `json:"token_logprobs"`
		} `json:"logprobs"`
	} `json:"choices"`
}

// leastLogProb is below the log-prob of every sampled token; servers write lower numbers for −∞.
const leastLogProb = -1000

// completions samples a prompt with the model or adapter name, and checks that the response is what was requested.
func (s *server) completions(ctx context.Context, p *policy.CausalLM, name string, prompt []int32, o policy.GenerateOptions, seed int64) ([]policy.Completion, error) {
	// Send the stop token ids too: a server may know fewer.
	q := order{
		Model: name, Prompt: [][]int32{prompt}, N: o.Samples, MaxTokens: o.MaxNew, Temperature: o.Sampling.Temperature, TopP: cmp.Or(o.Sampling.TopP, 1),
		TopK: o.Sampling.TopK, MinP: o.Sampling.MinP, RepetitionPenalty: cmp.Or(o.Sampling.RepetitionPenalty, 1), Seed: seed,
		Stop: o.Stop, StopIDs: p.EOS(), TokenIDs: true,
	}
	var a answered
	if err := s.call(ctx, s.limit, http.MethodPost, "/v1/completions", q, &a); err != nil {
		return nil, err
	}
	if a.Model != name {
		return nil, fmt.Errorf("the response is from model %q, want %q", a.Model, name)
	}
	if len(a.Choices) != o.Samples {
		return nil, fmt.Errorf("the response has %d completions, want %d", len(a.Choices), o.Samples)
	}
	all := make([]policy.Completion, o.Samples)
	for _, c := range a.Choices {
		switch {
		case c.Index < 0 || c.Index >= o.Samples || all[c.Index].IDs != nil:
			return nil, fmt.Errorf("completion %d is a duplicate or was not requested", c.Index)
		case len(c.IDs) == 0:
			return nil, errors.New("a completion has no token_ids; use a server that supports return_token_ids")
		case len(c.IDs) > o.MaxNew:
			return nil, fmt.Errorf("a completion has %d tokens, more than max_tokens %d", len(c.IDs), o.MaxNew)
		case c.PromptIDs != nil && !slices.Equal(c.PromptIDs, prompt):
			return nil, fmt.Errorf("the server changed the prompt: it has %d tokens, want %d", len(c.PromptIDs), len(prompt))
		case c.LogProbs == nil || len(c.LogProbs.Values) != len(c.IDs):
			return nil, errors.New("a completion does not have one log-prob per token")
		}
		one := policy.Completion{Text: c.Text, IDs: c.IDs, Reason: torch.ReasonStop}
		for i, id := range c.IDs {
			if id < 0 || int(id) >= p.VocabSize() {
				return nil, fmt.Errorf("token %d is out of range for the vocabulary of %d; the server has another model", id, p.VocabSize())
			}
			value := c.LogProbs.Values[i]
			if value == nil || math.IsNaN(*value) || *value < leastLogProb || *value > 1e-3 {
				return nil, fmt.Errorf("token %d of a completion has an impossible log-prob; the server returns log-probs of another distribution, or truncates them", i+1)
			}
			one.BehaviorLogProbs = append(one.BehaviorLogProbs, float32(*value))
		}
		one.LogProbs = one.BehaviorLogProbs // log-probs at temperature 1 are unknown; equal if the temperature is 1
		if c.Reason != nil && *c.Reason == "length" {
			one.Reason = torch.ReasonLength
		} else if c.Reason == nil || *c.Reason != "stop" {
			return nil, jsonapi.Temporary(errors.New("the server aborted a completion"))
		} else if last := c.IDs[len(c.IDs)-1]; len(o.Stop) == 0 && !slices.Contains(q.StopIDs, last) {
			return nil, fmt.Errorf("a completion stops at token %d, which is not a stop token here; start vLLM with --generation-config vllm", last)
		}
		all[c.Index] = one
	}
	return all, nil
}

// server is one rollout server.
type server struct {
	url    string // without a path
	key    string
	client *http.Client
	limit  time.Duration // of a request
	lag    time.Duration // delay of a shared file system

	base string // its name of the model

	loading sync.Mutex // held while loading an adapter

	// Guarded by the lock of Servers.
	up      bool
	loaded  map[string]bool // adapters by name
	flying  int             // running requests
	failed  int             // consecutive failures
	retryAt time.Time
}

const (
	quickly  = 10 * time.Second // timeout of requests without computation
	loadOnce = 30 * time.Second
)

// discover finds the server's name of the model.
func (s *server) discover(ctx context.Context, name string, positions int) error {
	if err := s.call(ctx, quickly, http.MethodGet, "/health", nil, nil); err != nil {
		return err
	}
	return s.find(ctx, name, positions, "rollout_model")
}

// find finds the model that option names, "" = the first that is no adapter.
func (s *server) find(ctx context.Context, name string, positions int, option string) error {
	var m models
	if err := s.call(ctx, quickly, http.MethodGet, "/v1/models", nil, &m); err != nil {
		return err
	}
	var names []string
	for _, one := range m.Data {
		if one.Parent != nil && one.ID != name {
			continue
		}
		names = append(names, one.ID)
		if name != "" && one.ID != name {
			continue
		}
		if one.MaxModel > 0 && one.MaxModel < positions {
			return fmt.Errorf("its model %s has a context of %d tokens; %d are needed", one.ID, one.MaxModel, positions)
		}
		s.base = one.ID
		return nil
	}
	if name == "" {
		return errors.New("/v1/models lists no model")
	}
	return fmt.Errorf("it has no model %s, only %s; set %s", name, strings.Join(names, ", "), option)
}

// load loads an adapter on the server. It retries until lag has passed, because files from another machine may arrive late.
func (s *server) load(ctx context.Context, name, dir string) error {
	for began, pause := time.Now(), 100*time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err := s.call(ctx, loadOnce, http.MethodPost, "/v1/load_lora_adapter", map[string]any{"lora_name": name, "lora_path": dir, "load_inplace": false}, nil)
		switch {
		case err == nil:
			return nil
		case is(err, http.StatusBadRequest) && strings.Contains(err.Error(), "already been loaded"):
			return nil
		case !is(err, http.StatusNotFound, http.StatusInternalServerError) || time.Since(began) > s.lag:
			return fmt.Errorf("loading an adapter from %s: %w", dir, err)
		}
		if err := transfer.Wait(ctx, pause); err != nil {
			return err
		}
	}
}

func (s *server) unload(ctx context.Context, name string) error {
	err := s.call(ctx, quickly, http.MethodPost, "/v1/unload_lora_adapter", map[string]any{"lora_name": name}, nil)
	if is(err, http.StatusNotFound) {
		return nil
	}
	return err
}
