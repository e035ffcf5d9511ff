package serve

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/internal/jsonapi"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Limits of a request.
const (
	longestBody  = 16 << 20  // of a request for completions
	longestOrder = 64 << 10  // of other requests
	mostBodies   = 128 << 20 // of all requests that are being read
	shortText    = 64 << 10  // whatever is shorter waits for nothing longer
	mostChoices  = 4096      // per request
	mostSamples  = 128       // per prompt
	mostStopIDs  = 1024
	// mostEvaluated limits what a response holds if its texts go through the model once more: tokens, and alternatives of each.
	mostEvaluated = 4 << 20
	mostStops     = 16
	longestStop   = 1024
)

// commonNeutral lists fields of both routes with the values that have no effect.
var commonNeutral = map[string][]string{
	"presence_penalty": {"0", "0.0"}, "frequency_penalty": {"0", "0.0"}, "logit_bias": {"{}"}, "user": {jsonapi.Any}, "metadata": {jsonapi.Any}, "store": {"false"},
	"ignore_eos": {"false"}, "min_tokens": {"0"}, "include_stop_str_in_output": {"false"}, "spaces_between_special_tokens": {"true"},
	"use_beam_search": {"false"}, "length_penalty": {"1", "1.0"}, "prompt_logprobs": {}, "allowed_token_ids": {}, "bad_words": {"[]"},
}

// sampling has the sampling fields of both routes.
type sampling struct {
	Model             string      `json:"model"`
	N                 *int        `json:"n"`
	MaxTokens         *int        `json:"max_tokens"`
	Temperature       *float64    `json:"temperature"`
	TopP              *float64    `json:"top_p"`
	TopK              *int        `json:"top_k"`
	MinP              *float64    `json:"min_p"`
	RepetitionPenalty *float64    `json:"repetition_penalty"`
	Seed              *int64      `json:"seed"`
	Stop              stopTexts   `json:"stop"`
	StopIDs           tokenIDs    `json:"stop_token_ids"`
	Stream            bool        `json:"stream"`
	StreamOptions     *streamWish `json:"stream_options"`
	TokenIDs          bool        `json:"return_token_ids"`
	Special           *bool       `json:"skip_special_tokens"`
}

type streamWish struct {
	Usage bool `json:"include_usage"`
}

// tokenIDs is a list of token ids. null within it is an error, which encoding/json would read as 0.
type tokenIDs []int32

// UnmarshalJSON implements [json.Unmarshaler].
func (t *tokenIDs) UnmarshalJSON(data []byte) error {
	var ids []*int32
	if json.Unmarshal(data, &ids) != nil {
		return errors.New("want a list of token ids")
	}
	*t = nil
	for i, id := range ids {
		if id == nil {
			return fmt.Errorf("token id %d is null", i+1)
		}
		*t = append(*t, *id)
	}
	return nil
}

// stopTexts is a string or a list of strings.
type stopTexts []string

// UnmarshalJSON implements [json.Unmarshaler].
func (s *stopTexts) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		*s = nil
		if string(data) != "null" {
			*s = stopTexts{one}
		}
		return nil
	}
	var list []string
	if json.Unmarshal(data, &list) != nil {
		return bad("stop", "stop must be a string or a list of strings")
	}
	*s = list
	return nil
}

func or[T any](value *T, otherwise T) T {
	if value == nil {
		return otherwise
	}
	return *value
}

// unfiltered samples from all tokens.
func unfiltered(temperature float64) torch.Sampling {
	return torch.Sampling{Temperature: temperature, TopP: 1, RepetitionPenalty: 1}
}

// defaults are how a request samples where it does not say it. Log-probs of a text that goes through the model once more are
// those of the distribution without filters, so that only a request's own filters are refused.
func (s *Server) defaults(evaluated bool) torch.Sampling {
	if evaluated && !s.config.Raw {
		return unfiltered(s.config.Defaults.Temperature)
	}
	return s.config.Defaults
}

