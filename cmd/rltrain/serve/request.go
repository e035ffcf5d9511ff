package serve

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Limits of a request.
const (
	longestBody  = 16 << 20 // of a request for completions
	longestOrder = 64 << 10 // of other requests
	mostChoices  = 4096     // per request
	mostSamples  = 128      // per prompt
	mostStops    = 16
	longestStop  = 1024
)

// readBody decodes the JSON object of a request with at most limit bytes. Unknown fields are errors, except those in
// neutral with one of their listed values, which have no effect. Names of fields are case-sensitive.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, into any, neutral map[string][]string) error {
	// A browser sends Origin. Without JSON's type, any page that is open there could send requests to a local server.
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.Header.Get("Origin") != "" && (err != nil || kind != "application/json") {
		return refuse(http.StatusUnsupportedMediaType, "", "send JSON with the header Content-Type: application/json")
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return refuse(http.StatusRequestEntityTooLarge, "", "the body is longer than %d bytes", long.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(http.StatusRequestTimeout, "", "the body did not arrive in time")
	case err != nil:
		return refuse(http.StatusBadRequest, "", "reading the body: %v", err)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // generation may take longer
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		return refuse(http.StatusBadRequest, "", "the body is not a JSON object%s", because(err))
	}
	for name, value := range fields {
		allowed, listed := neutral[name]
		if listed && (string(value) == "null" || slices.Contains(allowed, compact(value)) || slices.Contains(allowed, any_)) {
			delete(fields, name)
		} else if listed {
			return bad(name, "%s %.100s is not supported", name, compact(value))
		}
	}
	known := fieldNames(reflect.TypeOf(into).Elem())
	for name := range fields {
		if !slices.Contains(known, name) {
			return bad(name, "%.100s is not supported", name)
		}
	}
	rest, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(rest, into); err != nil {
		var kind *json.UnmarshalTypeError
		var own *refusal
		switch {
		case errors.As(err, &own):
			return own
		case errors.As(err, &kind):
			field := strings.TrimPrefix(kind.Field, "sampling.")
			return bad(field, "%s: got a %s, want %s", field, kind.Value, jsonKind(kind.Type))
		}
		return refuse(http.StatusBadRequest, "", "decoding the body%s", because(err))
	}
	return nil
}

// fieldNames lists the JSON names of a struct's fields, those of embedded structs included.
func fieldNames(t reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(t) {
		if name := f.Tag.Get("json"); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// jsonKind names the JSON type that decodes into t.
func jsonKind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Pointer:
		return jsonKind(t.Elem())
	}
	return "a number"
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func compact(value json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return string(value)
	}
	return b.String()
}

// any_ allows every value of a neutral field.
const any_ = "*"

// commonNeutral lists fields of both routes with the values that have no effect.
var commonNeutral = map[string][]string{
	"presence_penalty": {"0", "0.0"}, "frequency_penalty": {"0", "0.0"}, "logit_bias": {"{}"}, "user": {any_}, "metadata": {any_}, "store": {"false"},
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
	if err := json.Unmarshal(data, &ids); err != nil {
		return err
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

// options converts the fields to options of the sampler; d are the values of missing ones. longest is the room after the
// longest prompt in tokens; fewest and usual are the minimum and the default of max_tokens.
func (q *sampling) options(p *policy.CausalLM, d torch.Sampling, prompts, longest, fewest, usual int) (o policy.GenerateOptions, err error) {
	o = policy.GenerateOptions{
		Samples: or(q.N, 1), MaxNew: or(q.MaxTokens, usual), Stop: q.Stop, StopIDs: q.StopIDs,
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
	case longest < fewest:
		return o, bad("prompt", "the prompt leaves no room in the context of %d tokens", p.MaxLength())
	case o.MaxNew < fewest || o.MaxNew > longest:
		return o, bad("max_tokens", "max_tokens %d is out of range; the prompt leaves room for %d to %d in the context of %d tokens", o.MaxNew, fewest, longest, p.MaxLength())
	case prompts*o.Samples > mostChoices:
		return o, bad("n", "%d prompts with %d completions each exceed the limit of %d", prompts, o.Samples, mostChoices)
	case len(o.Stop) > mostStops:
		return o, bad("stop", "%d stop strings exceed the limit of %d", len(o.Stop), mostStops)
	case q.StreamOptions != nil && !q.Stream:
		return o, bad("stream_options", "stream_options needs stream")
	}
	for _, stop := range o.Stop {
		if stop == "" || len(stop) > longestStop {
			return o, bad("stop", "a stop string has %d bytes, want 1 to %d", len(stop), longestStop)
		}
	}
	if err := known(p, "stop_token_ids", o.StopIDs); err != nil {
		return o, err
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

// known checks that ids are tokens.
func known(p *policy.CausalLM, field string, ids []int32) error {
	for _, id := range ids {
		if id < 0 || int(id) >= p.VocabSize() {
			return bad(field, "%s: %d is not a token id between 0 and %d", field, id, p.VocabSize()-1)
		}
	}
	return nil
}
