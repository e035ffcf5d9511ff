package play_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/rltrain/rltrain/envs"
	_ "github.com/rltrain/rltrain/envs/play"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// counting notes its starts in $1. An episode asks for its seed's last digit; each turn shows how many there were.
const counting = `echo start >> "$1"
while IFS= read -r line; do
id=${line#*:}; id=${id%%,*}
case $line in
*'"reset"'*) n=0; seed=${line#*seed\":}; seed=${seed%%,*}; echo "{\"id\":$id,\"observation\":\"seed $seed\"}" ;;
*'"text":"end"'*) echo "{\"id\":$id,\"reward\":0.5,\"done\":true,\"correct\":false}" ;;
*'"text":"nothing"'*) echo "{\"id\":$id,\"done\":true}" ;;
*'"text":"good"'*) echo "{\"id\":$id,\"reward\":2,\"done\":true}" ;;
*'"text":"die"'*) echo oops >&2; exit 3 ;;
*'"text":"hang"'*) sleep 1000 ;;
*'"text":"odd"'*) echo hello ;;
*'"text":"mute"'*) echo "{\"id\":$id}" ;;
*'"text":"tool"'*) echo "{\"id\":$id,\"observation\":[{\"role\":\"tool\",\"content\":\"x\"}]}" ;;
*'"text":"own"'*) echo "{\"id\":$id,\"error\":\"no board\"}" ;;
*'"text":"flood"'*) yes | tr -d '\n' ;;
*) n=$((n+1)); echo "{\"id\":$id,\"observation\":\"turn $n\",\"reward\":0.25}" ;; esac
done
`

// opened is the environment, and how often its program was started.
func opened(t *testing.T, setup envs.Setup, settings envs.Settings) (task envs.Task, starts func() int) {
	t.Helper()
	dir := t.TempDir()
	script, log := filepath.Join(dir, "env.sh"), filepath.Join(dir, "starts")
	must.Do(t, writeCounting(script))
	all := envs.Settings{"env": "cmd:sh " + script + " " + log, "env_timeout": "20"}
	for name, value := range settings {
		all[name] = value
	}
	task = must.Get(envs.New("env", setup, all))(t)
	t.Cleanup(func() { must.Do(t, task.(io.Closer).Close()) })
	return task, func() int {
		text, _ := os.ReadFile(log)
		return strings.Count(string(text), "start")
	}
}

func writeCounting(path string) error { return os.WriteFile(path, []byte(counting), 0o600) }

func say(text string) envs.Action {
	a, _, _ := envs.NewAction(text, envs.StopEnd, false)
	return a
}

func TestEpisodes(t *testing.T) {
	task, starts := opened(t, envs.Setup{Seed: 3}, nil)
	for i := range 3 { // one after another, by one process
		e, shown, err := envs.Begin(t.Context(), task, envs.Train, 5)
		must.Do(t, err)
		_, same, err := envs.Begin(t.Context(), task, envs.Train, 5)
		must.Do(t, err)
		expect.Equal(t, shown, same, "the same episode")
		step := must.Get(e.Step(t.Context(), say("x")))(t)
		expect.True(t, step.Keep == 1 && step.Reply == "turn 1" && step.Reward == 0.25 && !step.Done && !step.Continues, "%+v", step)
		step = must.Get(e.Step(t.Context(), say("end")))(t)
		expect.True(t, step.Done && step.Reward == 0.5 && step.Info != nil && !step.Info.Correct && len(step.Said) == 4, "%+v", step)
		expect.Failure(e.Step(t.Context(), say("x")))(t, "has ended")
		must.Do(t, e.(io.Closer).Close())
		expect.Same(t, 2+i, starts(), "starts: the second episode of a round has a process of its own, and keeps it")
	}
	e, _, err := envs.Begin(t.Context(), task, envs.Train, 5)
	must.Do(t, err)
	expect.True(t, !must.Get(e.Step(t.Context(), say("nothing")))(t).Info.Correct, "no reward is no success")
	seeds := map[string]bool{}
	for _, part := range []envs.Part{envs.Train, envs.Eval} {
		for index := range 4 {
			e, shown, err := envs.Begin(t.Context(), task, part, index)
			must.Do(t, err)
			seeds[shown.Messages[0].Content] = true
			step := must.Get(e.Step(t.Context(), say("good")))(t)
			expect.True(t, step.Done && step.Info.Correct, "rewards above 0 are a success: %+v", step)
		}
	}
	expect.True(t, len(seeds) == 8, "seeds %v", seeds)
}

