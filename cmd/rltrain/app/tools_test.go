package app

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

// TestToolsInTraining teaches a small model to call a tool, then trains it with the tool that answers. Resumed from its first
// step, the run ends the same.
func TestToolsInTraining(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyChatModel(f.expand("TMP/start"), 1, 32, 7))
	f.write(t, "TMP/template.jinja", `{% for t in tools or [] %}{{ t.function.name }};{% endfor %}{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}`+
		`{% for c in m.tool_calls or [] %}<tool_call>{"name":"{{ c.function.name }}","arguments":{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<eos>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}`)
	f.write(t, "TMP/tools.json", `[{"name": "f", "run": "cmd:sh TMP/tool.sh"}]`)
	f.edit(t, "TMP/tools.json", "TMP/tool.sh", f.expand("TMP/tool.sh"))
	f.write(t, "TMP/tool.sh", `while IFS= read -r line; do id=${line#*:}; id=${id%%,*}; echo "{\"id\":$id,\"result\":\"zz\"}"; done`+"\n")
	f.write(t, "TMP/reward.sh", `while IFS= read -r line; do
echo "$line" >> ASKED
id=${line#*:}; id=${id%%,*}
case $line in *'"role":"tool"'*) echo "{\"id\":$id,\"reward\":1}" ;; *) echo "{\"id\":$id,\"reward\":0}" ;; esac
done
`)
	f.edit(t, "TMP/reward.sh", "ASKED", f.expand("TMP/asked"))
	const tool = `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}]`
	const demo = `{"messages":[{"role":"user","content":"go %d"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"zz"},{"role":"assistant","content":"zz"}],` + tool + "}\n"
	var demos, questions strings.Builder
	for i := range 16 {
		fmt.Fprintf(&demos, demo, i)
		fmt.Fprintf(&questions, `{"messages":[{"role":"user","content":"go %d"}],"answer":"zz"}`+"\n", i)
	}
	f.write(t, "TMP/demos.jsonl", demos.String())
	f.write(t, "TMP/q.jsonl", questions.String())
	f.must(t, "", strings.Fields(`train --task chat --dataset TMP/demos.jsonl --model TMP/start --chat-template TMP/template.jinja --tuning full --max-steps 150
		--batch-size 8 --learning-rate 0.01 --validation-share 0 --output-dir TMP`)...)
	prompts := func(dir string, more ...string) []string {
		return append(strings.Fields(`train --task prompts --mode rl_only --dataset TMP/q.jsonl --pretrained-model TMP/chat_supervised --tools TMP/tools.json
			--max-new-tokens 64 --eval-samples 4 --fresh-samples 0 --prompts-per-step 2 --samples-per-prompt 4 --save-steps 1 --output-dir `+dir), more...)
	}
	rewards := []string{"--reward", "answer,cmd:sh " + f.expand("TMP/reward.sh")}
	f.must(t, "", append(prompts("TMP/a", "--num-steps", "2"), rewards...)...)

	calls := 0.0
	for _, row := range must.Get(report.ReadMetrics(f.expand("TMP/a/prompts_rl/logs/metrics.jsonl")))(t) {
		if n, ok := row["tools/call_frequency"].(float64); ok {
			calls = max(calls, n)
		}
	}
	expect.True(t, calls > 0, "no calls in the metrics")
	asked := must.Read(t, f.expand("TMP/asked"))
	expect.Contains(t, asked, `"messages":[{"role":"user","content":"go `, `"},{"role":"assistant","content":"","tool_calls":[{"id":"call00000"`,
		`{"role":"tool","tool_call_id":"call00000","name":"f","content":"zz"}`, `"tools":{"calls":1,"failed":0,"malformed":0}`)
	answered := false
	for line := range strings.Lines(must.Read(t, f.expand("TMP/a/prompts_rl/logs/completions.jsonl"))) {
		var r rl.Record
		must.Do(t, json.Unmarshal([]byte(line), &r))
		if r.Tools != nil && r.Tools.Calls == 1 && len(r.Actions) == 2 {
			answered = true
			expect.Contains(t, r.Written, `<tool_call>{"name":"f","arguments":{}}</tool_call>`, "[tool]zz", "[assistant]")
			expect.True(t, !strings.Contains(strings.Join(r.Tokens, ""), "[tool]"), "the result is among the sampled tokens: %q", r.Tokens)
		}
	}
	expect.True(t, answered, "no completion has a call and an answer")
	const steps = "TMP/a/prompts_rl/checkpoints/"
	files := map[string]string{}
	for _, name := range []string{"model.safetensors", "optimizer.safetensors", "state.json"} {
		files[name] = must.Read(t, f.expand(steps+"checkpoint-2/"+name))
	}
	f.must(t, "", append(prompts("TMP/a", "--num-steps", "2", "--resume-from-checkpoint", f.expand(steps+"checkpoint-1")), rewards...)...)
	for name, want := range files {
		expect.True(t, must.Read(t, f.expand(steps+"checkpoint-2/"+name)) == want, "%s differs after a resume", name)
	}
}

func TestToolsRefused(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyChatModel(f.expand("TMP/start"), 1, 32, 7))
	f.write(t, "TMP/tools.json", `[{"name": "f", "run": "cmd:true"}]`)
	f.write(t, "TMP/bad.json", `[{"name": "f"}]`)
	var questions strings.Builder
	for i := range 8 {
		fmt.Fprintf(&questions, `{"prompt":"go %d","answer":"zz"}`+"\n", i)
	}
	f.write(t, "TMP/q.jsonl", questions.String())
	for more, want := range map[string]string{
		"--tools TMP/tools.json":              "--tools: the model's chat template does not describe tools",
		"--tools TMP/tools.json --model tiny": "--tools: tools need a chat template",
		"--tools TMP/bad.json":                "--tools: TMP/bad.json:1:2: run: ",
		"--tools TMP/none.json":               "--tools: ",
		"--max-tool-calls 3":                  "--max-tool-calls: applies only with --tools FILE",
		"--tool-timeout 3":                    "--tool-timeout: applies only with --tools FILE",
	} {
		args := strings.Fields("train --task prompts --mode rl_only --dataset TMP/q.jsonl --output-dir TMP/out --eval-samples 2 " + more)
		if !strings.Contains(more, "--model") {
			args = append(args, "--model", "TMP/start")
		}
		f.refused(t, f.expand(want), args...)
	}
}
