package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"unicode/utf8"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// completionsBody is the body of /v1/completions.
type completionsBody struct {
	Prompt        json.RawMessage `json:"prompt"`
	LogProbs      *int            `json:"logprobs"`
	SpecialTokens *bool           `json:"add_special_tokens"`
	Echo          bool            `json:"echo"`
	sampling
}

var completionsNeutral = map[string][]string{"suffix": {`""`}, "best_of": {"1"}}

func init() {
	for name, values := range commonNeutral {
		completionsNeutral[name], chatNeutral[name] = values, values
	}
}

// logProbs are log-probs in the format of OpenAI's completions.
type logProbs struct {
	Tokens  []string             `json:"tokens"`
	Values  []*float32           `json:"token_logprobs"` // null for the first token of a text
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
	items, err := q.items(l.policy.MaxLength())
	if err != nil {
		return err
	}
	o, err := q.options(l, s.defaults(or(q.LogProbs, 0) > 0 || q.Echo), len(items))
	if err != nil {
		return err
	}
	prompts, err := s.prompts(r.Context(), l.policy, q, items)
	if err != nil {
		return err
	}
	longest := 0
	for _, ids := range prompts {
		longest = max(longest, len(ids))
	}
	fewest := 1
	if q.Echo {
		fewest = 0
	}
	if err := q.fit(&o, l.policy, longest, fewest, 16); err != nil { // OpenAI's API defaults to 16 tokens
		return err
	}
	f := &form{
		id: "cmpl-" + newID(), object: "text_completion", piece: "text_completion", lane: l, job: &job{prompts: prompts, options: o}, top: or(q.LogProbs, -1),
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
	if q.Echo {
		if f.echo, err = q.texts(l.policy, items, prompts); err != nil {
			return err
		}
	}
	if err := s.allowTop(f, "logprobs", longest); err != nil {
		return err
	}
	return s.write(w, r, &q.sampling, f)
}

// texts are the texts of the prompts: as sent, or those of their tokens.
func (q *completionsBody) texts(p *policy.CausalLM, items []json.RawMessage, prompts [][]int32) (texts []string, err error) {
	texts = make([]string, len(prompts))
	for i, ids := range prompts {
		if json.Unmarshal(items[i], &texts[i]) == nil {
			continue
		}
		if texts[i], err = p.Tokenizer.Decode(ids, or(q.Special, true)); err != nil {
			return nil, fmt.Errorf("decoding a prompt: %w", err)
		}
	}
	return texts, nil
}

// items splits the prompts: a text, a list of texts, token ids or lists of token ids. It counts them before it reads any.
func (q *completionsBody) items(longest int) ([]json.RawMessage, error) {
	raw := bytes.TrimSpace(q.Prompt)
	if len(raw) == 0 || string(raw) == "null" {
		return nil, bad("prompt", "prompt is missing")
	}
	if string(raw) == "[]" {
		return nil, bad("prompt", "prompt is an empty list")
	}
	items := []json.RawMessage{raw}
	if kind := kindOf(raw); kind == '[' {
		limit, several := mostChoices, true
		if first := kindOf(raw[1:]); first != '"' && first != '[' { // the token ids of one prompt
			limit, several = longest, false
		}
		var ok bool
		if items, ok = elements(raw, limit); !ok {
			return nil, bad("prompt", "prompt is a list of more than %d elements", limit)
		}
		if !several {
			items = []json.RawMessage{raw}
		}
	}
	return items, nil
}

// prompts converts prompts to token ids, each when a place for it is free, so that many long ones do not hold up others. It
// stops when ctx ends.
func (s *Server) prompts(ctx context.Context, p *policy.CausalLM, q completionsBody, items []json.RawMessage) ([][]int32, error) {
	var lists [][]int32
	for i, item := range items {
		err := s.prepare(ctx, len(item), func() error {
			ids, err := q.encode(p, item)
			if err == nil && len(ids) == 0 {
				err = bad("prompt", "prompt %d is empty", i+1)
			}
			if err == nil {
				err = known(p, "prompt", ids)
			}
			lists = append(lists, ids)
			return err
		})
		var own *refusal
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, &own):
			return nil, own
		case err != nil:
			return nil, bad("prompt", "prompt %d: %v", i+1, err)
		}
	}
	return lists, nil
}

