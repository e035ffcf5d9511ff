package chat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func read(path string, accept ...Format) (examples []Example, err error) {
	for e, err := range Examples(dataset.Records(path), accept...) {
		if err != nil {
			return nil, err
		}
		examples = append(examples, e)
	}
	return examples, nil
}

func text(s string) Content { return Content{Text: s} }

// chat makes a conversation of turns "role: text".
func chat(turns ...string) Content {
	c := Content{}
	for _, t := range turns {
		role, text, _ := strings.Cut(t, ": ")
		c.Messages = append(c.Messages, Turn(role, text))
	}
	return c
}

func TestExamples(t *testing.T) {
	say := func(role, text string) string { return fmt.Sprintf(`{"role":%q,"content":%q}`, role, text) }
	tests := []struct {
		name, row string
		accept    []Format
		want      Example
	}{
		{"messages", `{"messages":[` + say("user", "q") + `,` + say("assistant", "a") + `],"tools":"[{\"name\":\"f\",\"x\":null}]","chat_template_kwargs":{"think":false}}`, nil,
			Example{Format: LanguageModelling, Text: chat("user: q", "assistant: a"), TemplateInputs: envs.TemplateInputs{Tools: []any{dataset.Object{{Name: "name", Value: "f"}, {Name: "x", Value: nil}}}, TemplateArgs: dataset.Object{{Name: "think", Value: false}}}}},
		{"prompt with a completion beside it", `{"prompt":"q","completion":"a"}`, []Format{PromptOnly},
			Example{Format: PromptOnly, Prompt: text("q"), Extra: dataset.Object{{Name: "completion", Value: "a"}}}},
		{"prompt and completion", `{"completion":"","prompt":"q","label":3}`, nil,
			Example{Format: PromptCompletion, Prompt: text("q"), Extra: dataset.Object{{Name: "label", Value: int64(3)}}}},
		{"unpaired", `{"prompt":"q","completion":"a","label":true}`, nil, Example{Format: Unpaired, Prompt: text("q"), Completion: text("a"), Label: true}},
		{"unpaired, read for its completions", `{"prompt":"q","completion":"a","label":true}`, []Format{LanguageModelling, PromptCompletion},
			Example{Format: PromptCompletion, Prompt: text("q"), Completion: text("a"), Extra: dataset.Object{{Name: "label", Value: true}}}},
		{"unpaired conversation", `{"messages":[` + say("user", "q") + `,` + say("assistant", "a") + `],"label":false}`, nil,
			Example{Format: Unpaired, Prompt: chat("user: q"), Completion: chat("assistant: a")}},
		{"implicit prompt that a text repeats", `{"prompt":"q","chosen":[` + say("user", "q") + `,` + say("assistant", "a") + `],"rejected":[` + say("user", "q") + `,` + say("assistant", "a") + `]}`, nil,
			Example{Format: Preference, Prompt: chat("user: q"), Chosen: chat("assistant: a"), Rejected: chat("assistant: a"), Extra: dataset.Object{{Name: "prompt", Value: "q"}}}},
		{"ShareGPT", `{"conversations":[{"from":"human","value":"q","weight":1},{"from":"gpt","value":"a"}],"system":"s"}`, nil,
			Example{Format: LanguageModelling, Text: Content{Messages: []Message{Turn("system", "s"),
				{{Name: "role", Value: "user"}, {Name: "content", Value: "q"}, {Name: "weight", Value: int64(1)}}, Turn("assistant", "a")}}}},
		{"ShareGPT calls", `{"conversations":[{"from":"human","value":"q"},{"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"x\":1}}"},{"from":"observation","value":"o"}]}`, nil,
			Example{Format: LanguageModelling, Text: Content{Messages: []Message{Turn("user", "q"),
				{{Name: "role", Value: "assistant"}, {Name: "tool_calls", Value: []any{dataset.Object{{Name: "type", Value: "function"}, {Name: "function", Value: dataset.Object{
					{Name: "name", Value: "f"}, {Name: "arguments", Value: dataset.Object{{Name: "x", Value: int64(1)}}}}}}}}},
				Turn("tool", "o")}}}},
		{"ShareGPT preference", `{"conversations":[{"from":"human","value":"q"}],"chosen":{"from":"gpt","value":"a"},"rejected":{"from":"gpt","value":"b"}}`, nil,
			Example{Format: Preference, Prompt: chat("user: q"), Chosen: chat("assistant: a"), Rejected: chat("assistant: b")}},
		{"Alpaca", `{"instruction":"i","input":"","output":"o"}`, nil, Example{Format: PromptCompletion, Prompt: chat("user: i"), Completion: chat("assistant: o")}},
		{"Alpaca with all columns", `{"instruction":"i","input":"x","output":"o","system":"s","history":[["q","a"]]}`, nil,
			Example{Format: PromptCompletion, Prompt: chat("system: s", "user: q", "assistant: a", "user: i\nx"), Completion: chat("assistant: o")}},
		{"Alpaca preference", `{"instruction":"i","input":null,"chosen":"a","rejected":"b"}`, nil,
			Example{Format: Preference, Prompt: chat("user: i"), Chosen: chat("assistant: a"), Rejected: chat("assistant: b")}},
		{"Alpaca label", `{"instruction":"i","output":"o","kto_tag":"False"}`, nil, Example{Format: Unpaired, Prompt: chat("user: i"), Completion: chat("assistant: o")}},
		{"demonstrations and own samples", `{"prompt":"q","chosen":"a","completion":"b","finish_reason":"stop"}`, []Format{Preference},
			Example{Format: Preference, Prompt: text("q"), Chosen: text("a"), Rejected: text("b"), Extra: dataset.Object{{Name: "finish_reason", Value: "stop"}}}},
		{"demonstrations of conversations", `{"messages":[` + say("user", "q") + `],"chosen":"a","completion":"b"}`, []Format{Preference},
			Example{Format: Preference, Prompt: chat("user: q"), Chosen: chat("assistant: a"), Rejected: chat("assistant: b")}},
		{"OpenAI preference", `{"input":{"messages":[` + say("user", "q") + `],"tools":[{"n":1}]},"preferred_output":[` + say("assistant", "a") + `],"non_preferred_output":[` + say("assistant", "b") + `]}`, nil,
			Example{Format: Preference, Prompt: chat("user: q"), Chosen: chat("assistant: a"), Rejected: chat("assistant: b"), TemplateInputs: envs.TemplateInputs{Tools: []any{dataset.Object{{Name: "n", Value: int64(1)}}}}}},
		{"nulls and parts", `{"messages":[{"role":"user","name":null,"content":[{"type":"text","text":"a","image":null},{"type":"text","text":"b"}]},{"tool_calls":[{"name":"f","arguments":{"x":null,"y":[null]}}],"content":null,"role":"assistant"}]}`, nil,
			Example{Format: LanguageModelling, Text: Content{Messages: []Message{
				{{Name: "role", Value: "user"}, {Name: "content", Value: []any{dataset.Object{{Name: "type", Value: "text"}, {Name: "text", Value: "a"}, {Name: "image", Value: nil}}, dataset.Object{{Name: "type", Value: "text"}, {Name: "text", Value: "b"}}}}},
				{{Name: "tool_calls", Value: []any{dataset.Object{{Name: "name", Value: "f"}, {Name: "arguments", Value: dataset.Object{{Name: "x", Value: nil}, {Name: "y", Value: []any{nil}}}}}}}, {Name: "content", Value: nil}, {Name: "role", Value: "assistant"}},
			}}}},
		{"OpenAI calls", `{"messages":[` + say("user", "q") + `,{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},{"function":{"name":"g","arguments":""}}]},{"role":"tool","tool_call_id":"a","content":"o"}],"tools":[{"type":"function"}],"parallel_tool_calls":false}`, nil,
			Example{Format: LanguageModelling, Text: Content{Messages: []Message{Turn("user", "q"),
				{{Name: "role", Value: "assistant"}, {Name: "tool_calls", Value: []any{
					dataset.Object{{Name: "id", Value: "a"}, {Name: "type", Value: "function"}, {Name: "function", Value: dataset.Object{{Name: "name", Value: "f"}, {Name: "arguments", Value: dataset.Object{{Name: "x", Value: int64(1)}}}}}},
					dataset.Object{{Name: "function", Value: dataset.Object{{Name: "name", Value: "g"}, {Name: "arguments", Value: dataset.Object{}}}}}}}},
				{{Name: "role", Value: "tool"}, {Name: "tool_call_id", Value: "a"}, {Name: "content", Value: "o"}}}},
				TemplateInputs: envs.TemplateInputs{Tools: []any{dataset.Object{{Name: "type", Value: "function"}}}}, Extra: dataset.Object{{Name: "parallel_tool_calls", Value: false}}}},
		{"a class label is no preference", `{"text":"q","label":"law"}`, nil, Example{Format: LanguageModelling, Text: text("q"), Extra: dataset.Object{{Name: "label", Value: "law"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := must.Get(read(must.File(t, "a.jsonl", tt.row), tt.accept...))(t)
			tt.want.Line = 1
			expect.Equal(t, []Example{tt.want}, got, cmpopts.IgnoreFields(Example{}, "File"))
		})
	}
}

func TestImplicitText(t *testing.T) {
	tests := []struct{ chosen, rejected, prompt string }{
		{"The sky is blue.", "The sky is green.", "The sky is"},
		{"The sun is in the sky.", "The sun is in the sea.", "The sun is in the s"},
		{"é ab", "é ac", "é a"},
		{"éa", "èa", ""}, // their first bytes are equal
		{" a", " b", ""},
		{"ab", "ab", "a"},
		{"ab", "abcd", "a"},
		{"a", "ab", ""},
		{"x", "y", ""},
	}
	for _, tt := range tests {
		row := must.Get(json.Marshal(map[string]string{"chosen": tt.chosen, "rejected": tt.rejected}))(t)
		got, err := read(must.File(t, "a.jsonl", string(row)))
		if err != nil {
			t.Errorf("%v: %v", tt, err)
			continue
		}
		expect.Equal(t, []string{tt.prompt, tt.chosen[len(tt.prompt):], tt.rejected[len(tt.prompt):]}, []string{got[0].Prompt.Text, got[0].Chosen.Text, got[0].Rejected.Text}, tt)
	}
}

func TestExamplesErrors(t *testing.T) {
	user := `{"role":"user","content":"q"}`
	tests := []struct {
		name, rows string
		accept     []Format
		want       string
	}{
		{"unknown columns", `{"question":"q","answer":"a"}`, []Format{PromptOnly}, `:1: not a data set with prompt only: columns are "question", "answer"; want prompt, or messages, or instruction`},
		{"wrong kind", `{"text":"q"}`, []Format{Preference}, `:1: not a data set with preference: columns are "text"; want input + preferred_output + non_preferred_output, or conversations + chosen + rejected, or messages + chosen + rejected, or instruction + chosen + rejected, or prompt + chosen + rejected, or chosen + rejected, or prompt + chosen + completion, or messages + chosen + completion`},
		{"no columns", `{}`, []Format{PromptOnly}, `:1: not a data set with prompt only: no columns … want prompt, or messages, or instruction`},
		{"other columns later", `{"text":"q"}` + "\n" + `{"prompt":"q"}`, nil, `:2: column "text" is missing … columns are "prompt"`},
		{"null", `{"text":null}`, nil, `:1: column "text": null instead`},
		{"label of another kind", `{"prompt":"q","completion":"a","label":3}`, []Format{Unpaired, Preference}, `:1: column "label": … number "3" … true or false`},
		{"number", `{"prompt":1,"completion":"a"}`, nil, `:1: column "prompt": … number "1"`},
		{"empty prompt", `{"prompt":"","completion":"a"}`, nil, `:1: column "prompt" is empty`},
		{"nul", `{"text":"a\u0000"}`, nil, `:1: column "text": NUL … byte 2`},
		{"text beside a conversation", `{"prompt":[` + user + `],"completion":"a"}`, nil, `:1: column "prompt" is a conversation … column "completion" is plain text`},
		{"texts, then conversations", `{"prompt":"q"}` + "\n" + `{"prompt":[` + user + `]}`, nil, `:2: … a conversation … plain text`},
		{"no messages", `{"messages":[]}`, nil, `:1: column "messages": … no messages`},
		{"null message", `{"messages":[` + user + `,null]}`, nil, `:1: column "messages": message 2: … null … role and content`},
		{"no role", `{"messages":[{"content":"q","rôle":"user"}]}`, nil, `:1: column "messages": message 1: role: … null … fields are "content", "rôle"`},
		{"nothing said", `{"messages":[{"role":"user"}]}`, nil, `:1: column "messages": message 1: content and tool_calls`},
		{"content of another type", `{"messages":[{"role":"user","content":{"a":1}}]}`, nil, `:1: column "messages": message 1: content: … an object`},
		{"image", `{"messages":[{"role":"user","content":[{"type":"image"}]}]}`, nil, `:1: column "messages": message 1: content: part 1 … "image"`},
		{"nul in a call", `{"messages":[{"role":"assistant","tool_calls":[{"name":"f","arguments":"{\"\\u0000\":1}"}]}]}`, nil, `:1: column "messages": message 1: "tool_calls": "arguments": field … NUL … byte 1`},
		{"calls of another type", `{"messages":[{"role":"assistant","tool_calls":5}]}`, nil, `:1: column "messages": message 1: tool_calls: … number "5" … a list`},
		{"a call of another type", `{"messages":[{"role":"assistant","tool_calls":["f"]}]}`, nil, `:1: column "messages": message 1: tool_calls: call 1: … a string … an object`},
		{"a call without a name", `{"messages":[{"role":"assistant","tool_calls":[{"name":"f"},{"function":{"name":"","arguments":{}}}]}]}`, nil, `:1: column "messages": message 1: tool_calls: call 2: function: name: … fields are "name", "arguments"`},
		{"arguments of another type", `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[1]}}]}]}`, nil, `:1: column "messages": message 1: tool_calls: call 1: function: arguments: … an array … an object`},
		{"arguments that are no JSON", `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"x=1"}}]}]}`, nil, `:1: column "messages": message 1: tool_calls: call 1: function: arguments: invalid JSON`},
		{"unknown speaker", `{"conversations":[{"from":"narrator","value":"q"}]}`, nil, `:1: column "conversations": message 1: … "narrator"`},
		{"call that is no JSON", `{"conversations":[{"from":"function_call","value":"f("}]}`, nil, `:1: column "conversations": message 1: function_call: invalid JSON: invalid character '(' in literal false (expecting 'a')`},
		{"label without an answer", `{"messages":[` + user + `],"label":true}`, nil, `:1: column "messages": want a prompt`},
		{"label of another type", `{"prompt":"q","completion":"a","label":true}` + "\n" + `{"prompt":"q","completion":"a","label":1}`, nil, `:2: column "label": … number "1"`},
		{"no common prompt", `{"chosen":[` + user + `],"rejected":[` + user + `]}`, nil, `:1: columns "chosen" and "rejected" … column "prompt"`},
		{"history", `{"instruction":"i","output":"o","history":[["q"]]}`, nil, `:1: column "history": want a list of pairs`},
		{"tools", `{"text":"q","tools":"{}"}`, nil, `:1: column "tools": … an object`},
		{"template arguments", `{"text":"q","chat_template_kwargs":"x"}`, nil, `:1: column "chat_template_kwargs": … a string`},
		{"half an object", `{"text":"q"`, nil, `:1:11: invalid JSON: unexpected end of JSON input`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := must.File(t, "a.jsonl", tt.rows)
			examples, err := read(path, tt.accept...)
			expect.Require(t, err != nil, "no error: %v", examples)
			want := path + tt.want
			expect.True(t, expect.Names(err, want), "error %v, want %q", err, want)
		})
	}
}

// For any columns, examples satisfy their documentation.
func FuzzExamples(f *testing.F) {
	f.Add(`{"prompt":"q","completion":"a","label":true,"x":1}`)
	f.Add(`{"chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}],"prompt":"q"}`)
	f.Add(`{"conversations":[{"from":"human","value":"q"},{"from":"function_call","value":"[{\"name\":\"f\",\"arguments\":null}]"}],"tools":"[]","system":"s"}`)
	f.Add(`{"instruction":"i","input":"x","chosen":"a","rejected":"b","history":[["a","b"]]}`)
	f.Add(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"chat_template_kwargs":{"a":null}}`)
	f.Add(`{"messages":[{"role":"assistant","tool_calls":"[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}]"}]}`)
	f.Add(`{"chosen":"é ","rejected":"é b"}`)
	f.Fuzz(func(t *testing.T, row string) {
		value, err := dataset.Parse(row)
		fields, ok := value.(dataset.Object)
		if err != nil || !ok {
			return
		}
		r := dataset.Record{File: "f", Line: 1, Fields: fields}
		layout, err := Detect(r)
		if err == nil {
			var e Example
			if e, err = layout.Example(r); err == nil {
				checkExample(t, e, fields)
			}
		}
		expect.Require(t, err == nil || strings.HasPrefix(err.Error(), "f:1: ") && !strings.ContainsAny(err.Error(), "\n\x00"), "error %q", err)
	})
}

func checkExample(t *testing.T, e Example, fields dataset.Object) {
	t.Helper()
	for _, c := range []Content{e.Text, e.Prompt, e.Completion, e.Chosen, e.Rejected} {
		expect.Require(t, !strings.Contains(c.Text, "\x00") && (!c.Conversational() || c.Text == "" && len(c.Messages) != 0), "content %+v", c)
		for _, m := range c.Messages {
			expect.Require(t, m.Role() != "" && !strings.Contains(m.Text(), "\x00"), "message %v", m)
		}
	}
	for _, f := range e.Extra {
		value, ok := fields.Get(f.Name)
		expect.Require(t, ok && dataset.Equal(value, f.Value), "extra column %v", f)
	}
	if (e.Format == Preference && e.Chosen.Conversational() != e.Rejected.Conversational()) ||
		(e.Format == LanguageModelling && !e.Text.Conversational() && e.Text.Text == "") {
		t.Fatalf("example %+v", e)
	}
}

// A row with null text is reported and skipped; later rows follow.
func TestExamplesOfNullRows(t *testing.T) {
	path := must.File(t, "rows.jsonl", `{"text":null}
{"text":"a"}
{"text":null}
{"text":"b"}
`)
	var texts []string
	var null []int
	for e, err := range Examples(dataset.Records(path)) {
		switch {
		case errors.Is(err, ErrNull):
			null = append(null, e.Line)
			expect.True(t, strings.Contains(err.Error(), fmt.Sprintf(`rows.jsonl:%d: column "text": null instead of a text`, e.Line)), "%v", err)
		case err != nil:
			t.Fatal(err)
		default:
			texts = append(texts, e.Text.Text)
		}
	}
	diff := cmp.Diff([]string{"a", "b"}, texts) + cmp.Diff([]int{1, 3}, null)
	expect.True(t, diff == "", "%v", diff)
	for _, row := range []string{
		`{"prompt":"q","completion":null}`,
		`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null}]}`,
		`{"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":null}]}`,
		`{"prompt":[{"role":"user","content":"q"}],"chosen":[{"role":"assistant","content":"a"}],"rejected":[{"role":"assistant","content":null}]}`,
	} {
		_, err := read(must.File(t, "rows.jsonl", row))
		expect.True(t, errors.Is(err, ErrNull), "%s: %v", row, err)
	}
}

// The list of messages may be JSON text, as in CSV.
func TestMessagesInJSON(t *testing.T) {
	path := must.File(t, "rows.csv", "messages,id\n\"[{\"\"role\"\":\"\"user\"\",\"\"content\"\":\"\"q\"\"},{\"\"role\"\":\"\"assistant\"\",\"\"content\"\":\"\"a\"\"}]\",7\n")
	got, err := read(path)
	expect.Require(t, err == nil && len(got) == 1, "%v %v", got, err)
	expect.Equal(t, chat("user: q", "assistant: a"), got[0].Text)
	for _, bad := range []string{`"hello"`, `"{}"`, `"[1]"`, `"["`} {
		expect.Failure(read(must.File(t, "rows.jsonl", `{"messages":`+bad+`}`)))(t, `column "messages"`)
	}
}

// TestMixedRecords: further data sets may have other columns, have max_samples rows at most after their weight, and keep their own
// validation rows to themselves.
func TestMixedRecords(t *testing.T) {
	o := &texts{Dataset: must.File(t, "a.jsonl", `{"text":"a"}`), Rows: Rows{TrainSplit: "train", EvalSplit: "validation", MaxSamples: 3}}
	o.Mix = []string{must.File(t, "b.jsonl", `{"prompt":"b","completion":"c"}`) + "=9", must.File(t, "c.jsonl", "{\"text\":\"d\"}\n{\"text\":\"e\"}\n") + "=0.5"}
	records := must.Get(o.Records(t.Context(), envs.Setup{Find: func(_ context.Context, name, config string, _ ...string) ([]dataset.Part, error) {
		return dataset.Find(config, name)
	}}))(t)
	got := []string{}
	for _, set := range append([]iter.Seq2[dataset.Record, error]{records.Train}, records.Mixed...) {
		for e, err := range Examples(set) {
			must.Do(t, err)
			got = append(got, e.Text.Text+e.Prompt.Text+e.Completion.Text)
		}
	}
	expect.Equal(t, []string{"a", "bc", "bc", "bc", "e"}, got)
	o.Mix = []string{"b"}
	expect.Error(t, o.Check(), "dataset_mix")
}

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
