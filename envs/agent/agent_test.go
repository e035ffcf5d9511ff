package agent_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rltrain/rltrain/envs"
	_ "github.com/rltrain/rltrain/envs/agent"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "agent" {
		play(os.Args[2])
		syscall.Exit(0) // without a word about GOCOVERDIR
	}
	os.Exit(m.Run())
}

type object = map[string]any

// play is an agent of each kind.
func play(kind string) {
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	send := func(key, path string, body object) (object, int) {
		data, _ := json.Marshal(body)
		q, _ := http.NewRequest(http.MethodPost, os.Getenv("OPENAI_BASE_URL")+path, bytes.NewReader(data))
		q.Header.Set("Authorization", "Bearer "+key)
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			syscall.Exit(3)
		}
		var got object
		_ = json.NewDecoder(r.Body).Decode(&got)
		return got, r.StatusCode
	}
	key := os.Getenv("OPENAI_API_KEY")
	talk := []any{object{"role": "user", "content": "task " + strings.TrimSpace(line)}}
	function := object{"name": "add", "parameters": object{"type": "object"}}
	said := func(more ...any) string {
		talk = append(talk, more...)
		got, status := send(key, "/chat/completions", object{"model": "m", "messages": talk, "tools": []any{object{"type": "function", "function": function}}, "temperature": 0.5, "response_format": object{"type": "text"}})
		if status != http.StatusOK {
			return fmt.Sprint(status)
		}
		choice := got["choices"].([]any)[0].(object)
		message := choice["message"].(object)
		message["refusal"] = nil // as the official client has it
		talk = append(talk, message)
		return fmt.Sprint(message["content"], " ", choice["finish_reason"])
	}
	switch kind {
	case "good", "post":
		said()
		call := talk[1].(object)["tool_calls"].([]any)[0].(object)
		text := said(object{"role": "tool", "tool_call_id": call["id"], "content": call["function"].(object)["arguments"]}, object{"role": "user", "content": "Go on."})
		if kind == "post" {
			_, status := send(key, "/reward", object{"reward": 0.25, "correct": false})
			fmt.Println("posted", status)
			return
		}
		fmt.Printf("log\n{\"reward\": %d}\n\n", len(text))
	case "other key":
		_, status := send("x", "/chat/completions", object{"messages": talk})
		said()
		fmt.Printf("{\"reward\": %d}\n", status)
	case "greedy":
		for !strings.HasPrefix(said(object{"role": "user", "content": "more"}), "429") {
		}
		fmt.Println(`{"reward": 1}`)
	case "mute":
		fmt.Println(`{"reward": 1}`)
	case "no reward":
		said()
		fmt.Fprintln(os.Stderr, "oops")
		syscall.Exit(4)
	case "forgets":
		said()
		talk = talk[:0]
		said(object{"role": "user", "content": "New"}, object{"role": "user", "content": "New"}, object{"role": "user", "content": "New"})
	case "hangs":
		said()
		select {}
	case "fields":
		var refused []string
		for _, field := range []string{`"stream":true`, `"n":2`, `"response_format":{"type":"json_object"}`, `"stop":["x"]`, `"chat_template_kwargs":{}`, `"Messages":[]`, `"tool_choice":"required"`} {
			body := object{"messages": talk, "tools": []any{object{"type": "function", "function": function}}}
			if json.Unmarshal([]byte("{"+field+"}"), &body) != nil {
				syscall.Exit(5)
			}
			got, status := send(key, "/chat/completions", body)
			message := fmt.Sprint(got["error"].(object)["message"])
			refused = append(refused, fmt.Sprint(status, " ", strings.FieldsFunc(message, func(r rune) bool { return r == ' ' || r == ':' })[0]))
		}
		fmt.Fprintln(os.Stderr, strings.Join(refused, ","))
	}
}

func opened(t *testing.T, kind string, settings envs.Settings) envs.Task {
	t.Helper()
	template := "<tool_call>"
	all := envs.Settings{"agent": fmt.Sprintf("cmd:%s agent '%s'", must.Get(os.Executable())(t), kind), "agent_timeout": "30"}
	for name, value := range settings {
		all[name] = value
	}
	task := must.Get(envs.New("agent", envs.Setup{Seed: 3, ToolTemplate: &template}, all))(t)
	t.Cleanup(func() { must.Do(t, task.(io.Closer).Close()) })
	return task
}

func act(text string) envs.Action {
	a, _, _ := envs.NewAction(text, envs.StopEnd, false)
	return a
}

