package serve

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl/policy"
)

// chatBody is the body of /v1/chat/completions.
type chatBody struct {
	Messages      json.RawMessage `json:"messages"`
	TemplateArgs  json.RawMessage `json:"chat_template_kwargs"`
	Tools         json.RawMessage `json:"tools"`
	ToolChoice    json.RawMessage `json:"tool_choice"`
	Parallel      *bool           `json:"parallel_tool_calls"`
	LogProbs      bool            `json:"logprobs"`
	TopLogProbs   *int            `json:"top_logprobs"`
	MaxCompletion *int            `json:"max_completion_tokens"`
	sampling
}

var chatNeutral = map[string][]string{
	"response_format": {`{"type":"text"}`},
	"modalities":      {`["text"]`}, "add_generation_prompt": {"true"}, "continue_final_message": {"false"}, "service_tier": {`"auto"`},
	"echo": {"false"},
}

type chatMessage struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content"`

	Reasoning string `json:"reasoning_content,omitempty"` // the thought, without its tags

	Calls []toolCall `json:"tool_calls,omitempty"`
}

type chatLogProb struct {
	Token   string  `json:"token"`
	LogProb float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`

	Top []chatLogProb `json:"top_logprobs,omitzero"` // empty, not nil, for a generated token; alternatives have none
}

// chatLogProbOf describes a token with its log-prob.
func chatLogProbOf(of *policy.CausalLM, id int32, log float32) chatLogProb {
	token, bytes := spell(of, id)
	one := chatLogProb{Token: token, LogProb: log, Bytes: []int{}}
	for _, b := range bytes {
		one.Bytes = append(one.Bytes, int(b))
	}
	return one
}

type chatLogProbs struct {
	Content []chatLogProb `json:"content"`
}

type chatChoice struct {
	Index    int           `json:"index"`
	Message  *chatMessage  `json:"message,omitempty"`
	Delta    *chatMessage  `json:"delta,omitempty"`
	LogProbs *chatLogProbs `json:"logprobs"`
	Reason   *string       `json:"finish_reason"`
	IDs      []int32       `json:"token_ids,omitempty"`
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) error {
	var q chatBody
	l, err := s.read(w, r, &q, chatNeutral, &q.sampling)
	if err != nil {
		return err
	}
	if q.MaxCompletion != nil {
		if q.MaxTokens != nil && *q.MaxTokens != *q.MaxCompletion {
			return bad("max_completion_tokens", "max_tokens and max_completion_tokens conflict; keep one")
		}
		q.MaxTokens = q.MaxCompletion
	}
	defaults := s.defaults(or(q.TopLogProbs, 0) > 0)
	one, err := s.sessionOf(r)
	if err != nil {
		return err
	}
	if one != nil {
		defaults = unfiltered(1)
	}
	o, err := q.options(l, defaults, 1)
	if err != nil {
		return err
	}
	var call *recordedCall
	if one != nil {
		if err := one.take(r.Context()); err != nil {
			return err
		}
		defer one.give()
		if call, err = one.call(l.name, o); err != nil {
			return err
		}
	}
	prompt, use, err := s.chatPrompt(r.Context(), l, &q, call)
	if err != nil {
		return err
	}
	if err := q.fit(&o, l.policy, len(prompt), 1, l.policy.MaxLength()-len(prompt)); err != nil {
		return err
	}
	if !q.LogProbs && q.TopLogProbs != nil {
		return bad("top_logprobs", "top_logprobs needs logprobs: true")
	}
	top := -1
	if q.LogProbs {
		top = or(q.TopLogProbs, 0)
	}
	f := &form{
		id: "chatcmpl-" + newID(), object: "chat.completion", piece: "chat.completion.chunk", lane: l, job: &job{prompts: [][]int32{prompt}, options: o}, top: top,
		choice: q.choice(l.policy, use, thinkingOf(l.policy, prompt, &q.sampling)),
	}
	if call != nil {
		call.prompt, f.recorded = prompt, call
	}
	if err := s.allowTop(f, "top_logprobs", len(prompt)); err != nil {
		return err
	}
	return s.write(w, r, &q.sampling, f)
}

// choice describes a part of the response. use is nil if the model may not call tools, k if it does not think.
func (q *chatBody) choice(of *policy.CausalLM, use *toolUse, k *thinking) func(*part) any {
	return func(p *part) any {
		c := chatChoice{Index: p.index, Reason: p.reason()}
		said := &chatMessage{}
		if k != nil {
			p = k.split(p, said)
		}
		said.Content = &p.text
		if use != nil {
			use.split(p, said, q.Stream)
		}
		if said.Calls != nil {
			c.Reason = &calledTools
		}
		if p.first {
			said.Role = "assistant"
		}
		if q.Stream {
			c.Delta = said
		} else {
			c.Message = said
		}
		if q.LogProbs {
			c.LogProbs = &chatLogProbs{Content: []chatLogProb{}}
			for i, id := range p.ids {
				log, likely := p.at(i)
				one := chatLogProbOf(of, id, log)
				one.Top = []chatLogProb{}
				for j, other := range likely.IDs {
					one.Top = append(one.Top, chatLogProbOf(of, other, likely.LogProbs[j]))
				}
				c.LogProbs.Content = append(c.LogProbs.Content, one)
			}
		}
		if q.TokenIDs {
			c.IDs = p.ids
		}
		return c
	}
}

// templateArgs reads variables for the chat template, such as enable_thinking.
func templateArgs(data json.RawMessage) (dataset.Object, error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil
	}
	value, err := dataset.Parse(string(data))
	args, ok := value.(dataset.Object)
	if err != nil || !ok {
		return nil, bad("chat_template_kwargs", "chat_template_kwargs: want an object such as {\"enable_thinking\": false}")
	}
	return args, nil
}

// chatPrompt is the tokens of a request's messages, of which there is at least one, and how the model may call tools.
func (s *Server) chatPrompt(ctx context.Context, l *lane, q *chatBody, call *recordedCall) (prompt []int32, use *toolUse, err error) {
	if len(q.Messages) == 0 {
		return nil, nil, bad("messages", "messages is missing")
	}
	err = s.prepare(ctx, len(q.Messages)+len(q.TemplateArgs)+len(q.Tools), func() (err error) {
		var e chat.Example
		if e.TemplateArgs, err = templateArgs(q.TemplateArgs); err != nil {
			return err
		}
		if use, err = q.toolUse(l.policy, &e); err != nil {
			return err
		}
		value, err := dataset.Parse(string(q.Messages))
		if err == nil {
			e.Prompt.Messages, err = chat.Messages(value, false)
		}
		switch {
		case err != nil:
		case call != nil:
			prompt, err = call.encode(l.policy, e)
		default:
			prompt, err = l.policy.EncodePrompt(e)
		}
		if err == nil && len(prompt) == 0 {
			err = errors.New("the prompt is empty")
		}
		if err == nil && use != nil {
			prompt, err = use.prepare(l.policy, prompt, &q.sampling)
		}
		if err != nil {
			return bad("messages", "messages: %v", err)
		}
		return nil
	})
	return prompt, use, err
}
