package prompts

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/answer/hacks"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// newTask builds the task from a file.
func newTask(t *testing.T, s envs.Setup, settings envs.Settings) envs.Task {
	t.Helper()
	made := must.Get(envs.New("prompts", s, settings))(t)
	if open, ok := made.(io.Closer); ok {
		t.Cleanup(func() { open.Close() })
	}
	return made
}

// begin resets the first evaluation episode.
func begin(t *testing.T, task envs.Task) (envs.Env, envs.Observation) {
	t.Helper()
	e := must.Get(task.Episode(envs.Eval, 0))(t)
	shown := must.Get(e.Reset(t.Context()))(t)
	return e, shown
}

func TestShown(t *testing.T) {
	system := must.File(t, "s.txt", "Be brief.\n")
	examples := must.File(t, "x.jsonl", `{"prompt": "1+1=", "answer": 2}`+"\n"+`{"prompt": "1+2=", "answer": 3}`+"\n")
	plain := must.File(t, "p.csv", "prompt,answer\n2+2=,4\n")
	talk := must.File(t, "m.jsonl", `{"messages": [{"from": "system", "value": "S"}, {"from": "human", "value": "2+2="}], "answer": 4}`)
	m := func(pairs ...string) (all []envs.Message) {
		for i := 0; i < len(pairs); i += 2 {
			all = append(all, envs.Message{Role: pairs[i], Content: pairs[i+1]})
		}
		return all
	}
	for _, test := range []struct {
		name     string
		text     bool
		settings envs.Settings
		want     envs.Observation
	}{
		{"text", true, envs.Settings{"dataset": plain}, envs.Observation{Text: "2+2="}},
		{"text with examples", true, envs.Settings{"dataset": plain, "few_shot_dataset": examples, "system_prompt": system, "stop": `\n,ä\,b`},
			envs.Observation{Text: "Be brief.\n\n1+1=2\n\n1+2=3\n\n2+2=", Stop: []string{"\n", "ä,b"}}},
		{"messages of text", false, envs.Settings{"dataset": plain, "few_shot_dataset": examples, "system_prompt": system},
			envs.Observation{Messages: m("system", "Be brief.", "user", "1+1=", "assistant", "2", "user", "1+2=", "assistant", "3", "user", "2+2=")}},
		{"messages with a system message of their own", false, envs.Settings{"dataset": talk, "few_shot_dataset": examples, "system_prompt": system},
			envs.Observation{Messages: m("system", "S", "user", "1+1=", "assistant", "2", "user", "1+2=", "assistant", "3", "user", "2+2=")}},
	} {
		_, shown := begin(t, newTask(t, envs.Setup{EvalOnly: true, Text: test.text}, test.settings))
		expect.Equal(t, test.want, shown, test.name)
	}
}

// TestColumnsByName: the prompt's column can be named, and a file without answers has them in its solutions.
func TestColumnsByName(t *testing.T) {
	path := must.File(t, "p.jsonl", `{"problem": "1+1=", "solution": "It is \\boxed{2}."}`+"\n")
	for _, match := range []string{"math", "exact"} {
		e, shown := begin(t, newTask(t, envs.Setup{EvalOnly: true, Text: true}, envs.Settings{"dataset": path, "prompt_column": "problem", "answer_match": match}))
		expect.Same(t, "1+1=", shown.Text, "prompt")
		step, err := e.Step(t.Context(), envs.Action{Text: "2"})
		expect.True(t, err == nil && step.Reward == 1, "%s: reward %v, %v", match, step.Reward, err)
	}
}

