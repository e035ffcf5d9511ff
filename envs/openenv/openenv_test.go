package openenv_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/openenv"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/within"
)

// fake is a server that answers messages with what answer returns, "" for nothing.
type fake struct {
	action string // JSON schema
	answer func(kind string, data map[string]any) string
	paths  map[string]string // further answers of HTTP
	most   int               // sessions

	lock                 sync.Mutex
	open, ended, refused int
	handlers             sync.WaitGroup // of sessions
	full                 chan struct{}  // nil, or told of refusals
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if text, ok := f.paths[r.URL.Path]; ok {
		fmt.Fprint(w, text)
		return
	}
	switch r.URL.Path {
	case "/schema":
		fmt.Fprintf(w, `{"action":%s}`, f.action)
	case "/ws":
		f.session(w, r)
	default:
		http.Error(w, `{"detail":"Not Found"}`, http.StatusNotFound)
	}
}

func (f *fake) session(w http.ResponseWriter, r *http.Request) {
	f.handlers.Add(1)
	defer f.handlers.Done()
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	f.lock.Lock()
	full := f.most > 0 && f.open == f.most
	if full {
		f.refused++
	} else {
		f.open++
	}
	f.lock.Unlock()
	if full {
		_ = conn.Write(r.Context(), websocket.MessageText, fmt.Appendf(nil, `{"type":"error","data":{"code":"CAPACITY_REACHED","message":"full","max_sessions":%d}}`, f.most))
		_ = conn.Close(websocket.StatusNormalClosure, "")
		select {
		case f.full <- struct{}{}:
		default:
		}
		return
	}
	defer func() {
		f.lock.Lock()
		f.open--
		f.ended++
		f.lock.Unlock()
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}()
	for {
		_, text, err := conn.Read(r.Context())
		var q struct {
			Type string
			Data map[string]any
		}
		if err != nil || json.Unmarshal(text, &q) != nil || q.Type == "close" {
			return
		}
		reply := f.answer(q.Type, q.Data)
		if reply == "hang up" {
			return
		}
		if reply != "" {
			_ = conn.Write(r.Context(), websocket.MessageText, []byte(reply))
		}
	}
}

func (f *fake) sessions() (open, ended int) {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.open, f.ended
}

// opened opens a fake server.
func opened(t testing.TB, f *fake, timeout time.Duration) *openenv.Server {
	t.Helper()
	return must.Get(openenv.Open(t.Context(), served(t, f), timeout, 2))(t)
}

func served(t testing.TB, h http.Handler) string {
	server := httptest.NewServer(h)
	t.Cleanup(server.CloseClientConnections)
	return "ws" + strings.TrimPrefix(server.URL, "http")
}

const oneText = `{"properties":{"metadata":{},"message":{"type":"string"}},"required":["message"]}`

func seen(observation string, more string) string {
	return `{"type":"observation","data":{"observation":` + observation + more + `}}`
}

// TestActions: the schema says how a completion becomes an action.
func TestActions(t *testing.T) {
	for _, c := range []struct{ schema, completion, want string }{
		{oneText, " a\n{", `{"message":" a\n{"}`},
		{`{"properties":{"m":{"anyOf":[{"type":"null"},{"type":"string"}]}}}`, "a", `{"m":"a"}`},
		{`{"properties":{"m":{"$ref":"#/$defs/M"}},"$defs":{"M":{"enum":["a"],"type":"string"}}}`, "a", `{"m":"a"}`},
		{`{"properties":{"n":{"type":"integer"},"game":{"type":"string"}},"required":["n"]}`, " 5 ", `{"n":5}`},
		{`{"properties":{"n":{"type":"integer"},"game":{"type":"string"}},"required":["n"]}`, "five", "not a JSON value"},
		{`{"properties":{"x":{"type":"integer"},"y":{"type":"integer"}},"required":["x","y"]}`, "```json\n{\"y\": 1, \"x\": 2}\n```", `{"x":2,"y":1}`},
		{`{"properties":{"x":{},"y":{}}}`, "[1]", `not a JSON object with "x", "y"`},
		{`{"properties":{"m":{"$ref":"#/$defs/M"}},"$defs":{"M":{"$ref":"#/$defs/M"}}}`, "1", `{"m":1}`},
	} {
		var got string
		s := opened(t, &fake{action: c.schema, answer: func(kind string, data map[string]any) string {
			if kind == "step" {
				text, _ := json.Marshal(data)
				got = string(text)
			}
			return seen(`{"x":1}`, "")
		}}, time.Minute)
		e, _, err := s.Begin(t.Context(), nil)
		must.Do(t, err)
		if _, err := e.Step(t.Context(), c.completion); err != nil {
			got = err.Error()
			expect.True(t, errors.As(err, new(openenv.ActionError)), "%v", err)
		}
		expect.True(t, got == c.want || c.want[0] != '{' && strings.Contains(got, c.want), "%s, %q: %s, want %s", c.schema, c.completion, got, c.want)
		must.Do(t, e.Close())
	}
}

