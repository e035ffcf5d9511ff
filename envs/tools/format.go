// Package tools reads the tool calls in what language models generate and the descriptions of tools in OpenAI's format, and runs
// the tools of episodes.
package tools

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

// Format is a way to write tool calls as text. A model learns the one of its chat template.
type Format struct {
	Name string
	// Marker is the text that begins the calls, as Force writes it.
	Marker string

	before, between, after string // around the name and the arguments of a call, after Marker
	shortIDs               bool   // templates accept only ids of 9 letters and digits
	begins                 func(text string, over bool) int
	parse                  func(text string) (calls []Call, rest string, ok bool)
}

// The formats, by the model family that introduced them.
var (
	// Hermes is <tool_call>{"name": …, "arguments": …}</tool_call>, of Qwen, SmolLM, Hermes and others.
	Hermes = &Format{
		Name: "hermes", Marker: "<tool_call>", before: "\n{\"name\": \"", between: "\", \"arguments\": ", after: "}\n</tool_call>",
		begins: marker("<tool_call>"), parse: hermes,
	}
	// Mistral is [TOOL_CALLS] with a list of calls, or with name[ARGS]{…} for each call.
	Mistral = &Format{
		Name: "mistral", Marker: "[TOOL_CALLS]", before: "[{\"name\": \"", between: "\", \"arguments\": ", after: "}]", shortIDs: true,
		begins: marker("[TOOL_CALLS]"), parse: mistral,
	}
	// Gemma is <|tool_call>call:name{key:<|"|>value<|"|>,…}<tool_call|> for each call, of Gemma 4.
	Gemma = &Format{
		Name: "gemma", Marker: "<|tool_call>", before: "call:", between: "", after: "<tool_call|>",
		begins: marker("<|tool_call>"), parse: gemma,
	}
	// Llama is {"name": …, "parameters": …} at the start of the message, of Llama 3; a semicolon separates calls.
	Llama = &Format{
		Name: "llama", Marker: "", before: "{\"name\": \"", between: "\", \"parameters\": ", after: "}",
		begins: earliest(start("<|python_tag|>"), start("{")), parse: llama,
	}
	// JSON is a call or a list of calls in a block of code, or as the whole message.
	JSON = &Format{
		Name: "json", Marker: "", before: "```json\n{\"name\": \"", between: "\", \"arguments\": ", after: "}\n```",
		begins: earliest(marker("```"), start("{"), start("[")), parse: block,
	}
)

// FormatOf chooses the format of a chat template by the markers in its source.
func FormatOf(template string) *Format {
	switch {
	case strings.Contains(template, Mistral.Marker):
		return Mistral
	case strings.Contains(template, Hermes.Marker):
		return Hermes
	case strings.Contains(template, Gemma.Marker):
		return Gemma
	case strings.Contains(template, "<|python_tag|>"):
		return Llama
	}
	return JSON
}

// Force is text that, as the start of a message, makes the model call a tool: the one called name, or any if name is "".
func (f *Format) Force(name string) string {
	if name == "" {
		return f.Marker + f.before
	}
	return f.Marker + f.before + name + f.between
}

// Example is a call in the format, for messages.
func (f *Format) Example() string {
	return f.Force("NAME") + "{…}" + f.after
}

// attempts reports whether a text without calls looks like the model tried one.
func (f *Format) attempts(text string) bool {
	if f.Marker != "" {
		return strings.Contains(text, f.Marker)
	}
	at := f.begins(text, true)
	return at >= 0 && (strings.HasPrefix(text[at:], "<|python_tag|>") || strings.Contains(text[at:], "\"name\""))
}

// NewID returns a random id for a call, as templates of the format accept it.
func (f *Format) NewID() string {
	var random [12]byte
	_, _ = rand.Read(random[:]) // never fails
	id := hex.EncodeToString(random[:])
	if f.shortIDs {
		return id[:9]
	}
	return "call_" + id
}

// Special are the markers of the format that tokenizers may treat as special tokens, whose text a decoder then has to keep.
func (f *Format) Special() []string {
	switch f {
	case Llama:
		return []string{"<|python_tag|>"}
	case Gemma:
		return []string{f.Marker, f.after, gemmaQuote}
	case JSON:
		return nil
	}
	return []string{f.Marker}
}

// marker returns where mark is in a text, or where the text ends with the first part of it unless the text is over; −1 if
// neither.
func marker(mark string) func(string, bool) int {
	return func(text string, over bool) int {
		if at := strings.Index(text, mark); at >= 0 || over {
			return at
		}
		for n := min(len(mark)-1, len(text)); n > 0; n-- {
			if strings.HasSuffix(text, mark[:n]) {
				return len(text) - n
			}
		}
		return -1
	}
}

// start is marker, for a mark that counts only as the first text of a message.
func start(mark string) func(string, bool) int {
	return func(text string, over bool) int {
		trimmed := strings.TrimLeft(text, space)
		if strings.HasPrefix(trimmed, mark) || !over && strings.HasPrefix(mark, trimmed) {
			return len(text) - len(trimmed)
		}
		return -1
	}
}

func earliest(each ...func(string, bool) int) func(string, bool) int {
	return func(text string, over bool) int {
		first := -1
		for _, begins := range each {
			if at := begins(text, over); at >= 0 && (first < 0 || at < first) {
				first = at
			}
		}
		return first
	}
}
