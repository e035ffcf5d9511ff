package serve

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

const toolTemplate = `{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}` +
	`{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.x }}</tool_call>{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}`

// startTools serves a model whose chat template reads tools. Each of its characters is a token.
func startTools(t *testing.T) *running {
	dir := filepath.Join(t.TempDir(), "model")
	must.Do(t, policy.TinyChatModel(dir, 1, 32, 5))
	must.Do(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(toolTemplate), 0o600))
	return startModel(t, dir, Config{})
}

// ask is a request for a message after a user's text, in which more fields may follow.
const askTools = `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":4,"seed":3,"tools":[{"type":"function","function":{"name":"time"}},{"type":"function","function":{"name":"date"}}]%s}`

func TestToolsAreInThePrompt(t *testing.T) {
	s := startTools(t)
	const plain = "[user]hi[assistant]"
	for _, c := range []struct{ fields, prompt, forced string }{
		{"", "time;date;" + plain, ""},
		{`,"tool_choice":"auto"`, "time;date;" + plain, ""},
		{`,"tool_choice":null`, "time;date;" + plain, ""},
		{`,"tool_choice":"none"`, plain, ""},
		{`,"tool_choice":"required"`, "time;date;" + plain, "<tool_call>\n{\"name\": \""},
		{`,"tool_choice":{"type":"function","function":{"name":"date"}}`, "time;date;" + plain, "<tool_call>\n{\"name\": \"date\", \"arguments\": "},
	} {
		got := s.complete(t, "/v1/chat/completions", fmt.Sprintf(askTools, c.fields))
		// A forced call that the model does not finish is content.
		expect.True(t, got.Usage.Prompt == len(c.prompt+c.forced) && strings.HasPrefix(got.Choices[0].Message.Content, c.forced) && *got.Choices[0].Reason == "length",
			"%s: %d tokens, %+v, want %d and %q", c.fields, got.Usage.Prompt, got.Choices[0], len(c.prompt+c.forced), c.forced)
		text := must.Get(json.Marshal(c.prompt + c.forced))(t)
		same := s.complete(t, "/v1/completions", fmt.Sprintf(`{"model":"tiny","prompt":%s,"add_special_tokens":false,"max_tokens":4,"seed":3}`, text))
		expect.Same(t, c.forced+same.Choices[0].Text, got.Choices[0].Message.Content,
			"%s: %q, the model continues %q by %q", c.fields, got.Choices[0].Message.Content, c.prompt+c.forced, same.Choices[0].Text)
	}
	for value, want := range map[string]bool{"null": false, "true": false, "false": true} {
		var q chatBody
		must.Do(t, decode([]byte(fmt.Sprintf(askTools, `,"parallel_tool_calls":`+value)), &q, chatNeutral))
		use, err := q.toolUse(s.base, &chat.Example{})
		expect.True(t, err == nil && use.single == want, "parallel_tool_calls %s: %+v, %v", value, use, err)
	}
	for _, arguments := range []string{`"{\"x\": 12345}"`, `{"x": 12345}`} {
		body := fmt.Sprintf(`{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"time","arguments":%s}}]},{"role":"tool","tool_call_id":"a","content":"noon"}]}`, arguments)
		got, want := s.complete(t, "/v1/chat/completions", body).Usage.Prompt, len("[user]hi[assistant]<tool_call>12345</tool_call>[tool]noon[assistant]")
		expect.True(t, got == want, "arguments %s: %d tokens, want %d", arguments, got, want)
	}
}