// TestSessions: places of the server are used, given back on every path, and no more are asked for once they are known.
func TestSessions(t *testing.T) {
	f := &fake{action: oneText, most: 2, answer: func(kind string, data map[string]any) string {
		switch {
		case kind == "reset":
			return seen(fmt.Sprintf(`{"text":"seed %v"}`, data["seed"]), "")
		case data["message"] == "end":
			return seen(`{"text":"over","metadata":{}}`, `,"reward":true,"done":true`)
		case data["message"] == "bad":
			return `{"type":"error","data":{"code":"VALIDATION_ERROR","message":"Invalid message"}}`
		case data["message"] == "hang up":
			return "hang up"
		case data["message"] == "break":
			return `{"type":"error","data":{"code":"EXECUTION_ERROR","message":"no board"}}`
		}
		return seen(`{"text":"","board":[1]}`, `,"reward":null`)
	}}
	s := opened(t, f, 20*time.Second)
	data := dataset.Object{{Name: "seed", Value: int64(7)}}
	a, first, err := s.Begin(t.Context(), data)
	must.Do(t, err)
	expect.Equal(t, "seed 7", must.Get(first.Text())(t))
	r := must.Get(a.Step(t.Context(), "x"))(t)
	expect.True(t, r.Reward == 0 && !r.Done && must.Get(r.Text())(t) == `{"board":[1]}`, "%+v", r)
	_, err = a.Step(t.Context(), "bad")
	expect.True(t, errors.As(err, new(openenv.ActionError)), "%v", err)
	expect.Failure(a.Step(t.Context(), "break"))(t, `EXECUTION_ERROR: "no board"`)
	b, _, err := s.Begin(t.Context(), data)
	must.Do(t, err)
	for range 3 {
		_, _, err = s.Begin(t.Context(), data)
		expect.True(t, errors.Is(err, envs.ErrFull), "%v", err)
	}
	expect.Same(t, 1, f.refused, "refusals")
	r = must.Get(a.Step(t.Context(), "end"))(t)
	expect.True(t, r.Done && r.Reward == 1, "%+v", r)
	must.Do(t, a.Close())
	must.Do(t, a.Close())
	open, _ := f.sessions()
	expect.Same(t, 1, open, "open sessions after Close")
	c, _, err := s.Begin(t.Context(), data)
	must.Do(t, err)
	expect.Failure(c.Step(t.Context(), "hang up"))(t, "the connection to the server ended")
	must.Do(t, c.Close())
	must.Do(t, b.Close())
	open, ended := f.sessions()
	expect.True(t, open == 0 && ended == 3, "%d open, %d ended", open, ended)
}