// options converts the fields to options of the sampler, without the number of tokens; d are the values of missing ones.
func (q *sampling) options(l *lane, d torch.Sampling, prompts int) (o policy.GenerateOptions, err error) {
	o = policy.GenerateOptions{
		Samples: or(q.N, 1), Stop: q.Stop, StopIDs: q.StopIDs,
		Sampling: torch.Sampling{
			Temperature: or(q.Temperature, d.Temperature), TopP: or(q.TopP, d.TopP), TopK: max(0, or(q.TopK, d.TopK)), MinP: or(q.MinP, d.MinP), RepetitionPenalty: or(q.RepetitionPenalty, d.RepetitionPenalty),
		},
	}
	if o.Sampling.TopP == 0 { // OpenAI's way to ask for the most likely token
		o.Sampling.TopP, o.Sampling.TopK = 1, 1
	}
	for _, limit := range []struct {
		name             string
		value, low, high float64
	}{
		{"n", float64(o.Samples), 1, mostSamples}, {"temperature", o.Sampling.Temperature, 0, 100}, {"top_p", o.Sampling.TopP, 0, 1},
		{"min_p", o.Sampling.MinP, 0, 1}, {"top_k", float64(or(q.TopK, 0)), -1, math.MaxInt32}, {"repetition_penalty", o.Sampling.RepetitionPenalty, 0.01, 100},
	} {
		if !(limit.value >= limit.low && limit.value <= limit.high) {
			return o, bad(limit.name, "%s %v is out of range; it must be %v to %v", limit.name, limit.value, limit.low, limit.high)
		}
	}
	switch {
	case prompts*o.Samples > mostChoices:
		return o, bad("n", "%d prompts with %d completions each exceed the limit of %d", prompts, o.Samples, mostChoices)
	case len(o.Stop) > mostStops:
		return o, bad("stop", "%d stop strings exceed the limit of %d", len(o.Stop), mostStops)
	case len(o.StopIDs) > mostStopIDs:
		return o, bad("stop_token_ids", "%d stop tokens exceed the limit of %d", len(o.StopIDs), mostStopIDs)
	case q.StreamOptions != nil && !q.Stream:
		return o, bad("stream_options", "stream_options needs stream")
	}
	for _, stop := range o.Stop {
		if stop == "" || len(stop) > longestStop {
			return o, bad("stop", "a stop string has %d bytes, want 1 to %d", len(stop), longestStop)
		}
	}
	if err := known(l.policy, "stop_token_ids", o.StopIDs); err != nil {
		return o, err
	}
	if l.dir != "" { // the sampler knows only the ends of the base model
		o.StopIDs = slices.Concat(o.StopIDs, l.policy.AddedEOS())
	}
	if q.Seed != nil {
		o.Seed = uint64(*q.Seed)
		return o, nil
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	o.Seed = binary.LittleEndian.Uint64(random[:])
	return o, nil
}

// fit sets the number of new tokens. longest is the number of tokens of the longest prompt; fewest and usual are the minimum
// and the default of max_tokens.
func (q *sampling) fit(o *policy.GenerateOptions, p *policy.CausalLM, longest, fewest, usual int) error {
	room := p.MaxLength() - longest
	o.MaxNew = or(q.MaxTokens, usual)
	switch {
	case room < fewest:
		return bad("prompt", "the prompt leaves no room in the context of %d tokens", p.MaxLength())
	case o.MaxNew < fewest || o.MaxNew > room:
		return bad("max_tokens", "max_tokens %d is out of range; the prompt leaves room for %d to %d in the context of %d tokens", o.MaxNew, fewest, room, p.MaxLength())
	}
	return nil
}

// known checks that ids are tokens.
func known(p *policy.CausalLM, field string, ids []int32) error {
	for _, id := range ids {
		if id < 0 || int(id) >= p.VocabSize() {
			return bad(field, "%s: %d is not a token id between 0 and %d", field, id, p.VocabSize()-1)
		}
	}
	return nil
}
