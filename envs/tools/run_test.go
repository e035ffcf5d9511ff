package tools_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// opened are the tools of a file with one tool.
func opened(t testing.TB, timeout time.Duration, run, more string) *tools.Set {
	t.Helper()
	path := must.File(t, "tools.json", fmt.Sprintf(`[{"name":"f","run":%q%s}]`, run, more))
	s := must.Get(tools.Open(t.Context(), path, timeout, false))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func asked(name, arguments string) tools.Call {
	return tools.Call{Name: name, Arguments: []byte(arguments)}
}

func TestRead(t *testing.T) {
	path := must.File(t, "tools.json", `[
 {"name": "add", "description": "Adds.", "run": "cmd:python3 add.py", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}},
 {"name": "look-up", "run": "http://127.0.0.1:80/x", "parameters": null},
 {"name": "py", "run": "python"}]`)
	all := must.Get(tools.Read(path))(t)
	var lines []string
	for _, tool := range all {
		lines = append(lines, string(must.Get(tool.Described().MarshalJSON())(t)))
	}
	expect.Equal(t, []string{
		`{"type":"function","function":{"name":"add","description":"Adds.","parameters":{"type":"object","properties":{"a":{"type":"number"}},"required":["a"]}}}`,
		`{"type":"function","function":{"name":"look-up","description":"","parameters":{"type":"object","properties":{}}}}`,
		`{"type":"function","function":{"name":"py","description":"Runs a Python program and returns what it prints.","parameters":{"type":"object","properties":{"code":{"type":"string","description":"the program"}},"required":["code"]}}}`,
	}, lines)
}

func TestReadErrors(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:                                            "no tools",
		`[{"name":"f"}]`:                                ":1:2: run: … cmd:PROGRAM",
		`[{"run":"python"}]`:                            ":1:2: name:",
		`[{"name":"a b","run":"cmd:x"}]`:                `:1:2: name: got "a b"`,
		`[{"name":"f","run":"ftp://x"}]`:                `:1:2: run: got "ftp://x"`,
		`[{"name":"f","run":"cmd: "}]`:                  `:1:2: run: cmd:`,
		`[{"name":"f","run":5}]`:                        `:1:2: run: got the number "5"`,
		`[{"name":"f","run":"cmd:x","parameters":"x"}]`: ":1:2: parameters: got a string",
		`[{"name":"f","run":"cmd:x","parameters":{"type":"string"}}]`:                   ":1:2: parameters: type",
		`[{"name":"f","run":"cmd:x","parameters":{"properties":[]}}]`:                   ":1:2: parameters: properties: got an array",
		`[{"name":"f","run":"cmd:x","parameters":{"properties":{"a":5}}}]`:              `:1:2: parameters: properties: "a": got the number`,
		`[{"name":"f","run":"cmd:x","parameters":{"properties":{"a":{"type":"int"}}}}]`: `:1:2: parameters: properties: "a": type: unknown type "int"`,
		`[{"name":"f","run":"cmd:x","parameters":{"required":["a"]}}]`:                  `:1:2: parameters: required: … "a"`,
		`[{"name":"f","run":"python","parameters":{"properties":{}}}]`:                  ":1:2: parameters: … code",
		`[{"name":"f","run":"cmd:x","url":"y"}]`:                                        `:1:2: unknown field "url"`,
		"[{\"name\":\"f\",\"run\":\"cmd:x\"},\n{\"name\":\"f\",\"run\":\"cmd:y\"}]":     `:2:1: name: a second tool "f"`,
		`{"name":`: "invalid JSON",
	} {
		path := must.File(t, "tools.json", text)
		_, err := tools.Read(path)
		expect.True(t, err != nil && strings.HasPrefix(err.Error(), path+":") && expect.Names(err, want), "%s: %v, want %s", text, err, want)
	}
	_, err := tools.Open(t.Context(), must.File(t, "tools.json", `[{"name":"f","run":"cmd:./no-such-program"}]`), time.Second, false)
	expect.Error(t, err, "tools.json", "tool f", "no-such-program")
}

// counter answers with how often it was asked, and a secret of its environment.
const counter = `n=0
while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; n=$((n+1)); echo "{\"id\":$id,\"result\":\"$n $SECRET\"}"; done
`

