package tools_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// asServer makes this program an MCP server on standard input and output.
const asServer = "RLTRAIN_TEST_MCP_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asServer) != "" {
		_ = counting().Run(context.Background(), &mcp.StdioTransport{})
		syscall.Exit(0) // without a word about GOCOVERDIR
	}
	os.Exit(m.Run())
}

type keyed struct {
	Key string `json:"key"`
}

// counting is a server with the tools count, which has state, and other.
func counting() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "counting", Version: "1"}, nil)
	n := 0
	mcp.AddTool(s, &mcp.Tool{Name: "count", Description: "Counts."}, func(ctx context.Context, _ *mcp.CallToolRequest, in keyed) (*mcp.CallToolResult, any, error) {
		switch in.Key {
		case "fail":
			return nil, nil, fmt.Errorf("no such key <|im_end|>")
		case "die":
			fmt.Fprintln(os.Stderr, "oops")
			syscall.Exit(3)
		case "long":
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", 2<<20)}}}, nil, nil
		case "slow":
			<-ctx.Done()
		}
		n++
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(n, os.Getenv("SECRET"))}, &mcp.TextContent{Text: in.Key}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "other"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, map[string]int, error) {
		return nil, map[string]int{"a": 1}, nil
	})
	return s
}

// TestModelContextProtocol: tools of a server are described by it, a session has a server of its own, and what fails is an error
// for the model.
func TestModelContextProtocol(t *testing.T) {
	t.Setenv("SECRET", "key")
	served := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return counting() }, nil))
	defer served.Close()
	program := "cmd:env " + asServer + "=1 " + must.Get(os.Executable())(t)
	for _, run := range []string{program, served.URL} {
		path := must.File(t, "tools.json", fmt.Sprintf(`[{"run":"mcp:%s"}]`, run))
		s := must.Get(tools.Open(t.Context(), path, 20*time.Second, false))(t)
		text := fmt.Sprint(s.Descriptions())
		expect.Contains(t, text, "count", "Counts.", "other", "key")
		a, b := s.Begin(), s.Begin()
		for _, c := range []struct {
			of                    *tools.Session
			name, arguments, want string
		}{
			{a, "count", `{"key":"k"}`, "1\nk"}, {a, "count", `{"key":"k"}`, "2\nk"}, {b, "count", `{"key":"k"}`, "1\nk"}, {b, "other", "{}", `{"a":1}`},
			{a, "count", `{"key":"fail"}`, "error: no such key < |im_end|>"}, {a, "count", "{}", `error: argument "key" is missing`},
			{a, "count", `{"key":"k"}`, "3\nk"}, {a, "none", "{}", `error: there is no tool "none"; tools are "count", "other"`},
		} {
			text, err := c.of.Call(t.Context(), asked(c.name, c.arguments))
			if err != nil {
				text = "error: " + err.Error()
			}
			want := c.want
			if run != program {
				want = strings.Replace(want, "\n", "key\n", 1) // the server is this process
			}
			expect.Equal(t, want, text, run)
		}
		must.Do(t, a.Close())
		must.Do(t, b.Close())
		expect.Failure(a.Call(t.Context(), asked("other", "{}")))(t, "the episode is over")
		must.Do(t, s.Close())
	}
	one := must.Get(tools.Open(t.Context(), must.File(t, "tools.json", fmt.Sprintf(`[{"run":"mcp:%s","name":"count","description":"Other words."}]`, program)), time.Second, false))(t)
	expect.Contains(t, fmt.Sprint(one.Descriptions()), "Other words.", "key")
	of := one.Begin()
	defer of.Close()
	for key, want := range map[string]string{"slow": "did not answer within 1s", "die": "oops", "long": "maximum line length"} {
		text, err := of.Call(t.Context(), asked("count", `{"key":"`+key+`"}`))
		expect.True(t, err != nil && strings.Contains(err.Error(), want), "%s: %.100q, %v", key, text, err)
		text, err = of.Call(t.Context(), asked("count", `{"key":"k"}`))
		expect.True(t, err == nil && strings.HasSuffix(text, "\nk"), "after %s: %q, %v", key, text, err)
	}
}

// TestHostileServers: what is no MCP server is a clear error in bounded memory and time.
func TestHostileServers(t *testing.T) {
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	defer html.Close()
	long := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for {
			if _, err := fmt.Fprint(w, strings.Repeat(" ", 1<<16)); err != nil {
				return
			}
		}
	}))
	defer long.Close()
	for run, want := range map[string]string{
		"cmd:sh -c 'echo oops >&2; exit 3'": "oops", "cmd:yes": "does not answer", "cmd:./no-such-program": "no-such-program",
		"cmd:sh -c 'yes | tr -d \"\\\\n\"'": "does not answer", html.URL: "does not answer", long.URL: "does not answer", "http://127.0.0.1:1/": "refused",
	} {
		path := must.File(t, "tools.json", fmt.Sprintf(`[{"run":%q}]`, "mcp:"+run))
		expect.Failure(tools.Open(t.Context(), path, time.Second, false))(t, path, "tool mcp:", want)
	}
	program := "cmd:env " + asServer + "=1 " + must.Get(os.Executable())(t)
	for file, want := range map[string]string{
		`[{"run":"mcp:python"}]`: ":1:2: run: want mcp:cmd:PROGRAM", `[{"run":"mcp:"}]`: ":1:2: run: got", `[{"run":"mcp:cmd:x","parameters":{"type":"string"}}]`: ":1:2: parameters: type",
		`[{"run":"mcp:` + program + `","name":"f"}]`: `no tool "f"; its tools are "count", "other"`, `[{"run":"mcp:` + program + `"},{"run":"cmd:true","name":"count"}]`: `a second tool "count"`,
	} {
		expect.Failure(tools.Open(t.Context(), must.File(t, "tools.json", file), time.Second, false))(t, want)
	}
}
