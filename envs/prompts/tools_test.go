package prompts_test

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	_ "github.com/rltrain/rltrain/envs/prompts"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// toolTask is a task with a tool that answers 42, for a model whose chat template has calls between <tool_call> tags.
func toolTask(t *testing.T, settings envs.Settings) (envs.Task, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"rows.jsonl": `{"prompt": "six times seven?", "answer": 42}` + "\n",
		"tool.sh":    `while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; echo "{\"id\":$id,\"result\":42}"; done` + "\n",
		"tools.json": `[{"name": "f", "run": "cmd:sh ` + filepath.Join(dir, "tool.sh") + `"}]`,
		"own.jsonl":  `{"prompt": "q", "answer": 1, "tools": [{"name": "g"}]}` + "\n",
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	all := envs.Settings{"dataset": filepath.Join(dir, "rows.jsonl"), "tools": filepath.Join(dir, "tools.json")}
	for name, value := range settings {
		all[name] = strings.ReplaceAll(value, "DIR", dir)
	}
	template := "<tool_call> {{ tools }}"
	if all["template"] != "" {
		template = ""
	}
	delete(all, "template")
	return envs.New("prompts", envs.Setup{EvalOnly: true, ToolTemplate: &template}, all)
}

// TestToolEpisode: calls are answered within the turn, rewards see the conversation, and the last text is verified.
func TestToolEpisode(t *testing.T) {
	task := must.Get(toolTask(t, envs.Settings{"max_turns": "4", "mask_malformed": "true"}))(t)
	defer func() { must.Do(t, task.(io.Closer).Close()) }()
	expect.Equal(t, []string{envs.RoleTool}, task.(envs.Conversing).Replies())
	e, shown, err := envs.Begin(t.Context(), task, envs.Eval, 0)
	must.Do(t, err)
	defer func() { must.Do(t, e.(io.Closer).Close()) }()
	expect.True(t, len(shown.Tools) == 1, "tools %v", shown.Tools)
	const call, broken = `<tool_call>{"name": "f"}</tool_call>`, `<tool_call>f()`
	for range 2 { // also after Reset
		for _, text := range []string{call, broken} {
			step := must.Get(e.Step(t.Context(), envs.Action{Text: text, Stop: envs.StopEnd}))(t)
			expect.True(t, !step.Done && step.Continues && step.Keep == len(text) && step.Reward == 0 && len(step.Results) == 1 && step.Info == nil, "%s: %+v", text, step)
			expect.Same(t, text == broken, step.Masked, "%s is masked", text)
		}
		step := must.Get(e.Step(t.Context(), envs.Action{Text: "The answer is 42.", Stop: envs.StopEnd}))(t)
		expect.True(t, step.Done && !step.Continues && step.Reward == 1 && step.Info.Correct, "%+v", step)
		expect.Equal(t, envs.ToolUse{Offered: true, Calls: 1, Malformed: 1}, step.Tools)
		said := string(must.Get(json.Marshal(step.Said))(t))
		expect.Contains(t, said, `[{"role":"user","content":"six times seven?"},{"role":"assistant","content":"","tool_calls":[{"id":"call00000",`,
			`{"role":"tool","tool_call_id":"call00000","name":"f","content":"42"}`, `"tool_call_id":"call00001"`, `{"role":"assistant","content":"The answer is 42."}]`)
		must.Get(e.Reset(t.Context()))(t)
	}
	// The last turn, and one that the token limit cuts off, call nothing.
	for _, last := range []envs.Action{{Text: call, Stop: envs.StopLength}, {Text: call, Stop: envs.StopEnd}} {
		must.Get(e.Reset(t.Context()))(t)
		for i := range 4 {
			a := envs.Action{Text: call, Stop: envs.StopEnd}
			if last.Stop == envs.StopLength {
				a = last
			}
			step := must.Get(e.Step(t.Context(), a))(t)
			expect.True(t, step.Done == (i == 3 || last.Stop == envs.StopLength), "turn %d: %+v", i+1, step)
			if step.Done {
				expect.True(t, !step.Info.Correct && step.Results == nil, "%+v", step)
				break
			}
		}
	}
}

func TestToolsRefuse(t *testing.T) {
	for _, c := range []struct {
		settings envs.Settings
		want     string
	}{
		{envs.Settings{"template": "none"}, "tools: … does not describe tools"},
		{envs.Settings{"tools": "DIR/none.json"}, "tools: … none.json"},
		{envs.Settings{"dataset": "DIR/own.jsonl"}, "own.jsonl:1: the row has tools"},
	} {
		_, err := toolTask(t, c.settings)
		expect.True(t, expect.Names(err, c.want), "%v: %v, want %s", c.settings, err, c.want)
	}
}