// TestSessions: a program runs once in a session, and does not see the environment variables.
func TestSessions(t *testing.T) {
	t.Setenv("SECRET", "key")
	s := opened(t, 20*time.Second, "cmd:sh "+must.File(t, "counter.sh", counter), "")
	a, b := s.Begin(), s.Begin()
	for i, of := range []*tools.Session{a, a, b, a} {
		text, err := of.Call(t.Context(), asked("f", "{}"))
		want := []string{"1", "2", "1", "3"}[i]
		expect.True(t, err == nil && text == want, "call %d: %q, %v; want %s", i+1, text, err, want)
	}
	must.Do(t, a.Close())
	must.Do(t, b.Close())
	expect.Failure(a.Call(t.Context(), asked("f", "{}")))(t, "the episode is over")
}

// TestProgramThatForgets: a program that dies after an answer fails the next call, which no other process answers in its place.
func TestProgramThatForgets(t *testing.T) {
	s := opened(t, 20*time.Second, "cmd:sh "+must.File(t, "once.sh", `IFS= read -r line; id=${line#*:}; echo "{\"id\":${id%%,*},\"result\":\"first\"}"; IFS= read -r line`), "")
	of := s.Begin()
	defer of.Close()
	for i, want := range []string{"", "exited without an answer", ""} {
		text, err := of.Call(t.Context(), asked("f", "{}"))
		expect.True(t, want == "" && err == nil && text == "first" || want != "" && err != nil && strings.Contains(err.Error(), want), "call %d: %q, %v", i+1, text, err)
	}
}

func TestArguments(t *testing.T) {
	s := opened(t, 20*time.Second, "cmd:sh "+must.File(t, "counter.sh", counter), `,"parameters":{"type":"object","properties":{
		"a":{"type":"integer"},"b":{"type":["string","null"],"enum":["x",null]},"c":{"type":"array"}},"required":["a"]}`)
	of := s.Begin()
	defer of.Close()
	for arguments, want := range map[string]string{
		`{"a":1}`: "", `{"a":2.0,"b":"x"}`: "", `{"a":1,"b":null,"c":[1]}`: "",
		`{}`: `argument "a" is missing`, `{"a":"1"}`: `argument "a" is a string, want integer`, `{"a":1.5}`: `argument "a" is the number "1.5", want integer`,
		`{"a":1,"b":"y"}`: `argument "b" is not one of`, `{"a":1,"d":1}`: `unknown argument "d"; arguments are "a", "b", "c"`,
		`[]`: "arguments: got an array", `{`: "arguments: invalid JSON",
	} {
		_, err := of.Call(t.Context(), asked("f", arguments))
		expect.True(t, want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), want), "%s: %v, want %q", arguments, err, want)
	}
	expect.Failure(of.Call(t.Context(), asked("g", "{}")))(t, `there is no tool "g"; tools are "f"`)
}

// TestHostilePrograms: whatever a program does is an error of its call or a text that a model can be shown, in bounded memory and
// time, and nothing of it stays.
func TestHostilePrograms(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "child")
	reply := func(result string) string {
		return `while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; printf '{"id":%s,"result":"` + result + `"}\n' "$id"; done`
	}
	for name, c := range map[string]struct{ script, want, fails string }{
		"endless lines":       {"yes", "", "the tool wrote"},
		"endless, no newline": {"yes | tr -d '\\n'", "", "longer than"},
		"100 MB":              {"head -c 100000000 /dev/zero | tr '\\0' x; echo", "", "longer than"},
		"NUL":                 {reply(`a\\u0000b`), "a\uFFFDb", ""},
		"NUL bytes":           {"head -c 100 /dev/zero; echo", "", "the tool wrote"},
		"invalid UTF-8":       {reply(`a\377b`), "a\uFFFDb", ""},
		"special tokens":      {reply(`<|im_end|> done`), "< |im_end|> done", ""},
		"dies":                {"exit 3", "", "exit status 3"},
		"dies after talking":  {"echo oops >&2; exit 1", "", "oops"},
		"slow":                {"sleep 1000", "", "timeout"},
		"forks":               {"setsid sh -c 'echo $$ > " + mark + "; exec sleep 1000' & while [ ! -s " + mark + " ]; do sleep .01; done; " + reply("up"), "up", ""},
		"wrong id":            {`while IFS= read -r line; do echo '{"id":99,"result":"x"}'; done`, "", "99"},
		"no result":           {`while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; echo "{\"id\":$id}"; done`, "", "no result"},
		"its own error":       {`while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; echo "{\"id\":$id,\"error\":\"no such city\"}"; done`, "", "no such city"},
		"an object":           {`while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; echo "{\"id\":$id,\"result\":{\"t\": [1, null]}}"; done`, `{"t": [1, null]}`, ""},
		"a long result":       {`while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; printf '{"id":%s,"result":"' $id; head -c 100000 /dev/zero | tr '\0' x; echo '"}'; done`, strings.Repeat("x", 8192) + "\n[cut after 8192 of 100000 bytes]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := opened(t, time.Second, "cmd:sh "+must.File(t, "tool.sh", c.script), "")
			of := s.Begin()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			text, err := of.Call(t.Context(), asked("f", "{}"))
			runtime.ReadMemStats(&after)
			expect.True(t, after.TotalAlloc-before.TotalAlloc < 16<<20, "%d bytes allocated", after.TotalAlloc-before.TotalAlloc)
			if c.fails == "" {
				expect.True(t, err == nil && text == c.want, "%.200q, %v; want %.200q", text, err, c.want)
			} else {
				expect.Error(t, err, c.fails)
			}
			must.Do(t, of.Close())
		})
	}
	pid := strings.TrimSpace(string(must.Get(os.ReadFile(mark))(t)))
	status, err := os.ReadFile("/proc/" + pid + "/status")
	expect.True(t, err != nil || strings.Contains(string(status), "State:\tZ"), "a child of a closed session lives on")
}

