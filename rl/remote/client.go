package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// mostBytes bounds an answer.
const mostBytes = 256 << 20

// transient is an error that may be gone later, or with another server.
type transient struct{ error }

func (t transient) Unwrap() error { return t.error }

// status is an answer that is an error.
type status struct {
	code int
	text string
}

func (s *status) Error() string { return fmt.Sprintf("status %d: %.300s", s.code, s.text) }

// is tells an answer with one of these codes.
func is(err error, codes ...int) bool {
	var s *status
	return errors.As(err, &s) && slices.Contains(codes, s.code)
}

// call asks a server, and reads its answer into into where that is not nil. Errors that may pass are transient.
func (s *server) call(ctx context.Context, limit time.Duration, method, path string, body, into any) error {
	within, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(within, method, s.url+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if s.key != "" {
		r.Header.Set("Authorization", "Bearer "+s.key)
	}
	answer, err := s.client.Do(r)
	if err == nil {
		defer answer.Body.Close()
		data, err = io.ReadAll(io.LimitReader(answer.Body, mostBytes+1))
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && within.Err() != nil:
		return transient{fmt.Errorf("no whole answer within %v", limit)}
	case err != nil:
		return transient{err}
	case len(data) > mostBytes:
		return fmt.Errorf("the answer has more than %d bytes", mostBytes)
	case answer.StatusCode/100 != 2:
		err := &status{answer.StatusCode, reason(data)}
		if answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusRequestTimeout {
			return transient{err}
		}
		return err
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return transient{fmt.Errorf("the answer is no JSON of this kind: %w", err)} // as one that was cut off
	}
	return nil
}

// reason is what an error in OpenAI's form says, or the text itself.
func reason(data []byte) string {
	var body struct {
		Error   struct{ Message string }
		Message string
	}
	if json.Unmarshal(data, &body) == nil {
		if body.Error.Message != "" {
			return body.Error.Message
		}
		if body.Message != "" {
			return body.Message
		}
	}
	return strings.TrimSpace(string(data))
}

// models is what /v1/models answers.
type models struct {
	Data []struct {
		ID       string  `json:"id"`
		Parent   *string `json:"parent"`
		MaxModel int     `json:"max_model_len"`
	} `json:"data"`
}

// order is what /v1/completions is asked. Everything is said: what is left out some servers take from the model's
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
}

// answered is what it answers.
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

// leastLogProb is below every log-probability that a token can have been drawn with; servers write numbers below it for −∞.
const leastLogProb = -1000

// completions are the samples of a prompt, by name of a model or an adapter. They are checked: a server that answers in
// another way than was asked is an error.
func (s *server) completions(ctx context.Context, p *policy.CausalLM, name string, prompt []int32, o policy.GenerateOptions, seed int64) ([]policy.Completion, error) {
	// The ids that end a text are said too: a server may know of fewer.
	q := order{
		Model: name, Prompt: [][]int32{prompt}, N: o.Samples, MaxTokens: o.MaxNew, Temperature: o.Sampling.Temperature, TopP: o.Sampling.TopP,
		TopK: o.Sampling.TopK, MinP: o.Sampling.MinP, RepetitionPenalty: o.Sampling.RepetitionPenalty, Seed: seed,
		Stop: o.Stop, StopIDs: p.EOS(), TokenIDs: true,
	}
	if q.TopP == 0 {
		q.TopP = 1
	}
	if q.RepetitionPenalty == 0 {
		q.RepetitionPenalty = 1
	}
	var a answered
	if err := s.call(ctx, s.limit, http.MethodPost, "/v1/completions", q, &a); err != nil {
		return nil, err
	}
	if a.Model != name {
		return nil, fmt.Errorf("it answers as model %q and was asked for %q", a.Model, name)
	}
	if len(a.Choices) != o.Samples {
		return nil, fmt.Errorf("it answers with %d completions and was asked for %d", len(a.Choices), o.Samples)
	}
	all := make([]policy.Completion, o.Samples)
	for _, c := range a.Choices {
		switch {
		case c.Index < 0 || c.Index >= o.Samples || all[c.Index].IDs != nil:
			return nil, fmt.Errorf("completion %d comes twice, or was not asked for", c.Index)
		case len(c.IDs) == 0:
			return nil, errors.New("a completion has no token_ids: the server must know return_token_ids")
		case len(c.IDs) > o.MaxNew:
			return nil, fmt.Errorf("a completion has %d tokens, more than max_tokens %d", len(c.IDs), o.MaxNew)
		case c.PromptIDs != nil && !slices.Equal(c.PromptIDs, prompt):
			return nil, fmt.Errorf("it read the prompt as other tokens: %d of them instead of %d", len(c.PromptIDs), len(prompt))
		case c.LogProbs == nil || len(c.LogProbs.Values) != len(c.IDs):
			return nil, errors.New("a completion has not one log-probability for each of its tokens")
		}
		one := policy.Completion{Text: c.Text, IDs: c.IDs, Reason: torch.ReasonStop}
		for i, id := range c.IDs {
			if id < 0 || int(id) >= p.VocabSize() {
				return nil, fmt.Errorf("it wrote the token %d, of which this model has %d: it has another model", id, p.VocabSize())
			}
			value := c.LogProbs.Values[i]
			if value == nil || math.IsNaN(*value) || *value < leastLogProb || *value > 1e-3 {
				return nil, fmt.Errorf("token %d of a completion has no usable log-probability: the server draws from another distribution than it tells, or bounds what it tells", i+1)
			}
			one.BehaviorLogProbs = append(one.BehaviorLogProbs, float32(*value))
		}
		one.LogProbs = one.BehaviorLogProbs // those of the model's own distribution are not known; the two are one at temperature 1
		if c.Reason != nil && *c.Reason == "length" {
			one.Reason = torch.ReasonLength
		} else if c.Reason == nil || *c.Reason != "stop" {
			return nil, transient{errors.New("a completion was given up by the server")}
		} else if last := c.IDs[len(c.IDs)-1]; len(o.Stop) == 0 && !slices.Contains(q.StopIDs, last) {
			return nil, fmt.Errorf("it ends a completion at token %d, which ends none here: it adds what the model's generation_config.json says, so start it with --generation-config vllm", last)
		}
		all[c.Index] = one
	}
	return all, nil
}