func TestEndsOfEpisodes(t *testing.T) {
	task, _ := opened(t, envs.Setup{Text: true}, envs.Settings{"max_turns": "2"})
	for _, actions := range [][]envs.Action{{say("a"), say("b")}, {{Text: "cut", Stop: envs.StopLength}, say("end")}} {
		e, shown, err := envs.Begin(t.Context(), task, envs.Eval, 0)
		must.Do(t, err)
		expect.True(t, strings.HasPrefix(shown.Text, "seed ") && shown.Messages == nil, "%+v", shown)
		for i, a := range actions {
			step := must.Get(e.Step(t.Context(), a))(t)
			expect.True(t, step.Done == (i == len(actions)-1) && (step.Done || step.Append == "\nturn 1\n"), "%+v", step)
		}
		must.Do(t, e.(io.Closer).Close())
	}
}

// TestFailures: an environment that fails costs its episode alone.
func TestFailures(t *testing.T) {
	for text, want := range map[string]string{
		"die": "exit status 3 … oops", "hang": "timeout", "odd": `invalid line "hello"`, "mute": "no observation", "tool": "only the user's", "own": `"no board"`, "flood": "longer than",
	} {
		task, _ := opened(t, envs.Setup{}, envs.Settings{"env_timeout": "1"})
		e, _, err := envs.Begin(t.Context(), task, envs.Train, 0)
		must.Do(t, err)
		_, err = e.Step(t.Context(), say(text))
		expect.True(t, expect.Names(err, "environment: … "+want) || expect.Names(err, want), "%s: %v, want %s", text, err, want)
		must.Do(t, e.(io.Closer).Close())
		_, _, err = envs.Begin(t.Context(), task, envs.Train, 0)
		expect.NoError(t, err, "after %s", text)
	}
	task, _ := opened(t, envs.Setup{}, nil)
	e, _, err := envs.Begin(t.Context(), task, envs.Train, 0)
	must.Do(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = e.Step(ctx, say("hang"))
	expect.True(t, err != nil && ctx.Err() != nil, "%v", err)
}

func TestRefuses(t *testing.T) {
	for env, want := range map[string]string{"": "env: is needed", "ws://x": `env: "ws://x": want cmd:PROGRAM or openenv:`, "cmd:": "env: the command is empty", "cmd:./none": "env: … none"} {
		_, err := envs.New("env", envs.Setup{}, envs.Settings{"env": env})
		expect.True(t, expect.Names(err, want), "%q: %v, want %s", env, err, want)
	}
}

func FuzzAnswers(f *testing.F) {
	for _, line := range []string{`"observation":"x"`, `"observation":[{"role":"user","content":"x"}]`, `"reward":1e308,"done":true`, `"observation":{"role":"user"}`, `"correct":null`} {
		f.Add(line)
	}
	dir := f.TempDir()
	script, said := filepath.Join(dir, "env.sh"), filepath.Join(dir, "line")
	must.Do(f, os.WriteFile(script, []byte(`while IFS= read -r line; do id=${line#*:}; cat "$1" | sed "s/^/{\"id\":${id%%,*},/"; done`), 0o600))
	f.Fuzz(func(t *testing.T, fields string) {
		if strings.ContainsAny(fields, "\n\x00") || !json.Valid([]byte("{"+fields+"}")) || fields == "" {
			return
		}
		must.Do(t, os.WriteFile(said, []byte(fields+"}\n"), 0o600))
		task := must.Get(envs.New("env", envs.Setup{}, envs.Settings{"env": fmt.Sprintf("cmd:sh %s %s", script, said)}))(t)
		defer task.(io.Closer).Close()
		e, shown, err := envs.Begin(t.Context(), task, envs.Train, 0)
		if err == nil {
			expect.True(t, len(shown.Messages) > 0, "%q shows nothing", fields)
			must.Do(t, e.(io.Closer).Close())
		}
	})
}

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