func TestSolutionsOfTheFile(t *testing.T) {
	for columns, want := range map[string]string{`"solution": "s"`: "s", `"completion": "c"`: "c", `"other": "o"`: ""} {
		path := must.File(t, "p.jsonl", `{"prompt": "a", "answer": 1, `+columns+`}`+"\n")
		e, _ := begin(t, newTask(t, envs.Setup{EvalOnly: true}, envs.Settings{"dataset": path}))
		got := ""
		if worked, ok := e.(envs.Demonstrator); ok {
			got = worked.Solution()
		}
		expect.Same(t, want, got, "%s: solution", columns)
	}
	// Episodes of two files have solutions only if both files do.
	worked, plain := must.File(t, "w.jsonl", `{"prompt": "a", "answer": 1, "solution": "s"}`+"\n"), must.File(t, "p.jsonl", `{"prompt": "b", "answer": 1}`+"\n")
	e, _ := begin(t, newTask(t, envs.Setup{}, envs.Settings{"dataset": worked, "eval_dataset": plain}))
	_, ok := e.(envs.Demonstrator)
	expect.True(t, !ok, "a file without solutions has them")
}

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		text, gold string
		match      answer.Match
		want       envs.Info
	}{
		{"So the answer is 0.5.", "1/2", answer.Math, envs.Info{Correct: true, FormatOK: true, FoundBy: "phrase", Answer: "0.5"}},
		{`Thus \boxed{7}`, "8", answer.Math, envs.Info{FormatOK: true, FoundBy: "boxed", Answer: "7"}},
		{" Paris ", "paris", answer.Math, envs.Info{Correct: true, FoundBy: "whole", Answer: "Paris"}},
		{"London", "Paris", answer.Math, envs.Info{FoundBy: "whole", Answer: "London"}},
		{"", "Paris", answer.Math, envs.Info{FoundBy: "none"}},
		{strings.Repeat("I think that it may be so. ", 20), "Paris", answer.Math, envs.Info{FoundBy: "none"}},
		{"0.5", "1/2", answer.Exact, envs.Info{FoundBy: "whole", Answer: "0.5"}},
		{"The answer is B", "b", answer.Exact, envs.Info{Correct: true, FormatOK: true, FoundBy: "phrase", Answer: "B"}},
		{"#### 1,000", "1000", answer.Numeric, envs.Info{Correct: true, FormatOK: true, FoundBy: "hash", Answer: "1000"}},
		{"It takes 5 hours", "5", answer.Units, envs.Info{Correct: true, FoundBy: "last_number", Answer: "5"}},
	} {
		test.want.Truth, test.want.FreeForm = test.gold, true
		expect.Equal(t, &test.want, verify(test.text, test.gold, test.match), fmt.Sprintf("%q by %s", test.text, test.match))
	}
	expect.Same(t, "2", right("1+1=2\n#### 2"), "the answer of a solution")
}

func TestEpisode(t *testing.T) {
	path := must.File(t, "p.jsonl", `{"prompt": "a", "answer": 1, "level": 3}`+"\n")
	task := newTask(t, envs.Setup{EvalOnly: true}, envs.Settings{"dataset": path, "kind_column": "level", "stop": "."})
	for _, test := range []struct {
		action envs.Action
		want   envs.Step
	}{
		{envs.Action{Text: "1.", Stop: envs.StopString}, envs.Step{Keep: 2, Reward: 1, Done: true, Info: &envs.Info{FreeForm: true, Correct: true, FoundBy: "whole", Answer: "1", Truth: "1", Kind: "3"}}},
		{envs.Action{Text: "2", Stop: envs.StopEnd}, envs.Step{Keep: 1, Done: true, Info: &envs.Info{FreeForm: true, FoundBy: "whole", Answer: "2", Truth: "1", Kind: "3"}}},
		{envs.Action{Text: "2 - 1", Stop: envs.StopEnd}, envs.Step{Keep: 5, Done: true, Info: &envs.Info{FreeForm: true, Unfinished: true, FoundBy: "whole", Answer: "2 - 1", Truth: "1", Kind: "3"}}},
		{envs.Action{Text: "1", Stop: envs.StopCancelled}, envs.Step{Keep: 1, Reward: math.NaN(), Done: true}},
	} {
		e, _ := begin(t, task)
		step := must.Get(e.Step(t.Context(), test.action))(t)
		expect.Equal(t, test.want, step, cmpopts.EquateNaNs(), fmt.Sprintf("%+v", test.action))
		expect.Fails(e.Step(t.Context(), test.action))(t, "an episode continues after its end")
	}
	open := newTask(t, envs.Setup{EvalOnly: true}, envs.Settings{"dataset": must.File(t, "q.jsonl", `{"prompt": "a"}`)})
	e, _ := begin(t, open)
	if step, err := e.Step(t.Context(), envs.Action{Text: "1"}); err != nil || step.Info != nil || !math.IsNaN(step.Reward) {
		t.Errorf("%+v, %v of a row without an answer", step, err)
	}
	why := open.(envs.Open).NoAnswers()
	expect.True(t, strings.Contains(why, `q.jsonl has no column "answer"`), "NoAnswers: %q", why)
}

