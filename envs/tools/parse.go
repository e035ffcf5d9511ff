package tools

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

const space = " \t\r\n"

// Call is a tool call of a model.
type Call struct {
	Name      string
	Arguments json.RawMessage // an object, as the model wrote it
}

// Parse splits a complete message into its content and its tool calls. The content is the text before the calls, without
// the white space between, and the text after them. If anything that begins like a call is not one, all of the text is content.
func (f *Format) Parse(text string) (content string, calls []Call) {
	at := f.begins(text, true)
	if at < 0 {
		return text, nil
	}
	calls, rest, ok := f.parse(text[at:])
	if !ok || len(calls) == 0 {
		return text, nil
	}
	content = strings.TrimRight(text[:at], space)
	if rest = strings.TrimSpace(rest); rest != "" {
		if content != "" {
			content += "\n"
		}
		content += rest
	}
	return content, calls
}

// hermes reads calls between tags. The end tag of the last one may be missing: some models end their turn instead.
func hermes(text string) (calls []Call, rest string, ok bool) {
	for {
		body, more := strings.CutPrefix(strings.TrimLeft(text, space), "<tool_call>")
		if !more {
			return calls, text, true
		}
		found, rest, ok := callsAt(body)
		if !ok || len(found) != 1 {
			return nil, "", false
		}
		calls = append(calls, found...)
		rest = strings.TrimLeft(rest, space)
		end, closed := strings.CutPrefix(rest, "</tool_call>")
		if !closed && rest != "" {
			return nil, "", false
		}
		text = end
	}
}

func mistral(text string) (calls []Call, rest string, ok bool) {
	for {
		body, more := strings.CutPrefix(strings.TrimLeft(text, space), "[TOOL_CALLS]")
		if !more {
			return calls, text, true
		}
		body = strings.TrimLeft(body, space)
		var found []Call
		if strings.HasPrefix(body, "[") || strings.HasPrefix(body, "{") {
			found, text, ok = callsAt(body)
		} else {
			found, text, ok = namedAt(body)
		}
		if !ok {
			return nil, "", false
		}
		calls = append(calls, found...)
	}
}

// namedAt reads name[ARGS]{…} or name{…}.
func namedAt(text string) (calls []Call, rest string, ok bool) {
	at := strings.IndexByte(text, '{')
	if at < 0 {
		return nil, "", false
	}
	name := strings.TrimRight(strings.TrimSuffix(strings.TrimRight(text[:at], space), "[ARGS]"), space)
	arguments, rest, ok := valueAt(text[at:])
	if !ok || !isName(name) {
		return nil, "", false
	}
	return []Call{{name, arguments}}, rest, true
}

func llama(text string) (calls []Call, rest string, ok bool) {
	text = strings.TrimPrefix(text, "<|python_tag|>")
	for {
		found, rest, ok := callsAt(text)
		if !ok || len(found) != 1 {
			return nil, "", false
		}
		calls = append(calls, found...)
		rest = strings.TrimLeft(rest, space)
		next, more := strings.CutPrefix(rest, ";")
		switch {
		case more:
			text = next
		case strings.HasPrefix(rest, "{"):
			text = rest
		default:
			return calls, rest, true
		}
	}
}

// block reads the calls of the first block of code that has any, or of the whole text.
func block(text string) (calls []Call, rest string, ok bool) {
	body, fenced := strings.CutPrefix(text, "```")
	if !fenced {
		return callsAt(text)
	}
	language, body, _ := strings.Cut(body, "\n")
	if language = strings.TrimSpace(language); !slices.Contains([]string{"", "json", "tool_call", "tool_calls"}, language) {
		return nil, "", false
	}
	calls, rest, ok = callsAt(body)
	rest = strings.TrimLeft(rest, space)
	end, closed := strings.CutPrefix(rest, "```")
	return calls, end, ok && (closed || rest == "")
}

// callsAt reads the calls at the start of a text: an object, or a list of objects.
func callsAt(text string) (calls []Call, rest string, ok bool) {
	value, rest, ok := valueAt(text)
	if !ok {
		return nil, "", false
	}
	objects := []json.RawMessage{value}
	if value[0] == '[' {
		if json.Unmarshal(value, &objects) != nil {
			return nil, "", false
		}
	}
	for _, object := range objects {
		call, ok := callOf(object)
		if !ok {
			return nil, "", false
		}
		calls = append(calls, call)
	}
	return calls, rest, true
}

// valueAt reads the JSON value at the start of a text.
func valueAt(text string) (value json.RawMessage, rest string, ok bool) {
	decoder := json.NewDecoder(strings.NewReader(text))
	if decoder.Decode(&value) != nil {
		return nil, "", false
	}
	return value, text[decoder.InputOffset():], true
}

// callOf reads {"name": …, "arguments": {…}}. "parameters" is the same as "arguments"; both may be missing, and an object in a
// string is one.
func callOf(data json.RawMessage) (Call, bool) {
	var call struct {
		Name                  string
		Arguments, Parameters json.RawMessage
	}
	if json.Unmarshal(data, &call) != nil || !isName(call.Name) || call.Arguments != nil && call.Parameters != nil {
		return Call{}, false
	}
	arguments := call.Arguments
	if arguments == nil {
		arguments = call.Parameters
	}
	if arguments == nil {
		arguments = json.RawMessage("{}")
	}
	var text string
	if json.Unmarshal(arguments, &text) == nil && json.Valid([]byte(text)) {
		arguments = json.RawMessage(text)
	}
	arguments = bytes.TrimSpace(arguments)
	if !bytes.HasPrefix(arguments, []byte("{")) {
		return Call{}, false
	}
	return Call{call.Name, arguments}, true
}
