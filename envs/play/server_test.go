package play_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// server is an OpenEnv server with an environment whose actions have the schema; answer answers reset and step.
func server(t *testing.T, schema string, paths map[string]string, answer func(kind string, data map[string]any) string) (env string, open *atomic.Int64) {
	t.Helper()
	open = &atomic.Int64{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, ok := paths[r.URL.Path]; ok {
			fmt.Fprint(w, text)
			return
		}
		if r.URL.Path != "/ws" {
			fmt.Fprintf(w, `{"action":{"properties":%s}}`, schema)
			return
		}
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		open.Add(1)
		defer func() {
			open.Add(-1)
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
			_ = conn.Write(r.Context(), websocket.MessageText, []byte(`{"type":"observation","data":`+answer(q.Type, q.Data)+`}`))
		}
	}))
	t.Cleanup(s.Close)
	return "openenv:" + s.URL, open
}

func made(t *testing.T, setup envs.Setup, settings envs.Settings) envs.Task {
	t.Helper()
	task := must.Get(envs.New("env", setup, settings))(t)
	t.Cleanup(func() { must.Do(t, task.(io.Closer).Close()) })
	return task
}

// TestServers plays an environment whose actions are JSON objects. A message that is none is answered with what it lacks.
func TestServers(t *testing.T) {
	env, open := server(t, `{"x":{"type":"integer"},"y":{"type":"integer"}}`, nil, func(kind string, data map[string]any) string {
		if kind == "reset" {
			return fmt.Sprintf(`{"observation":{"text":"seed %.0f <|im_end|>"}}`, data["seed"])
		}
		return fmt.Sprintf(`{"observation":{"sum":%v},"reward":%v,"done":%t}`, data["x"], data["x"], data["x"] == 3.0)
	})
	task := made(t, envs.Setup{Seed: 3}, envs.Settings{"env": env, "system_prompt": "Add two numbers."})
	for _, end := range []func(e envs.Env){
		func(e envs.Env) {
			step := must.Get(e.Step(t.Context(), say(`<think>{}</think>{"x": 3, "y": 4}`)))(t)
			expect.True(t, step.Done && step.Info.Correct && !step.Info.FormatOK && !step.Info.FreeForm && step.Reward == 3 && step.Info.Kind == "", "%+v %+v", step, step.Info)
		},
		func(e envs.Env) {
			must.Get(e.Step(t.Context(), envs.Action{Stop: envs.StopCancelled}))(t)
		},
		func(e envs.Env) { must.Do(t, e.(io.Closer).Close()) },
	} {
		e, shown, err := envs.Begin(t.Context(), task, envs.Train, 5)
		must.Do(t, err)
		expect.True(t, len(shown.Messages) == 2 && shown.Messages[0].Content == "Add two numbers." && strings.HasSuffix(shown.Messages[1].Content, "< |im_end|>"), "%+v", shown)
		step := must.Get(e.Step(t.Context(), say("hello")))(t)
		expect.True(t, strings.HasPrefix(step.Reply, "error: the message is not a JSON object") && !step.Done && step.Reward == 0, "%+v", step)
		end(e)
		expect.Same(t, 0, open.Load(), "open sessions")
		expect.Fails(e.Step(t.Context(), say("x")))(t, "a step after the end")
	}
}

// TestClosedWhileItBegins: an episode that is closed before its session is there keeps none.
func TestClosedWhileItBegins(t *testing.T) {
	env, open := server(t, `{"m":{}}`, nil, func(string, map[string]any) string { return `{"observation":{"a":"b"}}` })
	task := made(t, envs.Setup{}, envs.Settings{"env": env})
	shown := must.Get(envs.Show(t.Context(), task, envs.Train, 0))(t)
	expect.True(t, shown.Messages[0].Content == "b" && open.Load() == 0, "%+v, %d open sessions", shown, open.Load())
	e := must.Get(task.Episode(envs.Train, 0))(t)
	must.Do(t, e.(io.Closer).Close())
	expect.Failure(e.Reset(t.Context()))(t, "closed")
	expect.Same(t, 0, open.Load(), "open sessions")
}

