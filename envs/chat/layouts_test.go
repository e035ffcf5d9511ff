package chat

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestLayoutsOfTRL: the files in testdata, written by the datasets library with every field in every message, mean the same
// in both formats, but for the nulls: in JSON they could be meant, and stay.
func TestLayoutsOfTRL(t *testing.T) {
	call := dataset.Object{{Name: "type", Value: "function"}, {Name: "function", Value: dataset.Object{
		{Name: "name", Value: "weather"}, {Name: "arguments", Value: dataset.Object{{Name: "city", Value: "Bern"}}}}}}
	calls := Message{{Name: "role", Value: "assistant"}, {Name: "content", Value: nil}, {Name: "tool_calls", Value: []any{call}}}
	result := Message{{Name: "role", Value: "tool"}, {Name: "content", Value: "dry"}, {Name: "name", Value: "weather"}}
	kind := func(name string) dataset.Object { return dataset.Object{{Name: "type", Value: name}} }
	tools := []any{dataset.Object{{Name: "type", Value: "function"}, {Name: "function", Value: dataset.Object{
		{Name: "name", Value: "weather"}, {Name: "parameters", Value: dataset.Object{{Name: "type", Value: "object"},
			{Name: "properties", Value: dataset.Object{{Name: "city", Value: kind("string")}, {Name: "days", Value: kind("integer")}}},
			{Name: "required", Value: []any{"city"}}}}}}}}
	with := func(first Content, more ...Message) Content {
		first.Messages = append(first.Messages, more...)
		return first
	}
	extra := func(name string, value any) dataset.Object { return dataset.Object{{Name: name, Value: value}} }
	asked, other, said, worse := chat("user: Rain?"), chat("user: And ☃?"), chat("assistant: No."), chat("assistant: Maybe.")
	for name, want := range map[string][]Example{
		"sft_text": {{Format: LanguageModelling, Text: text("Rain? No.")}, {Format: LanguageModelling, Text: text("Snow?")}},
		"sft_messages": {{Format: LanguageModelling, Text: chat("user: Rain?", "assistant: No."), Extra: extra("id", int64(1))},
			{Format: LanguageModelling, Text: chat("user: And ☃?", "assistant: Maybe.", "user: Rain?", "assistant: No."), Extra: extra("id", nil)}},
		"sft_tools": {{Format: LanguageModelling, Text: with(chat("user: Rain?"), calls, result, Turn("assistant", "No.")), TemplateInputs: envs.TemplateInputs{Tools: tools}},
			{Format: LanguageModelling, Text: chat("user: And ☃?", "assistant: No.")}},
		"sft_tools_as_json": {{Format: LanguageModelling, Text: chat("user: Rain?", "assistant: No."), TemplateInputs: envs.TemplateInputs{Tools: tools}}},
		"sft_completion": {{Format: PromptCompletion, Prompt: asked, Completion: with(Content{}, calls)},
			{Format: PromptCompletion, Prompt: other, Completion: said}},
		"dpo": {{Format: Preference, Prompt: asked, Chosen: said, Rejected: worse, Extra: extra("score", 0.5)},
			{Format: Preference, Prompt: other, Chosen: with(Content{}, calls), Rejected: said, Extra: extra("score", nil)}},
		"dpo_text":     {{Format: Preference, Prompt: text("Rain? "), Chosen: text("No."), Rejected: text("Maybe.")}},
		"dpo_implicit": {{Format: Preference, Prompt: asked, Chosen: said, Rejected: worse}},
		"kto": {{Format: Unpaired, Prompt: asked, Completion: said, Label: true},
			{Format: Unpaired, Prompt: asked, Completion: worse}},
		"grpo": {{Format: PromptOnly, Prompt: asked, Extra: dataset.Object{{Name: "solution", Value: "No."}, {Name: "level", Value: int64(3)}}},
			{Format: PromptOnly, Prompt: chat("user: Rain?", "assistant: No.", "user: And ☃?"), Extra: dataset.Object{{Name: "solution", Value: nil}, {Name: "level", Value: nil}}}},
		"grpo_text": {{Format: PromptOnly, Prompt: text("2 + 2 ="), Extra: extra("answer", "4")}},
	} {
		for _, extension := range []string{".jsonl", ".parquet"} {
			got, err := read(filepath.Join("testdata", name+extension))
			if err != nil {
				t.Errorf("%s%s: %v", name, extension, err)
				continue
			}
			if extension == ".jsonl" {
				for i := range got {
					got[i] = unpadded(got[i])
				}
			}
			expect.Equal(t, want, got, cmpopts.IgnoreFields(Example{}, "File", "Line"), fmt.Sprintf("%s%s", name, extension))
		}
	}
}

// unpadded drops the nulls of messages and tools.
func unpadded(e Example) Example {
	for _, c := range []Content{e.Text, e.Prompt, e.Completion, e.Chosen, e.Rejected} {
		for i, m := range c.Messages {
			c.Messages[i] = Message(withoutNulls(dataset.Object(m)).(dataset.Object))
		}
	}
	if e.Tools != nil {
		e.Tools = withoutNulls(e.Tools).([]any)
	}
	return e
}

// TestMemory: memory use does not grow with the file.
func TestMemory(t *testing.T) {
	const rows = 300_000
	path := must.File(t, "many.jsonl", strings.Repeat(`{"prompt":"What is 6 times 7?","answer":42}`+"\n", rows))
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, n := heap(), 0
	for e, err := range Examples(dataset.Records(path), PromptOnly) {
		must.Do(t, err)
		if n++; n%100_000 == 0 {
			expect.True(t, heap() <= before+8<<20 && e.Prompt.Text == "What is 6 times 7?", "row %d is %q; the heap grew by %d bytes",
				n, e.Prompt.Text, heap()-before)
		}
	}
	expect.Same(t, rows, n, "rows")
}

// Nulls of JSON are meant; those in structs of Parquet and Arrow may stand for missing fields.
func TestNulls(t *testing.T) {
	value := must.Get(dataset.Parse(`{"messages":[{"role":"user","content":"q","name":null},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"unit":null}}}]}],"tools":[{"name":"f","default":null}],"documents":["a",null]}`))(t)
	for padded, want := range map[bool]string{
		false: `[{"role":"user","content":"q"} {"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"unit":null}}}]}] {"name":"f","default":null}`,
		true:  `[{"role":"user","content":"q"} {"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{}}}]}] {"name":"f"}`,
	} {
		r := dataset.Record{File: "f", Line: 1, Fields: value.(dataset.Object), Padded: padded}
		layout := must.Get(Detect(r))(t)
		e := must.Get(layout.Example(r))(t)
		var all []string
		for _, m := range e.Text.Messages {
			all = append(all, marshal(t, dataset.Object(m)))
		}
		expect.Same(t, want, fmt.Sprint(all)+" "+marshal(t, e.Tools[0].(dataset.Object)), "padded %v", padded)
		_, kept := e.Extra.Get("documents")
		expect.True(t, e.Documents == nil && kept, "a list of texts is taken for documents: %v", e.Documents)
	}
}

func marshal(t *testing.T, o dataset.Object) string {
	t.Helper()
	data := must.Get(o.MarshalJSON())(t)
	return string(data)
}