func TestToolRefusals(t *testing.T) {
	s := startTools(t)
	for _, c := range []struct{ fields, param, want string }{
		{`,"tool_choice":"sometimes"`, "tool_choice", "want auto, none, required"},
		{`,"tool_choice":{"type":"function"}`, "tool_choice", "want auto, none, required"},
		{`,"tool_choice":{"type":"function","function":{"name":"weather"}}`, "tool_choice", `no tool "weather"`},
		{`,"tools":[]`, "tool_choice", "needs tools"},
		{`,"tools":{}`, "tools", "want a list"},
		{`,"tools":[{"type":"function","function":{"name":"a","strict":true}}]`, "tools", "tool 1: function.strict"},
		{`,"parallel_tool_calls":1`, "parallel_tool_calls", "true or false"},
	} {
		body := strings.Replace(fmt.Sprintf(askTools, c.fields), `,"tools":[{"type":"function","function":{"name":"time"}},{"type":"function","function":{"name":"date"}}]`, "", strings.Count(c.fields, "tools\":["))
		if c.param == "tool_choice" && strings.Contains(c.fields, `"tools":[]`) {
			body = strings.TrimSuffix(body, "}") + `,"tool_choice":"required"}`
		}
		status, text := s.ask(t, "/v1/chat/completions", body)
		got := must.Into[said](t, json.Unmarshal, []byte(text))
		expect.True(t, status == 400 && got.Error != nil && got.Error.Param != nil && *got.Error.Param == c.param && strings.Contains(got.Error.Message, c.want),
			"%s: status %d, %s, want %s: %s", c.fields, status, text, c.param, c.want)
	}
	for _, c := range []struct{ call, want string }{
		{`5`, "message 1: tool_calls: got"},
		{`[{"id":"a"}]`, "message 1: tool_calls: call 1: name: got null"},
		{`[{"function":{"name":"f","arguments":"{}"}},{"function":{"name":"f","arguments":"x"}}]`, "message 1: tool_calls: call 2: function: arguments: "},
		{`[{"function":{"name":"f","arguments":"[1]"}}]`, "message 1: tool_calls: call 1: function: arguments: got an array, want an object"},
	} {
		status, text := s.ask(t, "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"assistant","tool_calls":`+c.call+`}]}`)
		expect.True(t, status == 400 && strings.Contains(text, c.want), "%s: status %d, %s, want %s", c.call, status, text, c.want)
	}
	other := start(t, Config{})
	if status, text := other.ask(t, "/v1/chat/completions", fmt.Sprintf(askTools, "")); status != 400 || !strings.Contains(text, "does not read tools") {
		t.Errorf("a template without tools: status %d, %s", status, text)
	}
}

// toolChoices are the choices of a response whose text comes in pieces, as JSON with a fixed id.
func toolChoices(t *testing.T, q chatBody, use *toolUse, reason torch.Reason, pieces ...string) (all []string) {
	choice := q.choice(nil, use, nil)
	for i, text := range pieces {
		p := &part{text: text, first: i == 0}
		if i == len(pieces)-1 {
			p.done = &policy.Completion{Reason: reason}
		}
		data := must.Get(json.Marshal(choice(p)))(t)
		all = append(all, regexp.MustCompile(`"call_[0-9a-f]{24}"`).ReplaceAllString(string(data), `"ID"`))
	}
	return all
}

func TestToolCallsInResponses(t *testing.T) {
	use := func(force string, single bool) *toolUse {
		return &toolUse{format: tools.Hermes, force: force, single: single, readers: map[int]*tools.Reader{}}
	}
	const two = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>\n<tool_call>{\"name\": \"g\"}</tool_call>"
	const f, g = `{"id":"ID","type":"function","function":{"name":"f","arguments":"{\"x\": 1}"}}`, `{"id":"ID","type":"function","function":{"name":"g","arguments":"{}"}}`
	for _, c := range []struct {
		name   string
		stream bool
		use    *toolUse
		pieces []string
		want   []string
	}{
		{"calls", false, use("", false), []string{two}, []string{
			`{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[` + f + "," + g + `]},"logprobs":null,"finish_reason":"tool_calls"}`}},
		{"content and one call", false, use("", true), []string{"So.\n" + two}, []string{
			`{"index":0,"message":{"role":"assistant","content":"So.","tool_calls":[` + f + `]},"logprobs":null,"finish_reason":"tool_calls"}`}},
		{"a forced call", false, use(tools.Hermes.Force("f"), false), []string{"{\"x\": 1}}"}, []string{
			`{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[` + f + `]},"logprobs":null,"finish_reason":"tool_calls"}`}},
		{"no call", false, use("", false), []string{"So <tool_call>."}, []string{
			`{"index":0,"message":{"role":"assistant","content":"So \u003ctool_call\u003e."},"logprobs":null,"finish_reason":"stop"}`}},
		{"an empty answer", false, use("", false), []string{""}, []string{
			`{"index":0,"message":{"role":"assistant","content":""},"logprobs":null,"finish_reason":"stop"}`}},
		{"a stream", true, use("", false), []string{"So", ". ", two[:12], two[12:]}, []string{
			`{"index":0,"delta":{"role":"assistant","content":"So"},"logprobs":null,"finish_reason":null}`,
			`{"index":0,"delta":{"content":"."},"logprobs":null,"finish_reason":null}`,
			`{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":null}`,
			`{"index":0,"delta":{"content":null,"tool_calls":[{"index":0,` + f[1:] + `,{"index":1,` + g[1:] + `]},"logprobs":null,"finish_reason":"tool_calls"}`}},
		{"a stream without a call", true, use("", false), []string{"a <tool", " b"}, []string{
			`{"index":0,"delta":{"role":"assistant","content":"a"},"logprobs":null,"finish_reason":null}`,
			`{"index":0,"delta":{"content":" \u003ctool b"},"logprobs":null,"finish_reason":"stop"}`}},
		{"Gemma's call", true, &toolUse{format: tools.Gemma, readers: map[int]*tools.Reader{}}, []string{"So <|tool", `_call>call:f{x:<|"`, `|>}<|"|>}<tool_call|>`}, []string{
			`{"index":0,"delta":{"role":"assistant","content":"So"},"logprobs":null,"finish_reason":null}`,
			`{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":null}`,
			`{"index":0,"delta":{"content":null,"tool_calls":[{"index":0,"id":"ID","type":"function","function":{"name":"f","arguments":"{\"x\":\"}\"}"}}]},"logprobs":null,"finish_reason":"tool_calls"}`}},
	} {
		expect.Equal(t, c.want, toolChoices(t, chatBody{sampling: sampling{Stream: c.stream}}, c.use, torch.ReasonStop, c.pieces...), c.name)
	}
}

// TestReasoning: a model's thought is reasoning_content, streamed or not, and no tool call is read from it.
func TestReasoning(t *testing.T) {
	const call = `<tool_call>{"name": "time", "arguments": {}}</tool_call>`
	for _, c := range []struct {
		pieces             []string
		opened             bool
		reasoning, content string
		calls              int
	}{
		{[]string{"<thi", "nk>\nWhy ", call, "? </th", "ink>\n\nYes", "."}, false, "Why " + call + "?", "Yes.", 0},
		{[]string{"Why?\n</think>\n", "\n" + call}, true, "Why?", "", 1},
		{[]string{"no", " end <"}, true, "no end <", "", 0},
		{[]string{"Yes", ", 1 < 2."}, false, "", "Yes, 1 < 2.", 0},
		{[]string{"<|chan", "nel>thought\nWhy?\n<chan", "nel|>", call}, false, "Why?", "", 1},
		{[]string{"<|channel>thought\n<channel|>", "Yes."}, false, "", "Yes.", 0},
	} {
		for _, stream := range []bool{false, true} {
			pieces := c.pieces
			if !stream {
				whole := ""
				for _, piece := range pieces {
					whole += piece
				}
				pieces = []string{whole}
			}
			q := &chatBody{sampling: sampling{Stream: stream}}
			choice := q.choice(nil, &toolUse{format: tools.Hermes, readers: map[int]*tools.Reader{}}, &thinking{opened: c.opened, readers: map[int]*envs.ThoughtReader{}})
			reasoning, content, calls := "", "", 0
			for i, piece := range pieces {
				p := &part{text: piece}
				if i == len(pieces)-1 {
					p.done = &policy.Completion{}
				}
				one := choice(p).(chatChoice)
				said := one.Message
				if stream {
					said = one.Delta
				}
				reasoning += said.Reasoning
				if said.Content != nil {
					content += *said.Content
				}
				calls += len(said.Calls)
			}
			expect.True(t, reasoning == c.reasoning && content == c.content && calls == c.calls, "%q, streamed: %t: thought %q, content %q, %d calls", c.pieces, stream, reasoning, content, calls)
		}
	}
}