// The program exits after each reply, refuses to continue once, and never replies in another case.
func TestTurns(t *testing.T) {
	path := must.File(t, "p.jsonl", `{"prompt": "a", "answer": 1}`+"\n")
	program := must.File(t, "other.sh", `IFS= read -r line
id=${line#*:}; id=${id%%,*}
case $line in *'"text":"bad"'*) echo "{\"id\":$id,\"error\":\"no\"}" ;;
*'"text":"odd"'*) echo "{\"id\":$id}" ;;
*'"text":"end"'*) echo "{\"id\":$id,\"done\":true}" ;;
*'"text":"chat"'*) echo hello ;;
*) echo "{\"id\":$id,\"text\":\"and?\"}" ;; esac
`)
	settings := envs.Settings{"dataset": path, "turns_cmd": "sh " + program, "max_turns": "3"}
	task := newTask(t, envs.Setup{EvalOnly: true}, settings)
	e, _ := begin(t, task)
	said := []envs.Message{{Role: envs.RoleUser, Content: "a"}}
	for turn := 1; turn <= 3; turn++ {
		step := must.Get(e.Step(t.Context(), envs.Action{Text: "1", Stop: envs.StopEnd}))(t)
		said = append(said, envs.Message{Role: envs.RoleAssistant, Content: "1"}, envs.Message{Role: envs.RoleUser, Content: "and?"})
		want := envs.Step{Keep: 1, Reply: "and?", Said: said}
		if turn == 3 {
			want = envs.Step{Keep: 1, Said: said[:len(said)-1], Reward: 1, Done: true, Info: &envs.Info{FreeForm: true, Correct: true, FoundBy: "whole", Answer: "1", Truth: "1"}}
		}
		expect.Equal(t, want, step, fmt.Sprintf("turn %d", turn))
	}
	for text, want := range map[string]string{
		"bad": `p.jsonl:1: turn program: the program reports "no"`, "odd": "neither text nor done", "chat": `invalid line "hello"`,
	} {
		e, _ := begin(t, task)
		expect.Failure(e.Step(t.Context(), envs.Action{Text: text, Stop: envs.StopEnd}))(t, want)
	}
	asText := newTask(t, envs.Setup{EvalOnly: true, Text: true}, settings)
	e, _ = begin(t, asText)
	if step, err := e.Step(t.Context(), envs.Action{Text: "2", Stop: envs.StopEnd}); err != nil || step.Append != "\nand?\n" || step.Reply != "" {
		t.Errorf("as text: %+v, %v", step, err)
	}
	if step, err := e.Step(t.Context(), envs.Action{Text: "1", Stop: envs.StopLength}); err != nil || !step.Done || !step.Info.Correct {
		t.Errorf("cut off: %+v, %v", step, err)
	}
}

// A turn program that does not reply in time costs the episode its reward, and the first time-out is told. One that never
// replies ends the run.
func TestTurnProgramThatHangs(t *testing.T) {
	path := must.File(t, "p.jsonl", `{"prompt": "a", "answer": 1}`+"\n")
	program := must.File(t, "hang.sh", "IFS= read -r line; exec sleep 600\n")
	var told []string
	setup := envs.Setup{EvalOnly: true, Tell: func(line string) { told = append(told, line) }}
	task := newTask(t, setup, envs.Settings{"dataset": path, "turns_cmd": "sh " + program, "turns_timeout": "0.05"})
	for range 3 {
		e, _ := begin(t, task)
		step, err := e.Step(t.Context(), envs.Action{Text: "1", Stop: envs.StopEnd})
		expect.True(t, err == nil && step.Done && math.IsNaN(step.Reward), "%+v, %v", step, err)
	}
	expect.True(t, len(told) == 1 && strings.Contains(told[0], "--turns-timeout"), "told %q", told)
	e, _ := begin(t, task)
	expect.Failure(e.Step(t.Context(), envs.Action{Text: "1", Stop: envs.StopEnd}))(t, "started 3 times without an answer")
}

