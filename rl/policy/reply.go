package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	template "github.com/rltrain/rltrain/torch/transformers/chat"
)

// EncodeReply is the tokens after an assistant's message that others answer, the user or the tools that it called, in a
// conversation with inputs in: the end of that message (unless ended says that it has an end token), the replies, and the
// opening of the assistant's next message. Nothing of the conversation before is rendered, so its tokens stay as they are.
func (p *CausalLM) EncodeReply(in envs.TemplateInputs, replies []envs.Message, ended bool) ([]int32, error) {
	rest, err := p.afterTurn(in, replies)
	if err != nil {
		return nil, err
	}
	ids, err := p.Tokenizer.EncodeRaw(rest, false)
	if err == nil && ended && len(ids) > 0 && slices.Contains(p.eos, ids[0]) {
		ids = ids[1:]
	}
	return ids, err
}

// afterTurn is what a conversation's text has after an assistant's message that replies answer.
func (p *CausalLM) afterTurn(in envs.TemplateInputs, replies []envs.Message) (string, error) {
	asked := chat.Turn(envs.RoleUser, "-")
	var err error
	for _, said := range turnsBefore(replies) {
		rest := func(open bool, after ...chat.Message) (string, error) {
			rendered, err := p.render(slices.Concat([]chat.Message{asked, said}, after), in, open, (*template.Templates).Render)
			if err != nil {
				return "", err
			}
			_, rest, found := strings.Cut(rendered.Text, turnMark)
			if !found {
				return "", fmt.Errorf("the chat template of %s drops earlier assistant messages or the arguments of their calls, so episodes can have one turn only", p.dir)
			}
			return rest, nil
		}
		var with, without string
		if with, err = rest(true, Conversation(replies)...); err != nil {
			continue
		}
		if callsOf(said) == nil {
			return with, nil
		}
		// The mark is within the call. The turn ends where both texts have an end token, else where the replies begin.
		if without, err = rest(false); err != nil {
			continue
		}
		n := 0
		for n < min(len(with), len(without)) && with[n] == without[n] {
			n++
		}
		if end := p.firstEnd(with[:n]); end >= 0 {
			n = end
		}
		return with[n:], nil
	}
	return "", err
}

// turnsBefore are assistant's messages that replies may answer, with turnMark at their end: one with the calls of the
// replies, and one with the last of them, for templates that know single calls only.
func turnsBefore(replies []envs.Message) []chat.Message {
	said := func(content string) chat.Message {
		return chat.Turn(envs.RoleAssistant, content)
	}
	if replies[0].Role != envs.RoleTool {
		return []chat.Message{said(turnMark)}
	}
	var calls []any
	for i, reply := range replies {
		arguments := dataset.Object{}
		if i == len(replies)-1 {
			arguments = dataset.Object{{Name: "x", Value: turnMark}}
		}
		id, _ := reply.Fields.Get("tool_call_id")
		name, _ := reply.Fields.Get("name")
		calls = append(calls, tools.Called(id, name, arguments))
	}
	with := func(calls []any) chat.Message {
		return chat.Message(dataset.Object(said("")).With("tool_calls", calls))
	}
	return []chat.Message{with(calls), with(calls[len(calls)-1:])}
}

// firstEnd is where the first end token stands in a text, -1 if nowhere.
func (p *CausalLM) firstEnd(text string) int {
	first := -1
	for _, id := range p.eos {
		token, err := p.Tokenizer.Decode([]int32{id}, false)
		if err != nil || token == "" {
			continue
		}
		if at := strings.Index(text, token); at >= 0 && (first < 0 || at < first) {
			first = at
		}
	}
	return first
}

// DropsThoughts reports whether the chat template drops the thought of an assistant's message once a message of a role
// follows. What an episode has after it is then another segment.
func (p *CausalLM) DropsThoughts(role string) bool {
	if p.Templates == nil {
		return false
	}
	said := chat.Turn(envs.RoleAssistant, "<think>\n"+turnMark+"\n</think>\n\n-")
	if last := envs.ThoughtTags[len(envs.ThoughtTags)-1]; p.EndOfThought() == last[1] { // whose template reads thoughts in a field alone
		said = chat.Message(dataset.Object(chat.Turn(envs.RoleAssistant, "-")).With("reasoning_content", turnMark))
	}
	reply := envs.Message{Role: role, Content: "-", Fields: dataset.Object{
		{Name: "role", Value: role}, {Name: "tool_call_id", Value: "call00000"}, {Name: "name", Value: "probe"}, {Name: "content", Value: "-"}}}
	if role == envs.RoleTool {
		call := tools.Called("call00000", "probe", dataset.Object{})
		said = chat.Message(dataset.Object(said).With("tool_calls", []any{call}))
	}
	asked := chat.Turn(envs.RoleUser, "-")
	rendered, err := p.renderOnce(slices.Concat([]chat.Message{asked, said}, Conversation([]envs.Message{reply})), envs.TemplateInputs{}, true, (*template.Templates).Render)
	return err == nil && !strings.Contains(rendered.Text, turnMark)
}

// OpensThought reports whether a prompt ends with the tag that begins a thought.
func (p *CausalLM) OpensThought(prompt []int32) bool {
	text, err := p.Tokenizer.Decode(prompt[max(0, len(prompt)-8):], false)
	return err == nil && envs.OpensThought(text)
}

// EndOfThought returns the tag that ends a thought: the one that the chat template names, or else the usual one.
func (p *CausalLM) EndOfThought() string {
	for _, tags := range envs.ThoughtTags {
		if p.Templates != nil && strings.Contains(p.Templates.Source(), tags[1]) {
			return tags[1]
		}
	}
	return envs.ThoughtTags[0][1]
}

// DecodeEnds is the text of tokens, and its length after each of them. Special tokens have no text, except those that mark
// tool calls and thoughts.
func (p *CausalLM) DecodeEnds(ids []int32) (text string, ends []int, err error) {
	marks := p.textMarks()
	var b strings.Builder
	decoder := p.Tokenizer.NewDecoder(true)
	for i, id := range ids {
		piece, err := decoder.Push(id)
		if err != nil {
			return "", nil, err
		}
		b.WriteString(piece)
		mark, marked := marks[id]
		if marked || i == len(ids)-1 {
			rest, err := decoder.Flush()
			if err != nil {
				return "", nil, err
			}
			b.WriteString(rest + mark)
			decoder = p.Tokenizer.NewDecoder(true)
		}
		ends = append(ends, b.Len())
	}
	return b.String(), ends, nil
}

// textMarks are the special tokens with which the chat template's tool calls begin, and those of thoughts.
func (p *CausalLM) textMarks() map[int32]string {
	if p.Templates == nil {
		return nil
	}
	marks := map[int32]string{}
	for _, mark := range slices.Concat(tools.FormatOf(p.Templates.Source()).Special(), envs.ThoughtMarks) {
		if id, ok := p.Tokenizer.TokenID(mark); ok && p.Tokenizer.IsControl(mark) {
			marks[id] = mark
		}
	}
	return marks
}
