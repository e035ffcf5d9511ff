package chat

import (
	"errors"
	"fmt"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// Messages reads a conversation: a list of messages, or one message; padded is of the record that has it. Errors name the message and the fault. The error is
// ErrNull if a message has null content.
func Messages(value any, padded bool) ([]Message, error) {
	if padded {
		value = withoutNulls(value)
	}
	turns, ok := value.([]any)
	if !ok {
		turns = []any{value}
	}
	if len(turns) == 0 {
		return nil, errors.New("the conversation has no messages; fill it or remove the row")
	}
	out := make([]Message, len(turns))
	for i, value := range turns {
		m, err := message(value)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i+1, err)
		}
		out[i] = m
	}
	return out, nil
}

// Said converts messages for an episode.
func Said(messages []Message) []envs.Message {
	said := make([]envs.Message, len(messages))
	for i, m := range messages {
		said[i] = envs.Message{Role: m.Role(), Content: m.Text()}
		if content, _ := dataset.Object(m).Get("content"); len(m) != 2 || dataset.Kind(content) != "a string" {
			said[i].Fields = dataset.Object(m)
		}
	}
	return said
}

// message reads {"role", "content"}, or ShareGPT's {"from", "value"}.
func message(value any) (Message, error) {
	object, ok := value.(dataset.Object)
	if !ok {
		return nil, fmt.Errorf("got %s, want an object with role and content", dataset.Kind(value))
	}
	if from, ok := object.Get("from"); ok && from != nil {
		var err error
		if object, err = shareGPT(object, from); err != nil {
			return nil, err
		}
	}
	m := Message{}
	calls := false
	for _, f := range object {
		if f.Value == nil && f.Name != "content" {
			continue
		}
		if f.Name == "tool_calls" {
			list, err := toolCalls(f.Value)
			if err != nil {
				return nil, fmt.Errorf("tool_calls: %w", err)
			}
			f.Value, calls = list, true
		}
		m = append(m, dataset.Field{Name: f.Name, Value: f.Value})
	}
	role, _ := dataset.Object(m).Get("role")
	if name, ok := role.(string); !ok || name == "" {
		return nil, fmt.Errorf("role: got %s, want system, user, assistant or tool; fields are %s", dataset.Kind(role), words.List(object.Names()))
	}
	content, there := dataset.Object(m).Get("content")
	switch {
	case content == nil && !calls && there:
		return nil, fmt.Errorf("content: %w", ErrNull)
	case content == nil && !calls:
		return nil, errors.New("content and tool_calls are both missing")
	}
	if err := checkContent(content); err != nil {
		return nil, fmt.Errorf("content: %w", err)
	}
	return m, checkText(dataset.Object(m))
}

func checkContent(content any) error {
	switch content := content.(type) {
	case nil, string:
		return nil
	case []any:
		for i, part := range content {
			object, _ := part.(dataset.Object)
			kind, _ := object.Get("type")
			if text, _ := object.Get("text"); kind != "text" || dataset.Kind(text) != "a string" {
				name, _ := kind.(string)
				return fmt.Errorf("part %d has type %s; only text is supported, {\"type\": \"text\", \"text\": …}", i+1, words.Quote(name))
			}
		}
		return nil
	default:
		return fmt.Errorf("got %s, want a string or a list of parts", dataset.Kind(content))
	}
}

// checkText refuses text, at any depth, that tokenizers would cut or change.
func checkText(value any) error {
	switch v := value.(type) {
	case string:
		return plain(v)
	case dataset.Object:
		for _, f := range v {
			if err := plain(f.Name); err != nil {
				return fmt.Errorf("field %s: %w", words.Quote(f.Name), err)
			}
			if err := checkText(f.Value); err != nil {
				return fmt.Errorf("%s: %w", words.Quote(f.Name), err)
			}
		}
	case []any:
		for _, element := range v {
			if err := checkText(element); err != nil {
				return err
			}
		}
	}
	return nil
}

// withoutNulls drops null fields of structs at any depth, which Parquet and Arrow add to give all structs the same fields.
// List elements stay, and so does the content of a message, whose null means that the row is empty.
func withoutNulls(value any) any {
	switch v := value.(type) {
	case dataset.Object:
		out := dataset.Object{}
		for _, f := range v {
			if f.Value != nil || f.Name == "content" || f.Name == "value" {
				out = append(out, dataset.Field{Name: f.Name, Value: withoutNulls(f.Value)})
			}
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, element := range v {
			out[i] = withoutNulls(element)
		}
		return out
	}
	return value
}

// roles maps ShareGPT's speakers to roles.
var roles = map[string]string{
	"system": "system",
	"human":  "user", "user": "user",
	"gpt": "assistant", "assistant": "assistant", "model": "assistant", "chatgpt": "assistant",
	"tool": "tool", "observation": "tool", "function_response": "tool",
}

// shareGPT converts {"from", "value"} to {"role", "content"}. A function_call becomes an assistant message with
// tool_calls.
func shareGPT(object dataset.Object, from any) (dataset.Object, error) {
	name, _ := from.(string)
	value, there := object.Get("value")
	text, ok := value.(string)
	if there && value == nil {
		return nil, fmt.Errorf("value: %w", ErrNull)
	}
	if !ok {
		return nil, fmt.Errorf("value: got %s, want a string", dataset.Kind(value))
	}
	var out dataset.Object
	if name == "function_call" {
		calls, err := functionCalls(text)
		if err != nil {
			return nil, fmt.Errorf("function_call: %w", err)
		}
		out = dataset.Object{{Name: "role", Value: "assistant"}, {Name: "tool_calls", Value: calls}}
	} else {
		role, ok := roles[name]
		if !ok {
			return nil, fmt.Errorf("unknown speaker %s in from; want human, gpt, system, function_call or observation", words.Quote(name))
		}
		out = dataset.Object{{Name: "role", Value: role}, {Name: "content", Value: text}}
	}
	for _, f := range object {
		switch f.Name {
		case "from", "value":
		case "role", "content", "tool_calls":
			if f.Value != nil {
				return nil, fmt.Errorf("fields from and %s are both set; remove one", f.Name)
			}
		default:
			out = append(out, f)
		}
	}
	return out, nil
}