func TestRightAnswer(t *testing.T) {
	v, err := rightAnswer(t.Context(), envs.Completion{Reward: 1})
	expect.True(t, v == 1 && err == nil, "%v, %v", v, err)
	expect.Fails(rightAnswer(t.Context(), envs.Completion{Reward: math.NaN()}))(t, "a row without an answer has a reward")
}

func FuzzReadReply(f *testing.F) {
	for _, seed := range []string{`{"id":1,"text":"a"}`, `{"id":1,"done":true}`, `{"id":1,"error":"e"}`, `{"id":1}`, "", "[]", `{"text":"a"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		a, err := readReply(line)
		expect.True(t, err != nil || a.Err != nil || a.Value.done || strings.TrimSpace(a.Value.text) != "", "%q says nothing", line)
	})
}

func FuzzSplitStop(f *testing.F) {
	for _, seed := range []string{"a,b", `\n`, `a\,b,\\`, ",", `\`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		all, err := splitStop(list)
		for _, one := range all {
			expect.True(t, err != nil || one != "", "%q has an empty text", list)
		}
	})
}

// A prompt may be a conversation, of which nothing is lost.
func TestConversations(t *testing.T) {
	const row = `{"prompt": [{"role": "user", "content": "2+2="}, {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}, {"role": "tool", "content": "4"}], "answer": 4, "tools": [{"name": "add"}], "chat_template_kwargs": {"think": false}}`
	path := must.File(t, "p.jsonl", row)
	_, shown := begin(t, newTask(t, envs.Setup{EvalOnly: true}, envs.Settings{"dataset": path}))
	var roles []string
	for _, m := range shown.Messages {
		data := must.Get(json.Marshal(m))(t)
		roles = append(roles, string(data))
	}
	want := []string{`{"role":"user","content":"2+2="}`, `{"role":"assistant","content":"","tool_calls":[{"function":{"name":"add"}}]}`, `{"role":"tool","content":"4"}`}
	expect.Equal(t, want, roles, "messages")
	expect.True(t, len(shown.Tools) == 1 && len(shown.TemplateArgs) == 1, "tools %v, arguments %v", shown.Tools, shown.TemplateArgs)
	expect.Failure(envs.New("prompts", envs.Setup{EvalOnly: true, Text: true}, envs.Settings{"dataset": path}))(t, "p.jsonl:1: messages need a chat template")
}

// With splits, a run trains on the training split and evaluates on the validation split; the eval command uses the test
// split.
func TestMixture(t *testing.T) {
	rows := func(name string, n int) string {
		text := ""
		for i := range n {
			text += fmt.Sprintf(`{"prompt":"%s%d","answer":1}`+"\n", name, i)
		}
		return must.File(t, name+".jsonl", text)
	}
	twice := must.File(t, "twice.jsonl", `{"prompt":"a4","answer":1}
{"prompt":"c","answer":1}
`)
	settings := envs.Settings{"dataset": rows("a", 5), "dataset_mix": fmt.Sprintf("%s=0.5,%s=2", rows("b", 4), twice)}
	task, n := newTask(t, envs.Setup{HeldOut: 1}, settings), map[string]int{}
	for i := range task.Len(envs.Train) {
		e := must.Get(task.Episode(envs.Train, i))(t)
		n[must.Get(e.Reset(t.Context()))(t).Messages[0].Content]++
	}
	// a4 is held out.
	expect.Equal(t, map[string]int{"a0": 1, "a1": 1, "a2": 1, "a3": 1, "b1": 1, "b3": 1, "c": 2}, n)
	settings["dataset_mix"] = filepath.Join(t.TempDir(), "missing.jsonl") + "=1"
	expect.Failure(envs.New("prompts", envs.Setup{HeldOut: 1}, settings))(t, "missing.jsonl")
}

func TestCurriculum(t *testing.T) {
	path := must.File(t, "levels.jsonl", `{"prompt":"c","answer":1,"level":3}
{"prompt":"a","answer":1,"level":"1"}
{"prompt":"d","answer":1,"level":4.5}
{"prompt":"b","answer":1,"level":-2e0}
`)
	judged := must.File(t, "judged.jsonl", `{"prompt":"e","answer":1}`)
	settings := envs.Settings{"dataset": path, "eval_dataset": judged, "curriculum_column": "level"}
	task, order := newTask(t, envs.Setup{}, settings), ""
	for i := range 8 {
		e := must.Get(task.Episode(envs.Train, i))(t)
		order += must.Get(e.Reset(t.Context()))(t).Messages[0].Content
	}
	expect.Same(t, "bacdbacd", order, "order")
	for _, c := range []struct{ column, level, want string }{
		{"level", `"hard"`, `column "level"`}, {"level", "null", `column "level"`}, {"depth", "1", "option curriculum_column"},
	} {
		settings["dataset"], settings["curriculum_column"] = must.File(t, "wrong.jsonl", `{"prompt":"c","answer":1,"level":`+c.level+`}`), c.column
		expect.Failure(envs.New("prompts", envs.Setup{}, settings))(t, c.want)
	}
}

func TestPartsOfADataSet(t *testing.T) {
	file := func(name string, n int) []string {
		var rows strings.Builder
		for i := range n {
			fmt.Fprintf(&rows, `{"prompt": "%s %d", "answer": 1}`+"\n", name, i)
		}
		return []string{must.File(t, name+".jsonl", rows.String())}
	}
	train := dataset.Part{Split: dataset.Train, Files: append(file("train", 4), file("more", 3)...)}
	sets := map[string][]dataset.Part{"train": {train}, "tested": {train, {Split: dataset.Test, Files: file("test", 1)}}}
	for _, c := range []struct {
		dataset, eval string
		judging       bool
		train, judged int
	}{
		{"train", "", false, 5, 2}, // held out
		{"train", "", true, 0, 7},
		{"tested", "", true, 0, 1},
		{"train", "tested", false, 7, 1},
	} {
		setup := envs.Setup{HeldOut: 2, EvalOnly: c.judging, Context: t.Context(), Find: func(ctx context.Context, name, config string, splits ...string) ([]dataset.Part, error) {
			expect.True(t, ctx == t.Context() && (config == "" || name == c.dataset), "%s: looked up with configuration %q", name, config)
			return sets[name], nil
		}}
		settings := envs.Settings{"dataset": c.dataset, "dataset_config": "c"}
		if c.eval != "" {
			settings["eval_dataset"] = c.eval
		}
		task := must.Get(envs.New("prompts", setup, settings))(t)
		expect.Same(t, c.train, task.Len(envs.Train), "%+v: training prompts", c)
		expect.Same(t, c.judged, task.Len(envs.Eval), "%+v: evaluation prompts", c)
	}
}

// TestHacks: what policies try instead of an answer scores nothing by any rule.
func TestHacks(t *testing.T) {
	count := 0
	for gold, all := range hacks.Answers {
		for _, text := range all {
			count++
			for _, match := range []answer.Match{answer.Math, answer.Exact, answer.Numeric, answer.Units} {
				began := time.Now()
				info := verify(text, gold, match)
				info.CheckForm(answer.FinalForm)
				expect.True(t, !info.Correct, "%s: %q is taken for %s, found by %s as %q", match, text, gold, info.FoundBy, info.Answer)
				took := time.Since(began)
				expect.True(t, took <= 2*time.Second, "%s: %q took %v", match, text, took)
			}
		}
	}
	expect.True(t, count >= 80, "only %d hacks", count)
	for _, text := range strings.Split("4|4.|The answer is 4|**4**|$4$|\\boxed{4}|x = 4|74 - 70 = 4|Answer: 4|<answer>4</answer>|[ANSWER] 4", "|") {
		for _, match := range []answer.Match{answer.Math, answer.Numeric, answer.Units} {
			info := verify(text, "4", match)
			info.CheckForm(answer.FinalForm)
			expect.True(t, info.Correct, "%s: %q is not taken for 4, found by %s as %q", match, text, info.FoundBy, info.Answer)
		}
	}
}
