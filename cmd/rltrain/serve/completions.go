package serve

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// completionsBody is the body of /v1/completions.
type completionsBody struct {
	Prompt        json.RawMessage `json:"prompt"`
	LogProbs      *int            `json:"logprobs"`
	SpecialTokens *bool           `json:"add_special_tokens"`
	sampling
}

var completionsNeutral = map[string][]string{"echo": {"false"}, "suffix": {`""`}, "best_of": {"1"}}

func init() {
	for name, values := range commonNeutral {
		completionsNeutral[name], chatNeutral[name] = values, values
	}
}

// logProbs are log-probs in the format of OpenAI's completions.
type logProbs struct {
	Tokens  []string             `json:"tokens"`
	Values  []float32            `json:"token_logprobs"`
	Top     []map[string]float32 `json:"top_logprobs"`
	Offsets []int                `json:"text_offset"`
}

// completionChoice is one completion, or a chunk of a stream.
type completionChoice struct {
	Index     int       `json:"index"`
	Text      string    `json:"text"`
	LogProbs  *logProbs `json:"logprobs"`
	Reason    *string   `json:"finish_reason"`
	PromptIDs []int32   `json:"prompt_token_ids,omitempty"`
	IDs       []int32   `json:"token_ids,omitempty"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// answer is a response, or a chunk of a stream.
type answer struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices any    `json:"choices"`
	Usage   *usage `json:"usage,omitempty"`
}

func (s *Server) completions(w http.ResponseWriter, r *http.Request) error {
	var q completionsBody
	l, err := s.read(w, r, &q, completionsNeutral, &q.sampling)
	if err != nil {
		return err
	}
	if n := or(q.LogProbs, 0); n != 0 {
		return bad("logprobs", "logprobs %d is not supported; use 0 for the log-probs of the generated tokens", n)
	}
	prompts, err := s.prompts(l.policy, q)
	if err != nil {
		return err
	}
	longest := 0
	for _, ids := range prompts {
		longest = max(longest, len(ids))
	}
	// OpenAI's API defaults to 16 tokens.
	o, err := q.options(l.policy, len(prompts), l.policy.MaxLength()-longest, 16)
	if err != nil {
		return err
	}
	j := &job{prompts: prompts, options: o, stream: q.Stream}
	f := &form{
		id: "cmpl-" + newID(), object: "text_completion", piece: "text_completion", model: l.name, policy: l.policy, job: j,
		choice: func(p *part) any {
			c := completionChoice{Index: p.index, Text: p.text, Reason: p.reason()}
			if q.LogProbs != nil {
				c.LogProbs = p.logProbs(l.policy)
			}
			if q.TokenIDs {
				if c.IDs = p.ids; p.first {
					c.PromptIDs = prompts[p.index/o.Samples]
				}
			}
			return c
		},
	}
	return s.write(w, r, l, &q.sampling, f)
}

// prompts converts a text, a list of texts, token ids or lists of token ids to lists of token ids.
func (s *Server) prompts(p *policy.CausalLM, q completionsBody) ([][]int32, error) {
	raw := bytes.TrimSpace(q.Prompt)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, bad("prompt", "prompt is missing")
	}
	if string(raw) == "[]" {
		return nil, bad("prompt", "prompt is an empty list")
	}
	var texts []string
	var lists [][]int32
	if text, ok := decoded[string](raw); ok {
		texts = []string{text}
	} else if several, ok := decoded[[]string](raw); ok {
		texts = several
	} else if ids, ok := decoded[[]int32](raw); ok {
		lists = [][]int32{ids}
	} else if several, ok := decoded[[][]int32](raw); ok {
		lists = several
	} else {
		return nil, bad("prompt", "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids")
	}
	for i, text := range texts {
		ids, err := p.Tokenizer.EncodeRaw(text, false)
		if err == nil && or(q.SpecialTokens, true) {
			ids, err = p.EncodePrompt(chat.Content{Text: text})
		}
		if err != nil {
			return nil, bad("prompt", "prompt %d: %v", i+1, err)
		}
		lists = append(lists, ids)
	}
	if len(lists) > mostChoices {
		return nil, bad("prompt", "%d prompts exceed the limit of %d", len(lists), mostChoices)
	}
	for i, ids := range lists {
		if len(ids) == 0 {
			return nil, bad("prompt", "prompt %d is empty", i+1)
		}
		if err := known(p, "prompt", ids); err != nil {
			return nil, err
		}
	}
	return lists, nil
}

func decoded[T any](raw []byte) (value T, ok bool) {
	ok = json.Unmarshal(raw, &value) == nil
	return value, ok
}

// part is a whole choice, or the new part of a streamed one.
type part struct {
	index  int
	text   string
	before int // bytes of text sent before
	ids    []int32
	logs   []float32
	first  bool
	done   *policy.Completion
}

// reason returns finish_reason; nil for an unfinished choice.
func (p *part) reason() *string {
	if p.done == nil {
		return nil
	}
	reason := "stop"
	if p.done.Reason == torch.ReasonLength {
		reason = "length"
	}
	return &reason
}

// logProbs names each token by its decoded text.
func (p *part) logProbs(of *policy.CausalLM) *logProbs {
	out := &logProbs{Tokens: []string{}, Values: []float32{}, Top: []map[string]float32{}, Offsets: []int{}}
	at := p.before
	for i, id := range p.ids {
		token := spell(of, id)
		out.Tokens, out.Values = append(out.Tokens, token), append(out.Values, p.logs[i])
		out.Top = append(out.Top, map[string]float32{token: p.logs[i]})
		out.Offsets = append(out.Offsets, at)
		at += len(token)
	}
	return out
}

func spell(p *policy.CausalLM, id int32) string {
	text, err := p.Tokenizer.Decode([]int32{id}, false)
	if err != nil {
		return ""
	}
	return text
}
