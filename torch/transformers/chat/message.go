package chat

import (
	"fmt"

	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// Message is a message of a conversation: a JSON object, usually with role and content, whose keys keep their order.
// It keeps all keys: tool_calls, name, reasoning_content and others. content is a string, a list of parts or null. The
// zero Message has no keys.
type Message struct{ fields *jinja.Dict }

// NewMessage is a text message.
func NewMessage(role, content string) Message {
	d := jinja.NewDict()
	d.Set("role", role)
	d.Set("content", content)
	return Message{d}
}

// MessageOf is a message with fields, which the caller must not change any more.
func MessageOf(fields *jinja.Dict) Message { return Message{fields} }

// UnmarshalJSON reads an object.
func (m *Message) UnmarshalJSON(data []byte) error {
	v, err := jinja.ParseJSON(data)
	if err != nil {
		return err
	}
	d, ok := v.(*jinja.Dict)
	if !ok {
		return fmt.Errorf("a message is a JSON object, not %.40s", data)
	}
	m.fields = d
	return nil
}

// Role is the message's role; "" if it has none.
func (m Message) Role() string {
	if m.fields == nil {
		return ""
	}
	role, _ := m.fields.Get("role")
	s, _ := role.(string)
	return s
}

// reasoningFields are the names of a message's reasoning, the standard one first.
var reasoningFields = []string{"reasoning_content", "thinking", "reasoning"}

// seen is m as transformers passes it to a template: without null values, and with its reasoning under
// reasoning_content and thinking, whatever its name was.
func (m Message) seen() *jinja.Dict {
	out := jinja.NewDict()
	if m.fields == nil {
		return out
	}
	var reasoning jinja.Value
	for _, name := range reasoningFields {
		if v, ok := m.fields.Get(name); ok && v != nil {
			reasoning = v
			break
		}
	}
	if reasoning != nil {
		out.Set("thinking", reasoning)
	}
	for _, key := range m.fields.Keys() {
		if v, _ := m.fields.Get(key); v != nil {
			out.Set(key, v)
		}
	}
	if reasoning != nil {
		out.Set("reasoning_content", reasoning)
	}
	return out
}