func TestHTTP(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			var b [100]byte
			n, _ := r.Body.Read(b[:])
			fmt.Fprintf(w, "%s %s %s", r.Method, r.Header.Get("Content-Type"), b[:n])
		case "/text":
			fmt.Fprint(w, `"a\nb"`)
		case "/away":
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusTemporaryRedirect)
		case "/long":
			for range 2000 {
				fmt.Fprint(w, strings.Repeat("x", 1000))
			}
		case "/slow":
			_, _ = io.Copy(io.Discard, r.Body) // else the end of the request is not noticed
			<-r.Context().Done()
		default:
			http.Error(w, "broken", http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	for path, c := range map[string]struct{ want, fails string }{
		"/echo": {want: `POST application/json {"a":1}`}, "/text": {want: "a\nb"}, "/away": {fails: "status 307"}, "/long": {fails: "longer than"},
		"/slow": {fails: "did not answer"}, "/other": {fails: `status 500: "broken`},
	} {
		of := opened(t, time.Second, server.URL+path, `,"parameters":{"properties":{"a":{}}}`).Begin()
		text, err := of.Call(t.Context(), asked("f", `{"a":1}`))
		if c.fails == "" {
			expect.True(t, err == nil && text == c.want, "%s: %q, %v", path, text, err)
		} else {
			expect.Error(t, err, c.fails)
		}
	}
	of := opened(t, time.Minute, server.URL+"/slow", "").Begin()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := of.Call(ctx, asked("f", "{}"))
	expect.True(t, errors.Is(err, context.Canceled), "%v", err)
}

func TestPython(t *testing.T) {
	path := must.File(t, "tools.json", `[{"name":"py","run":"python"}]`)
	s, err := tools.Open(t.Context(), path, 10*time.Second, false)
	if err != nil {
		t.Skip(err)
	}
	defer s.Close()
	of := s.Begin()
	text, err := of.Call(t.Context(), asked("py", `{"code":"print(6*7)"}`))
	expect.True(t, err == nil && text == "42", "%q, %v", text, err)
	expect.Failure(of.Call(t.Context(), asked("py", `{"code":"print(1)\n1/0"}`)))(t, "ZeroDivisionError")
	expect.Failure(of.Call(t.Context(), asked("py", `{}`)))(t, `argument "code" is missing`)
}

func act(text string) envs.Action {
	a, _, _ := envs.NewAction(text, envs.StopEnd, false)
	return a
}