// encode converts one prompt to token ids.
func (q *completionsBody) encode(p *policy.CausalLM, item json.RawMessage) (ids tokenIDs, err error) {
	switch kindOf(item) {
	case '[':
		err = json.Unmarshal(item, &ids)
		return ids, err
	case '"':
		var text string
		if err := json.Unmarshal(item, &text); err != nil {
			return nil, err
		}
		if or(q.SpecialTokens, true) {
			return p.EncodeText(text)
		}
		return p.Tokenizer.EncodeRaw(text, false)
	}
	return nil, bad("prompt", "prompt must be a string, a list of strings, a list of token ids, or a list of lists of token ids")
}

// kindOf returns the first character of a JSON value.
func kindOf(raw []byte) byte {
	if raw = bytes.TrimLeft(raw, " \t\r\n"); len(raw) == 0 {
		return 0
	}
	return raw[0]
}

// elements splits a JSON list. ok is false if it has more than limit elements.
func elements(list json.RawMessage, limit int) (items []json.RawMessage, ok bool) {
	decoder := json.NewDecoder(bytes.NewReader(list))
	_, _ = decoder.Token() // the bracket; list is valid JSON
	for decoder.More() {
		var item json.RawMessage
		if len(items) == limit || decoder.Decode(&item) != nil {
			return nil, false
		}
		items = append(items, item)
	}
	return items, true
}

// part is a whole choice, or the new part of a streamed one.
type part struct {
	index   int
	text    string
	offsets *offsets
	ids     []int32
	logs    []float32
	first   bool
	done    *policy.Completion
	written int                  // generated tokens among ids
	top     []policy.TopLogProbs // of ids, with alternatives and with echo; of the first token of a text without a log-prob
}

// offsets counts the characters of a choice's tokens.
type offsets struct {
	begun   bool
	chars   int    // complete ones
	pending []byte // of an incomplete one
}

// add returns the place of a token's first character in the text, in characters.
func (o *offsets) add(token []byte) int {
	at := o.chars
	o.pending = append(o.pending, token...)
	for len(o.pending) > 0 && utf8.FullRune(o.pending) {
		_, n := utf8.DecodeRune(o.pending)
		o.pending = o.pending[n:]
		o.chars++
	}
	return at
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
	out := &logProbs{Tokens: []string{}, Values: []*float32{}, Top: []map[string]float32{}, Offsets: []int{}}
	for i, id := range p.ids {
		token, bytes := spell(of, id)
		out.Tokens, out.Offsets = append(out.Tokens, token), append(out.Offsets, p.offsets.add(bytes))
		if i == 0 && p.unknown() {
			out.Values, out.Top = append(out.Values, nil), append(out.Top, nil)
			continue
		}
		log, top := p.at(i)
		out.Values = append(out.Values, &log)
		likely := map[string]float32{token: log}
		for j, other := range top.IDs {
			// Two tokens can have one text, such as parts of a character; the more likely one is named.
			text, _ := spell(of, other)
			if had, ok := likely[text]; !ok || had < top.LogProbs[j] {
				likely[text] = top.LogProbs[j]
			}
		}
		out.Top = append(out.Top, likely)
	}
	return out
}

// spell returns a token's text, in which incomplete characters are U+FFFD, and its bytes.
func spell(p *policy.CausalLM, id int32) (string, []byte) {
	text, err := p.Tokenizer.Decode([]int32{id}, false)
	bytes, wrong := p.Tokenizer.TokenBytes(id)
	if err != nil || wrong != nil {
		return "", nil
	}
	return text, bytes
}