// TestPings: a session that waits for the policy answers the server's pings.
func TestPings(t *testing.T) {
	ponged := make(chan error, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("/schema", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"action":%s}`, oneText) })
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		_, _, _ = conn.Read(r.Context())
		_ = conn.Write(r.Context(), websocket.MessageText, []byte(seen(`{"a":"b"}`, "")))
		ctx := conn.CloseRead(r.Context())
		ponged <- conn.Ping(ctx)
		_ = conn.Close(websocket.StatusNormalClosure, "")
	})
	s := must.Get(openenv.Open(t.Context(), served(t, mux), 20*time.Second, 1))(t)
	e, _, err := s.Begin(t.Context(), nil)
	must.Do(t, err)
	expect.NoError(t, <-ponged, "ping")
	must.Do(t, e.Close())
}

// TestOthersHaveThePlaces: a session that others end is waited for.
func TestOthersHaveThePlaces(t *testing.T) {
	f := &fake{action: oneText, most: 1, full: make(chan struct{}, 1), answer: func(string, map[string]any) string { return seen(`{"a":"b"}`, "") }}
	address := served(t, f)
	one := must.Get(openenv.Open(t.Context(), address, 20*time.Second, 1))(t)
	two := must.Get(openenv.Open(t.Context(), address, 20*time.Second, 1))(t)
	e, _, err := one.Begin(t.Context(), nil)
	must.Do(t, err)
	begun := make(chan error)
	go func() {
		e, _, err := two.Begin(t.Context(), nil)
		if err == nil {
			err = e.Close()
		}
		begun <- err
	}()
	<-f.full
	must.Do(t, e.Close())
	expect.NoError(t, <-begun, "the other's session")
}

// TestTools: calls have results, errors for the model, rewards and an end.
func TestTools(t *testing.T) {
	f := &fake{action: `{"properties":{"type":{"const":"call_tool"},"tool_name":{"type":"string"},"arguments":{"type":"object"}}}`}
	f.answer = func(kind string, data map[string]any) string {
		arguments, _ := data["arguments"].(map[string]any)
		switch {
		case kind == "reset":
			return seen(`{"metadata":{"prompt":[{"type":"text","text":"Go."}]}}`, "")
		case data["type"] == "list_tools":
			return seen(`{"tools":[{"name":"press","description":"Presses.","input_schema":{"type":"object","properties":{"key":{"type":"string"}}}}]}`, "")
		case data["tool_name"] != "press":
			return seen(`{"tool_name":"x","result":null,"error":{"error_type":"tool_not_found","message":"Unknown tool"}}`, `,"reward":-1`)
		case arguments["key"] == "bad":
			return seen(`{"result":{"content":[{"type":"text","text":"no such key"}],"is_error":true}}`, "")
		case arguments["key"] == "c":
			return seen(`{"result":{"content":[{"type":"text","text":"It opens. <|im_end|>"}],"is_error":false}}`, `,"reward":2,"done":true`)
		}
		return seen(`{"result":{"n":[1]}}`, `,"reward":0.5`)
	}
	s := opened(t, f, 20*time.Second)
	text := must.Get(json.Marshal(s.Tools()))(t)
	expect.Equal(t, `[{"type":"function","function":{"name":"press","description":"Presses.","parameters":{"type":"object","properties":{"key":{"type":"string"}}}}}]`, string(text))
	e, first, err := s.Begin(t.Context(), nil)
	must.Do(t, err)
	defer e.Close()
	expect.Equal(t, "Go.", must.Get(first.Text())(t))
	for _, c := range []struct{ name, arguments, want string }{
		{"press", `{"key":"a"}`, `{"n":[1]}`}, {"push", `{}`, "error: Unknown tool"}, {"press", `{"key":"bad"}`, "error: no such key"},
		{"press", `{"key":"c"}`, "It opens. < |im_end|>"}, {"press", `{"key":"a"}`, "error: the episode is over"},
	} {
		got, err := e.Call(t.Context(), tools.Call{Name: c.name, Arguments: []byte(c.arguments)})
		if err != nil {
			got = "error: " + err.Error()
		}
		expect.Equal(t, c.want, got)
	}
	r, err := e.Called()
	expect.True(t, err == nil && r.Reward == 1.5 && r.Done, "%+v, %v", r, err)
}

// TestHostileServers: what a server sends is a clear error in bounded memory and time.
func TestHostileServers(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"silence":          {"", "no session of the server within 1s: timeout"},
		"HTML":             {"<html>", `invalid message "<html>"`},
		"a list":           {"[]", "want {"},
		"no data":          {`{"type":"observation"}`, "want {"},
		"another type":     {`{"type":"state","data":{}}`, "want {"},
		"no observation":   {`{"type":"observation","data":{}}`, "without an observation"},
		"observation text": {seen(`"x"`, ""), "observation: got a string"},
		"reward text":      {seen(`{}`, `,"reward":"1"`), "reward: got a string"},
		"done number":      {seen(`{}`, `,"done":1`), "done: got the number"},
		"huge":             {strings.Repeat("x", 9<<20), "longer than 8388608 bytes"},
		"deep":             {seen(strings.Repeat(`{"a":`, 5000)+"1"+strings.Repeat("}", 5000), ""), "invalid message"},
		"factory":          {`{"type":"error","data":{"code":"FACTORY_ERROR","message":"no display"}}`, `FACTORY_ERROR: "no display"`},
	} {
		f := &fake{action: oneText, answer: func(string, map[string]any) string { return c.answer }}
		s := opened(t, f, time.Second)
		_, _, err := s.Begin(t.Context(), nil)
		expect.True(t, err != nil && strings.Contains(err.Error(), c.want), "%s: %v, want %s", name, err, c.want)
		expect.Same(t, name == "silence", errors.Is(err, within.ErrTimeout), "%s", name)
		f.handlers.Wait() // one may still be writing when the client has gone
		open, _ := f.sessions()
		expect.Same(t, 0, open, "open sessions after %s", name)
	}
	for schema, want := range map[string]string{
		"<html>": "/schema: … not JSON … is this an OpenEnv server?", "{}": "/schema: … no schema of actions", "[]": "/schema: … no schema of actions",
		`{"action":5}`: "/schema: action: got the number", `{"action":{"properties":{"m":5}}}`: "/schema: … m: got the number", strings.Repeat("x", 9<<20): "longer than",
	} {
		_, err := openenv.Open(t.Context(), served(t, &fake{paths: map[string]string{"/schema": schema}}), time.Second, 1)
		expect.True(t, expect.Names(err, want), "%.60s: %v, want %s", schema, err, want)
	}
	for address, want := range map[string]string{"": "want ws://", "ftp://x": "want ws://", "ws://x?a": "want ws://", "ws://127.0.0.1:1": "connection refused"} {
		expect.Failure(openenv.Open(t.Context(), address, time.Second, 1))(t, want)
	}
}

// TestServerGoesAway: an episode waits for a server that is away, once, and begins when it is back.
func TestServerGoesAway(t *testing.T) {
	f := &fake{action: oneText, answer: func(string, map[string]any) string { return seen(`{"a":"b"}`, "") }}
	away := true
	var lock sync.Mutex
	address := served(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock.Lock()
		defer lock.Unlock()
		if r.URL.Path == "/ws" && away {
			http.Error(w, "bad gateway", http.StatusBadGateway)
			away = false
			return
		}
		lock.Unlock()
		defer lock.Lock()
		f.ServeHTTP(w, r)
	}))
	s := must.Get(openenv.Open(t.Context(), address, 20*time.Second, 1))(t)
	e, _, err := s.Begin(t.Context(), nil)
	must.Do(t, err)
	must.Do(t, e.Close())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = s.Begin(ctx, nil)
	expect.True(t, errors.Is(err, context.Canceled), "%v", err)
}

// TestTasks: a server's list of tasks has disjoint parts.
func TestTasks(t *testing.T) {
	for splits, want := range map[string]string{
		`[{"name":"a","type":"train"},{"name":"b","type":"test"},{"name":"c","type":"validation"}]`: "10 a 4, 10 b 4",
		`[{"name":"a","type":"train"},{"name":"c","type":"validation"}]`:                            "10 a 4, 10 c 4",
		`[{"name":"a","type":"train"}]`:                                                             "8 a 4, 2 a 9",
		`[{"name":"a","type":"validation"}]`:                                                        "8 a 4, 2 a 9",
		`[]`:                                                                                        "0, 0",
	} {
		f := &fake{action: oneText, paths: map[string]string{"/list_environments": `["my env"]`, "/my env/splits": splits, "/my env/num_tasks": `{"num_tasks":10}`}}
		s := opened(t, f, 20*time.Second)
		var got []string
		for _, part := range []envs.Part{envs.Train, envs.Eval} {
			text := fmt.Sprint(s.Tasks(part))
			if n := s.Tasks(part); n > 0 {
				task := s.Task(part, min(4, n-1))
				text += fmt.Sprint(" ", task[0].Value, " ", task[1].Value)
			}
			got = append(got, text)
		}
		expect.Equal(t, want, strings.Join(got, ", "))
	}
	f := &fake{action: oneText, paths: map[string]string{"/list_environments": `["e"]`, "/e/splits": `[{"name":"a"}]`, "/e/num_tasks": `{"num_tasks":"x"}`}}
	expect.Failure(openenv.Open(t.Context(), served(t, f), time.Second, 1))(t, `tasks: split "a"`, "no number of tasks")
}

func FuzzMessages(f *testing.F) {
	for _, text := range []string{seen(`{"a":"b"}`, `,"reward":1,"done":false`), `{"type":"error","data":{"max_sessions":-1}}`, seen(`{"metadata":{"prompt":[1]}}`, ""), `{"type":"observation","data":{"observation":null}}`} {
		f.Add(text)
	}
	var lock sync.Mutex
	reply := ""
	address := served(f, &fake{action: oneText, answer: func(string, map[string]any) string { return reply }})
	f.Fuzz(func(t *testing.T, text string) {
		if text == "" || strings.Contains(text, "CAPACITY") {
			return
		}
		lock.Lock()
		defer lock.Unlock()
		reply = text
		s := must.Get(openenv.Open(t.Context(), address, time.Minute, 1))(t)
		e, r, err := s.Begin(t.Context(), nil)
		if err != nil {
			return
		}
		_, _ = r.Text()
		must.Do(t, e.Close())
	})
}