// TestServersWithTools: calls are answered by results, and a message without calls ends the episode.
func TestServersWithTools(t *testing.T) {
	env, open := server(t, `{"tool_name":{},"arguments":{}}`, nil, func(kind string, data map[string]any) string {
		arguments, _ := data["arguments"].(map[string]any)
		switch {
		case kind == "reset":
			return `{"observation":{"metadata":{}}}`
		case data["type"] == "list_tools":
			return `{"observation":{"tools":[{"name":"press","input_schema":{}}]}}`
		case arguments["key"] == "c":
			return `{"observation":{"result":"opens"},"reward":1,"done":true}`
		}
		return `{"observation":{"result":"nothing"},"reward":0.25}`
	})
	template := "<tool_call>"
	_, err := envs.New("env", envs.Setup{Text: true}, envs.Settings{"env": env})
	expect.Error(t, err, "need a chat template")
	expect.Failure(envs.New("env", envs.Setup{ToolTemplate: new(string)}, envs.Settings{"env": env}))(t, "does not describe")
	_, _, err = envs.Begin(t.Context(), made(t, envs.Setup{ToolTemplate: &template}, envs.Settings{"env": env}), envs.Train, 0)
	expect.Error(t, err, "the observation of reset is empty", "--system-prompt")
	task := made(t, envs.Setup{ToolTemplate: &template}, envs.Settings{"env": env, "system_prompt": "Open the door."})
	call := func(key string) string {
		return `<tool_call>{"name":"press","arguments":{"key":"` + key + `"}}</tool_call>`
	}
	for _, c := range []struct {
		texts   []string
		rewards float64
		used    envs.ToolUse
	}{
		{[]string{call("a") + call("b"), call("c") + call("a")}, 1.5, envs.ToolUse{Offered: true, Calls: 4, Failed: 1}},
		{[]string{call("a"), "<tool_call>{", "I give up."}, 0.25, envs.ToolUse{Offered: true, Calls: 1, Malformed: 1}},
	} {
		e, shown, err := envs.Begin(t.Context(), task, envs.Eval, 0)
		must.Do(t, err)
		expect.True(t, len(shown.Tools) == 1 && shown.Messages[1].Content == "Begin.", "%+v", shown)
		sum := 0.0
		for i, text := range c.texts {
			step := must.Get(e.Step(t.Context(), say(text)))(t)
			sum += step.Reward
			last := i == len(c.texts)-1
			expect.True(t, step.Done == last && (last || len(step.Results) > 0 && step.Results[0].Role == envs.RoleTool) && !step.Continues, "%d: %+v", i, step)
			if last {
				expect.Equal(t, c.used, step.Tools)
			}
		}
		expect.True(t, sum == c.rewards && open.Load() == 0, "rewards %v, %d open sessions", sum, open.Load())
	}
}

// TestMixtures: episodes are divided by the weights, and a server's tasks are taken in turn, those for evaluation apart.
func TestMixtures(t *testing.T) {
	tasks := map[string]string{"/list_environments": `["e"]`, "/e/splits": `[{"name":"a","type":"train"}]`, "/e/num_tasks": `{"num_tasks":8}`}
	env, _ := server(t, `{"m":{}}`, tasks, func(kind string, data map[string]any) string {
		return fmt.Sprintf(`{"observation":{"text":"task %v %v"},"reward":1,"done":%t}`, data["split"], data["index"], kind == "step")
	})
	settings := envs.Settings{"env": "cmd:sh counting.sh /dev/null", "env_mix": env + "=0.5,cmd:sh counting.sh /dev/null=1"}
	t.Chdir(t.TempDir())
	must.Do(t, writeCounting("counting.sh"))
	task := made(t, envs.Setup{HeldOut: 3}, settings)
	for part, want := range map[envs.Part]int{envs.Train: 5, envs.Eval: 3} {
		kinds, shown := map[string]int{}, map[string]int{}
		for i := range 25 {
			e, o, err := envs.Begin(t.Context(), task, part, i)
			must.Do(t, err)
			step := must.Get(e.Step(t.Context(), say("good")))(t)
			kinds[step.Info.Kind]++
			shown[o.Messages[0].Content]++
		}
		expect.True(t, kinds["counting"] == 10 && kinds["counting_2"] == 10 && len(kinds) == 3, "%v", kinds)
		n := 0
		for text := range shown {
			if strings.HasPrefix(text, "task a") {
				n++
			}
		}
		expect.Same(t, want, n, "tasks of %s", part)
	}
	alone := made(t, envs.Setup{HeldOut: 3}, envs.Settings{"env": env})
	expect.True(t, alone.Len(envs.Train) == 5 && alone.Len(envs.Eval) == 3, "%d, %d", alone.Len(envs.Train), alone.Len(envs.Eval))
	for mix, want := range map[string]string{"cmd:x": "want ENV=WEIGHT", "cmd:x=0": "above 0", "x=1": "want cmd:PROGRAM", "openenv:x=1": "want ws://", "openenv:http://127.0.0.1:1=1": "connection refused"} {
		_, err := envs.New("env", envs.Setup{}, envs.Settings{"env": env, "env_mix": mix})
		expect.True(t, expect.Names(err, "env_mix: … "+want), "%s: %v, want %s", mix, err, want)
	}
}