// TestEpisodes: an agent's calls are the turns of one conversation, with tools; its verdict is printed or posted.
func TestEpisodes(t *testing.T) {
	for _, c := range []struct {
		kind   string
		reward float64
	}{{"good", float64(len("done stop"))}, {"post", 0.25}} {
		task := opened(t, c.kind, nil)
		e, shown, err := envs.Begin(t.Context(), task, envs.Train, 5)
		must.Do(t, err)
		expect.True(t, strings.HasPrefix(shown.Messages[0].Content, `task {"part":"train","seed":`) && len(shown.Tools) == 1, "%+v", shown)
		step := must.Get(e.Step(t.Context(), act("<think>?</think><tool_call>{\"name\": \"add\", \"arguments\": {\"b\": 2, \"a\": 1}}</tool_call>")))(t)
		expect.True(t, !step.Done && len(step.Results) == 2 && step.Tools.Calls == 1, "%+v", step)
		name, _ := step.Results[0].Fields.Get("name")
		expect.True(t, name == "add" && step.Results[0].Content == `{"b":2,"a":1}` && step.Results[1].Content == "Go on.", "%+v", step.Results)
		step = must.Get(e.Step(t.Context(), act("done")))(t)
		expect.True(t, step.Done && step.Reward == c.reward && step.Info.Correct == (c.kind == "good") && len(step.Said) == 5, "%+v %+v", step, step.Info)
		expect.Failure(e.Step(t.Context(), act("x")))(t, "has ended")
	}
}

// TestOddAgents: what goes wrong is an error of the episode, or a response to the agent.
func TestOddAgents(t *testing.T) {
	for kind, want := range map[string]string{
		"mute": "ended without a call", "fields": "ended without a call … 400 stream,400 n,400 response_format,400 stop,400 chat_template_kwargs,400 Messages,400 tool_choice", "no reward": "its last line is \"\" (exit status 4: \"oops\")",
		"hangs": "timeout",
	} {
		task := opened(t, kind, envs.Settings{"agent_timeout": map[bool]string{true: "1", false: "30"}[kind == "hangs"]})
		e, _, err := envs.Begin(t.Context(), task, envs.Train, 0)
		if err == nil {
			_, err = e.Step(t.Context(), act("a"))
		}
		expect.True(t, expect.Names(err, "agent: … "+want) || expect.Names(err, "agent: "+want), "%s: %v, want %s", kind, err, want)
		must.Do(t, e.(io.Closer).Close())
	}
	e, _, err := envs.Begin(t.Context(), opened(t, "other key", nil), envs.Train, 0)
	must.Do(t, err)
	step := must.Get(e.Step(t.Context(), act("a")))(t)
	expect.True(t, step.Done && step.Reward == http.StatusUnauthorized, "%+v", step)

	e, _, err = envs.Begin(t.Context(), opened(t, "forgets", nil), envs.Train, 0)
	must.Do(t, err)
	step = must.Get(e.Step(t.Context(), act("a")))(t)
	expect.True(t, step.Results == nil && step.Anew != nil && len(step.Anew.Messages) == 3 && len(step.Said) == 3 && len(step.Anew.Tools) == 1, "another conversation: %+v", step)
	must.Do(t, e.(io.Closer).Close())

	e, _, err = envs.Begin(t.Context(), opened(t, "greedy", envs.Settings{"max_turns": "2"}), envs.Train, 0)
	must.Do(t, err)
	step = must.Get(e.Step(t.Context(), act("a")))(t)
	expect.True(t, !step.Done, "%+v", step)
	step = must.Get(e.Step(t.Context(), act("b")))(t)
	expect.True(t, step.Done && step.Reward == 1, "%+v", step)
}

// TestClose: closing an episode ends an agent that waits, at once.
func TestClose(t *testing.T) {
	e, _, err := envs.Begin(t.Context(), opened(t, "hangs", nil), envs.Train, 0)
	must.Do(t, err)
	failed := make(chan error, 1)
	go func() { _, err := e.Step(t.Context(), act("a")); failed <- err }()
	must.Do(t, e.(io.Closer).Close())
	select {
	case err := <-failed:
		expect.True(t, err != nil, "an episode that was closed has a reward")
	case <-time.After(20 * time.Second):
		t.Fatal("the step goes on")
	}
}

func TestRefuses(t *testing.T) {
	for agent, want := range map[string]string{"": "agent: is needed", "http://x": "want cmd:PROGRAM", "cmd:": "agent: the command is empty", "cmd:./none": "agent: … none"} {
		_, err := envs.New("agent", envs.Setup{}, envs.Settings{"agent": agent})
		expect.True(t, expect.Names(err, want), "%q: %v, want %s", agent, err, want)
	}
	_, err := envs.New("agent", envs.Setup{Text: true}, envs.Settings{"agent": "cmd:true"})
	expect.True(t, expect.Names(err, "need a chat template"), "%v", err)
}
