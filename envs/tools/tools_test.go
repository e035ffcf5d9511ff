package tools_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

type message struct {
	Content string
	Calls   []tools.Call
}

func call(name, arguments string) tools.Call {
	return tools.Call{Name: name, Arguments: json.RawMessage(arguments)}
}

// messages are texts of models, and what a client sees of them.
var messages = []struct {
	name   string
	format *tools.Format
	text   string
	want   message
}{
	{"no call", tools.Hermes, "It is warm. \n", message{Content: "It is warm. \n"}},
	{"one call", tools.Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": [1, {\"y\": \"}\"}]}}\n</tool_call>", message{Calls: []tools.Call{call("f", `{"x": [1, {"y": "}"}]}`)}}},
	{"content and two calls", tools.Hermes, "I look.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>{\"arguments\": {\"a\": \"<tool_call>\"}, \"name\": \"g-2\"}</tool_call>",
		message{"I look.", []tools.Call{call("f", "{}"), call("g-2", `{"a": "<tool_call>"}`)}}},
	{"no end tag", tools.Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n", message{Calls: []tools.Call{call("f", "{}")}}},
	{"text after the calls", tools.Hermes, "a <tool_call>{\"name\": \"f\"}</tool_call> b", message{"a\nb", []tools.Call{call("f", "{}")}}},
	{"cut JSON", tools.Hermes, "a <tool_call>{\"name\": \"f\", \"argum", message{Content: "a <tool_call>{\"name\": \"f\", \"argum"}},
	{"arguments are no object", tools.Hermes, `<tool_call>{"name": "f", "arguments": [1]}</tool_call>`, message{Content: `<tool_call>{"name": "f", "arguments": [1]}</tool_call>`}},
	{"second call is wrong", tools.Hermes, `<tool_call>{"name": "f"}</tool_call><tool_call>{"name": 1}</tool_call>`, message{Content: `<tool_call>{"name": "f"}</tool_call><tool_call>{"name": 1}</tool_call>`}},
	{"a list in one tag", tools.Hermes, `<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>`, message{Content: `<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call>`}},
	{"text in the tag", tools.Hermes, `<tool_call>{"name": "f"} so</tool_call>`, message{Content: `<tool_call>{"name": "f"} so</tool_call>`}},
	{"arguments in a string", tools.Hermes, `<tool_call>{"name": "f", "arguments": "{\"x\": 1}"}</tool_call>`, message{Calls: []tools.Call{call("f", `{"x": 1}`)}}},
	{"both names of arguments", tools.Hermes, `<tool_call>{"name": "f", "arguments": {}, "parameters": {}}</tool_call>`, message{Content: `<tool_call>{"name": "f", "arguments": {}, "parameters": {}}</tool_call>`}},
	{"a name with a space", tools.Hermes, `<tool_call>{"name": "f g"}</tool_call>`, message{Content: `<tool_call>{"name": "f g"}</tool_call>`}},
	{"a tag that is text", tools.Hermes, "a < b <tool_calls>", message{Content: "a < b <tool_calls>"}},

	{"a list", tools.Mistral, `[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}]`, message{Calls: []tools.Call{call("f", `{"x": 1}`), call("g", "{}")}}},
	{"names before arguments", tools.Mistral, `So: [TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g{}`, message{"So:", []tools.Call{call("f", `{"x": 1}`), call("g", "{}")}}},
	{"white space", tools.Mistral, `[TOOL_CALLS] f [ARGS] {"x": 1}`, message{Calls: []tools.Call{call("f", `{"x": 1}`)}}},
	{"no name", tools.Mistral, `[TOOL_CALLS][ARGS]{"x": 1}`, message{Content: `[TOOL_CALLS][ARGS]{"x": 1}`}},
	{"no arguments", tools.Mistral, `[TOOL_CALLS]f`, message{Content: `[TOOL_CALLS]f`}},

	{"all kinds of values", tools.Gemma, "<|tool_call>call:f{a:<|\"|>x \"y\" <b>\n\\<|\"|>,b:[1,-2.5e3,[]],c:{d e:true,f:null},g:{}}<tool_call|>",
		message{Calls: []tools.Call{call("f", `{"a":"x \"y\" <b>\n\\","b":[1,-2.5e3,[]],"c":{"d e":true,"f":null},"g":{}}`)}}},
	{"content and two calls", tools.Gemma, "I look.\n<|tool_call>call:f{}<tool_call|><|tool_call>call:g-2{a:<|\"|><|tool_call><|\"|>}<tool_call|>",
		message{"I look.", []tools.Call{call("f", "{}"), call("g-2", `{"a":"<|tool_call>"}`)}}},
	{"no end tag", tools.Gemma, "<|tool_call>call:f{x:1}\n", message{Calls: []tools.Call{call("f", `{"x":1}`)}}},
	{"text after the calls", tools.Gemma, "a <|tool_call>call:f{}<tool_call|> b", message{"a\nb", []tools.Call{call("f", "{}")}}},
	{"JSON's strings and names", tools.Gemma, `<|tool_call> call: f {"x": "a\n", <|"|>y<|"|> : 1} <tool_call|>`, message{Calls: []tools.Call{call("f", `{"x":"a\n","y":1}`)}}},
	{"a cut string", tools.Gemma, `a <|tool_call>call:f{x:<|"|>y`, message{Content: `a <|tool_call>call:f{x:<|"|>y`}},
	{"a word as a value", tools.Gemma, `<|tool_call>call:f{x:y}<tool_call|>`, message{Content: `<|tool_call>call:f{x:y}<tool_call|>`}},
	{"a comma at the end", tools.Gemma, `<|tool_call>call:f{x:1,}<tool_call|>`, message{Content: `<|tool_call>call:f{x:1,}<tool_call|>`}},
	{"no name of a value", tools.Gemma, `<|tool_call>call:f{:1}<tool_call|>`, message{Content: `<|tool_call>call:f{:1}<tool_call|>`}},
	{"no arguments", tools.Gemma, `<|tool_call>call:f<tool_call|>`, message{Content: `<|tool_call>call:f<tool_call|>`}},
	{"no name", tools.Gemma, `<|tool_call>call:{}<tool_call|>`, message{Content: `<|tool_call>call:{}<tool_call|>`}},
	{"deep lists", tools.Gemma, `<|tool_call>call:f{x:` + strings.Repeat("[", 1<<9), message{Content: `<|tool_call>call:f{x:` + strings.Repeat("[", 1<<9)}},

	{"parameters", tools.Llama, "\n{\"name\": \"f\", \"parameters\": {\"x\": 1}}", message{Calls: []tools.Call{call("f", `{"x": 1}`)}}},
	{"python tag and two calls", tools.Llama, `<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g"}`, message{Calls: []tools.Call{call("f", "{}"), call("g", "{}")}}},
	{"JSON within a text", tools.Llama, `It is {"name": "f"}`, message{Content: `It is {"name": "f"}`}},
	{"other JSON", tools.Llama, `{"x": 1}`, message{Content: `{"x": 1}`}},
	{"python", tools.Llama, `<|python_tag|>print(1)`, message{Content: `<|python_tag|>print(1)`}},

	{"a block", tools.JSON, "Now:\n```json\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n```", message{"Now:", []tools.Call{call("f", `{"x": 1}`)}}},
	{"a list in a block", tools.JSON, "```\n[{\"name\": \"f\"}, {\"name\": \"g\"}]", message{Calls: []tools.Call{call("f", "{}"), call("g", "{}")}}},
	{"a block of code", tools.JSON, "```python\nprint(1)\n```", message{Content: "```python\nprint(1)\n```"}},
	{"the whole message", tools.JSON, `[{"name": "f"}]`, message{Calls: []tools.Call{call("f", "{}")}}},
	{"an empty list", tools.JSON, "[] is empty", message{Content: "[] is empty"}},
	{"text in a block", tools.JSON, "```json\n{\"name\": \"f\"}\nand more\n```", message{Content: "```json\n{\"name\": \"f\"}\nand more\n```"}},
}

func TestParse(t *testing.T) {
	for _, m := range messages {
		t.Run(m.format.Name+": "+m.name, func(t *testing.T) {
			content, calls := m.format.Parse(m.text)
			expect.Equal(t, m.want, message{content, calls})
		})
	}
}

// A reader returns what Parse returns, wherever the text is cut, and holds back no more than may belong to a call.
func TestReader(t *testing.T) {
	for _, m := range messages {
		for size := 1; size <= len(m.text); size++ {
			r := tools.NewReader(m.format)
			content := ""
			for rest := m.text; rest != ""; {
				n := min(size, len(rest))
				content += r.Add(rest[:n])
				rest = rest[n:]
			}
			before := content
			rest, calls := r.End()
			expect.Equal(t, m.want, message{content + rest, calls}, fmt.Sprintf("%s: %s, %d bytes at a time", m.format.Name, m.name, size))
			expect.True(t, (m.name != "a tag that is text" || before == "a < b <tool_calls>") && (m.name != "no call" || before == "It is warm."), "%s: certain so far: %q", m.name, before)
		}
	}
}

func TestForce(t *testing.T) {
	for _, f := range []*tools.Format{tools.Hermes, tools.Mistral, tools.Llama, tools.JSON, tools.Gemma} {
		closing := map[*tools.Format]string{tools.Hermes: "}\n</tool_call>", tools.Mistral: "}]", tools.Llama: "}", tools.JSON: "}\n```", tools.Gemma: "<tool_call|>"}[f]
		argument := "arguments"
		if f == tools.Llama {
			argument = "parameters"
		}
		named, arguments := f.Force("")+`get_time", "`+argument+`": {"zone": "UTC"}`+closing, `{"zone": "UTC"}`
		if f == tools.Gemma {
			named, arguments = f.Force("")+`get_time{zone:<|"|>UTC<|"|>}`+closing, `{"zone":"UTC"}`
		}
		for _, text := range []string{f.Force("get_time") + `{"zone": "UTC"}` + closing, named} {
			content, calls := f.Parse(text)
			expect.Equal(t, message{Calls: []tools.Call{call("get_time", arguments)}}, message{content, calls}, fmt.Sprintf("%s: %s", f.Name, text))
		}
		id := regexp.MustCompile(`^call_[0-9a-f]{24}$`)
		if f == tools.Mistral {
			id = regexp.MustCompile(`^[0-9a-f]{9}$`)
		}
		one := f.NewID()
		expect.True(t, id.MatchString(one) && one != f.NewID(), "%s: id %s", f.Name, one)
	}
}

func TestFormatOf(t *testing.T) {
	for template, want := range map[string]*tools.Format{
		`{{- '<tool_call>\n{"name": "' }}`:              tools.Hermes,
		`{{- "[TOOL_CALLS] [" }} <tool_call>`:           tools.Mistral,
		`{{- "<|python_tag|>" + tool_call.name }}`:      tools.Llama,
		`{{- '<|tool_call>call:' + function['name'] }}`: tools.Gemma,
		`{% if tools %}{{ tools | tojson }}{% endif %}`: tools.JSON,
	} {
		got := tools.FormatOf(template)
		expect.True(t, got == want, "%s: %s, want %s", template, got.Name, want.Name)
	}
}

func TestNames(t *testing.T) {
	function := func(fields string) string { return `{"type": "function", "function": {` + fields + `}}` }
	for _, c := range []struct{ list, want string }{
		{function(`"name": "get_time", "description": "d", "parameters": {"type": "object"}, "strict": false`) + "," + function(`"name": "b.c/d:e-1"`), "get_time b.c/d:e-1"},
		{`1`, "tool 1: got the number"},
		{function(`"name": "a"`) + `,{"type": "web_search"}`, `tool 2: type: want "function"`},
		{`{"type": "function"}`, "tool 1: function: got null, want an object"},
		{function(`"name": "a b"`), "tool 1: function.name"},
		{function(`"name": "` + strings.Repeat("a", 129) + `"`), "tool 1: function.name"},
		{function(`"name": "a", "description": 1`), "tool 1: function.description: want a string"},
		{function(`"name": "a", "parameters": []`), "tool 1: function.parameters: want a JSON schema"},
		{function(`"name": "a", "strict": true`), "tool 1: function.strict: want false"},
		{function(`"name": "a", "schema": {}`), `tool 1: function: "schema" is not supported`},
		{function(`"name": "a"`) + "," + function(`"name": "a"`), `tool 2: duplicate name "a"`},
	} {
		list := must.Get(dataset.Parse("[" + c.list + "]"))(t)
		names, err := tools.Names(list.([]any))
		got := strings.Join(names, " ")
		if err != nil {
			got = err.Error()
		}
		expect.True(t, got == c.want || err != nil && strings.HasPrefix(got, c.want), "%s: %s, want %s", c.list, got, c.want)
	}
}

func FuzzReader(f *testing.F) {
	for _, m := range messages {
		f.Add(m.text, 3)
	}
	f.Fuzz(func(t *testing.T, text string, size int) {
		for _, format := range []*tools.Format{tools.Hermes, tools.Mistral, tools.Llama, tools.JSON, tools.Gemma} {
			content, calls := format.Parse(text)
			expect.True(t, len(calls) != 0 || content == text, "%s: %q became %q without a call", format.Name, text, content)
			for _, c := range calls {
				var arguments map[string]any
				expect.True(t, c.Name != "" && json.Unmarshal(c.Arguments, &arguments) == nil, "%s: %q has the call %+v", format.Name, text, c)
			}
			r := tools.NewReader(format)
			streamed := ""
			for rest := text; rest != ""; {
				n := min(max(1, size), len(rest))
				streamed += r.Add(rest[:n])
				rest = rest[n:]
			}
			rest, again := r.End()
			expect.Equal(t, message{content, calls}, message{streamed + rest, again}, fmt.Sprintf("%s: %q", format.Name, text))
		}
	})
}

// TestExactly: what Force, the arguments and the end of the format make is exact, with other white space too; what is only readable is
// not.
func TestExactly(t *testing.T) {
	for _, f := range []*tools.Format{tools.Hermes, tools.Mistral, tools.Llama, tools.JSON, tools.Gemma} {
		arguments := `{"x": "a  b\" }"}`
		if f == tools.Gemma {
			arguments = `{x: <|"|>a  b" }<|"|>,y: [1.50, {z: null}]}`
		}
		written := strings.NewReplacer("NAME", "f", "{…}", arguments).Replace(f.Example())
		expect.True(t, f.Exactly(written) && f.Exactly("So: "+written) != (f == tools.Llama), "%s: %s", f.Name, written)
		expect.True(t, f.Exactly(strings.ReplaceAll(written, ": ", ":\n ")), "%s: other white space", f.Name)
		for what, text := range map[string]string{
			"text after it": written + " so", "no end": written[:len(written)-2], "no call": "So", "a member more": strings.Replace(written, `{"name"`, `{"n": 1, "name"`, 1),
			"other arguments": strings.NewReplacer("arguments", "parameters", "parameters", "arguments").Replace(written),
		} {
			expect.True(t, text == written || !f.Exactly(text), "%s: %s: %s", f.Name, what, text)
		}
	}
	for text, f := range map[string]*tools.Format{
		`<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g", "arguments": {}}</tool_call>`: tools.Hermes,
		`[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "abcdefghi"}, {"name": "g", "arguments": {}}]`:     tools.Mistral,
		`[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}`:                                                           tools.Mistral,
		`[TOOL_CALLS]f{"x": 1}`: tools.Mistral,
		`<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}`: tools.Llama,
		`<|tool_call>call:f{x:-1}<tool_call|><|tool_call>call:g{}<tool_call|>`:           tools.Gemma,
		"```json\n[{\"name\": \"f\", \"arguments\": {}}]\n```":                           tools.JSON,
	} {
		expect.True(t, f.Exactly(text), "%s", text)
	}
	expect.True(t, !tools.Gemma.Exactly(`<|tool_call>call:f{x:"y"}<tool_call|>`), "JSON's strings are not Gemma's")
}