// TestTurns: calls become a message and results with the same ids, what cannot be read is answered, and both are counted.
func TestTurns(t *testing.T) {
	s := opened(t, 20*time.Second, "cmd:sh "+must.File(t, "counter.sh", counter), "")
	turns := tools.NewTurns(s.Begin(), tools.Hermes, 3, false)
	defer turns.Close()
	for _, c := range []struct{ text, said, results string }{
		{"Just text with { in it.", `{"role":"assistant","content":"Just text with { in it."}`, ""},
		{"Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>",
			`{"role":"assistant","content":"Let me see.","tool_calls":[{"id":"call00000","type":"function","function":{"name":"f","arguments":{}}},{"id":"call00001","type":"function","function":{"name":"g","arguments":{}}}]}`,
			`{"role":"tool","tool_call_id":"call00000","name":"f","content":"1"}{"role":"tool","tool_call_id":"call00001","name":"g","content":"error: there is no tool \"g\"; tools are \"f\""}`},
		{"<tool_call>{\"name\": \"f\", </tool_call>", `{"role":"assistant","content":"\u003ctool_call\u003e{\"name\": \"f\", \u003c/tool_call\u003e"}`,
			`{"role":"tool","tool_call_id":"call00002","name":"unknown","content":"error: the tool call cannot be read; write <tool_call>\n{\"name\": \"NAME\", \"arguments\": {…}}\n</tool_call>"}`},
		{"<think>\n<tool_call>{\"name\":\"f\"}</tool_call>?\n</think>\n\nNo.", `{"role":"assistant","content":"No.","reasoning_content":"<tool_call>{\"name\":\"f\"}</tool_call>?"}`, ""},
		{"<think>?</think><tool_call>{\"name\":\"f\"}</tool_call><tool_call>{\"name\":\"f\"}</tool_call>", `{"role":"assistant","content":"","reasoning_content":"?","tool_calls":[{"id":"call00003","type":"function","function":{"name":"f","arguments":{}}},{"id":"call00004","type":"function","function":{"name":"f","arguments":{}}}]}`,
			`{"role":"tool","tool_call_id":"call00003","name":"f","content":"2"}{"role":"tool","tool_call_id":"call00004","name":"f","content":"error: no more than 3 tool calls are allowed; answer without tools"}`},
	} {
		said, results, err := turns.Answer(t.Context(), act(c.text))
		must.Do(t, err)
		got := ""
		for _, m := range results {
			got += string(must.Get(m.MarshalJSON())(t))
		}
		expect.Equal(t, c.said, string(must.Get(said.MarshalJSON())(t)))
		expect.Equal(t, c.results, got)
	}
	expect.Equal(t, envs.ToolUse{Offered: true, Calls: 4, Failed: 2, Malformed: 1}, turns.Used())
	strict := tools.NewTurns(s.Begin(), tools.Hermes, 3, true)
	defer strict.Close()
	for _, text := range []string{`<tool_call>{"name": "f", "arguments": {}}</tool_call>`, `<tool_call>{"name": "f", "arguments": {}}`, "No call."} {
		_, _, err := strict.Answer(t.Context(), act(text))
		must.Do(t, err)
	}
	expect.Equal(t, envs.ToolUse{Offered: true, Calls: 1, Malformed: 1}, strict.Used())
}

// TestBrokenCalls: in each format, a call that cannot be read is told from a text without one.
func TestBrokenCalls(t *testing.T) {
	s := opened(t, time.Second, "http://127.0.0.1:1/", "")
	for _, c := range []struct {
		format *tools.Format
		text   string
		broken bool
	}{
		{tools.Hermes, "<tool_call>{", true}, {tools.Hermes, `{"name":"f"}`, false},
		{tools.Mistral, "[TOOL_CALLS]f{", true}, {tools.Mistral, "[1]", false},
		{tools.Llama, "<|python_tag|>f(", true}, {tools.Llama, `{"name": "f", "parameters": {`, true}, {tools.Llama, "{1, 2} is a set", false},
		{tools.JSON, "```json\n{\"name\": \"f\",\n```", true}, {tools.JSON, "```python\nprint(1)\n```", false}, {tools.JSON, "Fine.", false},
	} {
		turns := tools.NewTurns(s.Begin(), c.format, 1, false)
		_, results, err := turns.Answer(t.Context(), act(c.text))
		expect.True(t, err == nil && (len(results) == 1) == c.broken && (turns.Used().Malformed == 1) == c.broken, "%s, %q: %v, %v", c.format.Name, c.text, results, err)
		content, calls := c.format.Parse(strings.ReplaceAll(c.format.Example(), "{…}", "{}"))
		expect.True(t, content == "" && len(calls) == 1 && calls[0].Name == "NAME", "the example of %s is no call: %q", c.format.Name, c.format.Example())
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`[{"name":"f","run":"python","parameters":{"type":"object","properties":{"code":{"type":["string"]}},"required":["code"]}}]`, `{"code":5}`)
	f.Add(`{"name":"f","run":"http://h/","parameters":{"properties":{"a":{"enum":[1,null]}},"additionalProperties":true}}`, `{"a":1,"b":2}`)
	f.Fuzz(func(t *testing.T, text, arguments string) {
		path := must.File(t, "tools.json", text)
		all, err := tools.Read(path)
		if err != nil {
			expect.Require(t, strings.HasPrefix(err.Error(), path) && !strings.ContainsAny(err.Error(), "\n\x00"), "error %q", err)
			return
		}
		for _, tool := range all {
			_ = tool.Accepts([]byte(arguments))
		}
	})
}
