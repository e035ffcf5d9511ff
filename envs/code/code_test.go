package code

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/sandbox"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

const humanEvalRow = `{"task_id":"X/0","prompt":"def add(a, b):\n    \"\"\"Add.\"\"\"\n","entry_point":"add","canonical_solution":"    return a + b\n","test":"def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate([1], [2]) == [1, 2]\n    assert candidate('a', 'b') == 'ab'\n"}`

// TestVerdicts runs programs against tests, most of all programs that try to pass without solving the problem.
func TestVerdicts(t *testing.T) {
	j := newTestGrader(t)
	problems := must.Get(Read(&dataset.Faults{}, must.File(t, "p.jsonl", humanEvalRow), "python", ""))(t)
	p := &problems[0]
	for _, test := range []struct {
		name, body string
		class      Class
		passed     int
	}{
		{"right", "    return a + b\n", Pass, 3},
		{"wrong", "    return a - b\n", Wrong, 0},
		{"partly right", "    return 3 if a == 1 else None\n", Wrong, 1},
		{"dies after a test", "    if a == 1: return 3\n    import os; os._exit(1)\n", Runtime, 1},
		{"empty", " \n", Empty, 0},
		{"syntax", "    retrun a\n", Syntax, 0},
		{"raises", "    raise KeyError(a)\n", Runtime, 0},
		{"endless", "    while True: pass\n", Timeout, 0},
		{"much memory", "    x = []\n    while True: x.append(b'x' * (1 << 24))\n", Memory, 0},
		{"exits with 0", "    import os; os._exit(0)\n", Runtime, 0},
		{"exits when it is read", "    pass\nimport os\nos._exit(0)\n", Runtime, 0},
		{"sys.exit", "    pass\nimport sys\nsys.exit(0)\n", Runtime, 0},
		{"exits in a destructor", "    return K()\nclass K:\n  def __del__(self):\n    import os; os._exit(0)\n", Wrong, 0},
		{"equals all", "    return K()\nclass K:\n  def __eq__(self, other): return True\n  __ne__ = lambda s, o: False\n", Wrong, 0},
		{"equals all, a number", "    return K(5)\nclass K(int):\n  def __eq__(self, other): return True\n  __hash__ = int.__hash__\n", Wrong, 0},
		{"equals all, a text", "    return K('x')\nclass K(str):\n  def __eq__(self, other): return True\n  __hash__ = str.__hash__\n", Wrong, 0},
		{"equals all, a list", "    return K([5])\nclass K(list):\n  def __eq__(self, other): return True\n  def __iter__(self): return iter([1, 2])\n", Wrong, 0},
		{"equals all by a class of classes", "    return K\nclass M(type):\n  def __eq__(self, other): return True\n  __hash__ = type.__hash__\nclass K(metaclass=M): pass\n", Wrong, 0},
		{"patches built-ins", "    return None\nimport builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.AssertionError = Exception\nbuiltins.len = lambda x: 0\n", Runtime, 0},
		{"raises AssertionError", "    raise AssertionError\n", Runtime, 0},
		{"looks at frames", "    import sys\n    f = sys._getframe()\n    while f:\n        for k, v in list(f.f_locals.items()) + list(f.f_globals.items()):\n            if ''.join(['candi', 'date(1']) in str(v) or 'nonce' == k: return 3\n        f = f.f_back\n    return None\n", Wrong, 0},
		{"looks at objects", "    import gc\n    for o in gc.get_objects():\n        if isinstance(o, str) and ''.join(['candi', 'date(1']) in o: return 3\n    return None\n", Wrong, 0},
		{"reads files", "    import os, glob\n    for d in ['/tmp', '/', '/proc/self/fd', '.']:\n        try:\n            for n in os.listdir(d):\n                if ''.join(['candi', 'date(1']) in open(os.path.join(d, n), errors='replace').read(): return 3\n        except OSError: pass\n    return None\n", Wrong, 0},
		{"prints verdicts", "    return None\nprint('P' * 99)\nprint('#0')\nprint('.')\n", Wrong, 0},
		{"writes to the other side", "    return None\nimport os\nos.write(4, b'12\\nl1:s6:loaded')\nos.write(4, b'x' * 99)\n", Runtime, 0},
		{"answers before it is asked", "    return None\nimport os\nm = b'l3:s5:valuei3;l2:i1;i2;'\nos.write(4, b'12\\nl1:s6:loaded')\nfor i in range(3): os.write(4, b'%d\\n' % len(m) + m)\nos.close(3)\nimport time; time.sleep(1)\n", Runtime, 0},
		{"forks", "    import os\n    if os.fork() == 0:\n        while True: pass\n    return None\n", Wrong, 0},
		{"a hundred thousand nested lists", "    x = []\n    for i in range(100000): x = [x]\n    return x\n", Runtime, 0},
		{"itself in itself", "    x = []\n    x.append(x)\n    return x\n", Runtime, 0},
		{"an endless iterator", "    import itertools\n    return itertools.count()\n", Wrong, 0},
		{"an endless generator", "    while True: yield a\n", Runtime, 0},
		{"a long text", "    return 'x' * (1 << 25)\n", Runtime, 0},
		{"changes its arguments", "    if isinstance(a, list): a.extend(b); return a\n    return a + b\n", Pass, 3},
		{"writes and is right", "    print('x' * 1000)\n    return a + b\n", Pass, 3},
		{"writes too much", "    print('x' * 1000000)\n    return a + b\n", Output, 0},
		{"NUL", "    return a + b\x00\n", Syntax, 0},
		{"longer than any program", "    return a + b\n" + strings.Repeat("#", maxProgram), Syntax, 0},
		{"a lone surrogate", "    return '\\ud800'\n", Wrong, 0},
	} {
		v := must.Get(j.Run(t.Context(), p, p.program(test.body), p.Tests))(t)
		expect.True(t, v.Class == test.class && (v.Passed() == test.passed || v.Class == Output) && (v.Passed() <= 0 || v.Total == 3),
			"%s: %+v, want %s and %d of 3 tests", test.name, v, test.class, test.passed)
	}
}

// TestLayouts reads problems in each layout and runs their solutions.
func TestLayouts(t *testing.T) {
	j := newTestGrader(t)
	folder := must.Folder(t, map[string]string{
		"problem_1/problem_description.txt": "Add one.", "problem_1/python_sol.py": "def f(x): return x + 1", "problem_1/q_sol.q": "f:{x+1}", "problem_1/q_test_case_1.q": "show f 1",
		"problem_1/q_exact_ans_test_case_1.txt": "2", "problem_1/test_case_1.py": "print(f(1))", "problem_1/python_exact_ans_test_case_1.txt": "2\n",
		"problem_1/test_case_10.py": "print(f(10))", "problem_1/python_exact_ans_test_case_10.txt": "11",
	})
	for _, test := range []struct {
		path  string
		tests int
	}{
		{must.File(t, "h.jsonl", humanEvalRow), 3},
		{must.File(t, "m.json", `[{"task_id":126,"prompt":"Add.","code":"def sum(a,b):\r\n  return a+b","test_imports":["import math"],"test_list":["assert sum(1,2)==3","assert math.isclose(sum(.1,.2),.3)"]}]`), 2},
		{must.File(t, "io.jsonl", `{"prompt":"Double it.","solution":"print(2*int(input()))","tests":[{"input":"4\n","output":"8"},{"input":"-1","output":"-2\n"}]}`), 2},
		{must.File(t, "call.jsonl", `{"prompt":"Double.","solution":"def f(x): return 2*x","tests":[{"call":"f(4)","expect":"8"},{"assert":"assert f('a') == 'aa'"}],"hidden_tests":[{"call":"f(0)","expect":"0"}]}`), 3},
		{must.File(t, "program.jsonl", `{"prompt":"A stack.","solution":"class S:\n  def __init__(self): self.x = []\n  def push(self, v): self.x.append(v)\n  def pop(self): return self.x.pop()","tests":"s = S()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\nassert s.pop() == 1\ntry:\n  s.pop()\n  assert False\nexcept IndexError:\n  pass"}`), 3},
		{must.File(t, "entry.jsonl", `{"prompt":"Add.","entry_point":"f","solution":"def f(x): return 2*x","tests":[{"call":"f(4)","expect":"8"}]}`), 1},
		{must.File(t, "script.jsonl", `{"prompt":"Double.","solution":"def f(x): return 2*x","tests":[{"script":"print(f(4))","output":"8"}]}`), 1},
		{folder, 2},
	} {
		problems, err := Read(&dataset.Faults{}, test.path, "python", QToPython)
		if err != nil || len(problems) != 1 {
			t.Errorf("%s: %v, %v", test.path, problems, err)
			continue
		}
		p := &problems[0]
		for program, want := range map[string]bool{p.complete(p.Solution): true, p.complete("x = 1"): false} {
			v, err := j.Run(t.Context(), p, program, append(p.Tests, p.Hidden...))
			expect.True(t, err == nil && (v.Class == Pass) == want && (!want || v.Passed() == test.tests), "%s: %q: %+v, %v", filepath.Base(test.path), program, v, err)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"empty.jsonl":    {"", "empty"},
		"nothing.jsonl":  {`{"tests":[]}`, "the problem has no text"},
		"untested.jsonl": {`{"prompt":"x"}`, "the problem has no tests"},
		"list.jsonl":     {`{"prompt":"x","tests":[1]}`, "test 1 is not an object"},
		"fields.jsonl":   {`{"prompt":"x","tests":[{"inpt":"1"}]}`, "no output, no call"},
		"half.jsonl":     {`{"prompt":"x","tests":[{"call":"f(1)"}]}`, "call and expect"},
		"number.jsonl":   {`{"prompt":3,"tests":"assert 1"}`, `field "prompt" is not text`},
		"tests.jsonl":    {`{"prompt":"x","tests":3}`, "neither a list nor a program"},
		"check.jsonl":    {`{"prompt":"x","check":"def check(c): pass"}`, "entry_point"},
		"twice.jsonl":    {`{"name":"a","prompt":"x","tests":"assert 1"}` + "\n" + `{"name":"a","prompt":"y","tests":"assert 1"}`, `twice.jsonl:2: duplicate problem name "a"`},
		"nul.jsonl":      {`{"prompt":"x\u0000","tests":"assert 1"}`, "NUL"},
	} {
		expect.Failure(Read(&dataset.Faults{}, must.File(t, name, test.text), "python", ""))(t, test.want, name)
	}
	folder := filepath.Dir(must.File(t, "a/problem_description.txt", "x"))
	expect.Failure(Read(&dataset.Faults{}, filepath.Dir(folder), "q", PythonToQ))(t, "reading python_sol.py")
	must.Do(t, errors.Join(os.WriteFile(folder+"/python_sol.py", nil, 0o600), os.WriteFile(folder+"/q_test_case_1.q", []byte("f 1"), 0o600)))
	expect.Failure(Read(&dataset.Faults{}, filepath.Dir(folder), "q", PythonToQ))(t, "q_exact_ans_test_case_1.txt")
	for task, language := range map[string]string{QToPython: "q", DescriptionToQ: "python", PythonToQ: "python"} {
		expect.Failure(Read(&dataset.Faults{}, filepath.Dir(folder), language, task))(t, "does not fit language "+language)
	}
	expect.Failure(Read(&dataset.Faults{}, must.File(t, "q.jsonl", humanEvalRow), "q", ""))(t, "only with language python")
}

func TestExtract(t *testing.T) {
	const bad, good = "```python\ndef inc(x):\n    return 0\n```\n", "def inc(x):\n    return x + 1"
	for _, test := range []struct {
		text      string
		reasoning bool
		want      string
		formatted bool
	}{
		{"    return 1\n", false, "    return 1", true},
		{"Here:\n```python\nx = 1\n```\nDone.", false, "x = 1", true},
		{"```\na\n``` and ```python\nb\n```", false, "b", true},
		{"```py\nnot closed", false, "not closed", true},
		{"<reasoning>why</reasoning><answer>\n```q\nf:{x}\n```\n</answer>", true, "f:{x}", true},
		{"<ANSWER>x</ANSWER>", true, "x", true},
		{"The final answer: y", true, "y", false},
		{"answer: y", false, "answer: y", true},
		{"", false, "", false},
		{"<think>\n" + bad + "No.\n</think>\n```python\n" + good + "\n```", false, good, true},
		{"First\n" + bad + "No.\n</think>\n\n```python\n" + good + "\n```", false, good, true},
		{"<think>\nAdd one.\n</think>\n" + good, false, good, true},
		{"```python\r\ndef inc(x):\r\n    return x + 1\r\n```\r\n", false, good, true},
		{"```python title=\"a.py\"\n" + good + "\n```", false, good, true},
		{"```Python3 {.numberLines}\n" + good + "\n```", false, good, true},
		{"~~~~python\n" + good + "\n~~~~", false, good, true},
		{"````python\n" + good + "\n```\n````", false, good + "\n```", true},
		{bad + "Better:\n```python\n" + good + "\n```", false, good, true},                          // the last
		{"```python\n" + good + "\n```\nUse it:\n```python\nprint(inc(1))\n```", false, good, true}, // the one with the function
		{"```\n" + good + "\n```\nOutput:\n```\n2\n```", false, good, true},                         // also without a language
		{"```python\n" + good + "\n```\nOr:\n```python\ndef inc(x):\n    ret", false, good, true},   // the last is cut
		{"```bash\npip install x\n```\n```python\n" + good, false, good, true},                      // the only one in the language
		{"1. ```python\n   x\n   ```\n2. ```text\ny\n```", false, "   x", true},                     // in a list
		{"```python\nasync def inc(x):\n    pass\n```\n```python\nincrement = 1\n```", false, "async def inc(x):\n    pass", true},
	} {
		got, formatted := Extract(test.text, "python", test.reasoning, "inc")
		expect.True(t, got == test.want && formatted == test.formatted, "%q: %q, %v", test.text, got, formatted)
	}
}

// TestWholePrograms: an answer that repeats the prefix replaces it; what must come first does.
func TestWholePrograms(t *testing.T) {
	const whole = "def inc(x):\n    return x + 1\n"
	for _, test := range []struct{ prefix, answer, want string }{
		{"def inc(x):\n    \"\"\"One more.\"\"\"\n", "    return x + 1\n", "def inc(x):\n    \"\"\"One more.\"\"\"\n    return x + 1\n"},
		{"def inc(x):\n", whole, "def inc(x):\n    pass\n\n" + whole},
		{"def inc(x):\n", "from __future__ import annotations\n" + whole, "from __future__ import annotations\ndef inc(x):\n    pass\n\n" + whole},
		{"def inc(x):\n", "    return x + 1\n\n" + whole, "def inc(x):\n    return x + 1\n\n" + whole}, // continues
		{"def inc(x):\n    return ", whole, whole},
		{"def inc(x):\n    return ", "x + 1", "def inc(x):\n    return x + 1"},
	} {
		expect.Same(t, test.want, (&Problem{Prefix: test.prefix, Entry: "inc"}).program(test.answer), "%q", test.answer)
	}
}

func TestOneLines(t *testing.T) {
	expect.True(t, len(families) >= 30, "%d families", len(families))
	j := newTestGrader(t)
	task := must.Get(envs.New("code", envs.Setup{Seed: 1, Text: true}, envs.Settings{"held_out_families": "2"}))(t)
	texts := map[string]envs.Part{}
	held := 0
	for _, part := range []envs.Part{envs.Train, envs.Eval, envs.Warmup} {
		for i := range 300 {
			e := must.Get(task.Episode(part, i))(t)
			p := e.(demonstrated).problem
			other, seen := texts[p.Text]
			expect.True(t, !seen || other == part, "%q is in %s and in %s", p.Text, other, part)
			texts[p.Text] = part
			if strings.HasPrefix(p.Kind, heldOut) {
				held++
				expect.True(t, part == envs.Eval, "%q is in %s", p.Name, part)
			}
			if i%20 == 0 {
				v, err := j.Run(t.Context(), &p, p.complete(p.Solution), p.Tests)
				expect.True(t, err == nil && v.Class == Pass, "%q: %+v, %v", p.Text, v, err)
			}
		}
	}
	expect.True(t, held != 0, "no problem is of a family that is held out")
	again := must.Get(envs.New("code", envs.Setup{Seed: 1, Text: true}, nil))(t)
	a, _ := again.Episode(envs.Train, 250)
	again, _ = envs.New("code", envs.Setup{Seed: 1, Text: true}, nil)
	_, _ = again.Episode(envs.Train, 10)
	b, _ := again.Episode(envs.Train, 250)
	expect.Equal(t, a.(demonstrated).problem, b.(demonstrated).problem, "an episode depends on those made before it")
}

// TestSlips: the slipped demonstrations of every family fail their tests.
func TestSlips(t *testing.T) {
	j := newTestGrader(t)
	source := &oneLines{seed: 3, slips: .5, parts: map[envs.Part]*sequence{}}
	slipped, seen := 0, map[string]bool{}
	for i := range 1000 {
		p := source.at(envs.Warmup, i)
		if p.Demonstration == "" {
			continue
		}
		slipped++
		if seen[p.Kind] || p.Demonstration == p.Solution { // two texts of a problem may be the same
			continue
		}
		seen[p.Kind] = true
		v, err := j.Run(t.Context(), &p, p.complete(p.Demonstration), p.Tests)
		expect.True(t, err == nil && v.Class != Pass, "%q: %q: %+v, %v", p.Text, p.Demonstration, v, err)
		got := (demonstrated{&episode{task: &task{short: true, asText: true}, problem: p}}).Solution()
		expect.True(t, got == p.Demonstration, "%q is imitated, want %q", got, p.Demonstration)
	}
	expect.True(t, slipped >= 430 && slipped <= 570 && len(seen) == len(families), "%d of 1,000 solutions are wrong, of %d families", slipped, len(seen))
	for _, part := range []envs.Part{envs.Train, envs.Eval} {
		for i := range 100 {
			p := source.at(part, i)
			expect.True(t, p.Demonstration == "", "%s: %q", part, p.Demonstration)
		}
	}
}

// TestFunctionBodies: a stop string is no part of a program, and held-out problems do not count in max_train_problems.
func TestFunctionBodies(t *testing.T) {
	newTestGrader(t)
	rows := ""
	for i := range 6 {
		rows += strings.NewReplacer("X/0", fmt.Sprint("X/", i), "Add.", fmt.Sprint("Add ", i)).Replace(humanEvalRow) + "\n"
	}
	task := must.Get(envs.New("code", envs.Setup{HeldOut: 2, Text: true}, envs.Settings{"dataset": must.File(t, "p.jsonl", rows), "max_train_problems": "3"}))(t)
	train, held := task.Len(envs.Train), task.Len(envs.Eval)
	expect.True(t, train == 3 && held == 2, "%d training and %d held-out problems, want 3 and 2", train, held)
	e := must.Get(task.Episode(envs.Train, 0))(t)
	must.Get(e.Reset(t.Context()))(t)
	got := must.Get(e.Step(t.Context(), envs.Action{Text: "    return a + b\n\ndef ", Stop: envs.StopString}))(t)
	expect.True(t, got.Info.Correct, "%+v", got.Info)
}

// TestEpisode plays single-turn and multi-turn problems.
func TestEpisode(t *testing.T) {
	newTestGrader(t)
	path := must.File(t, "p.jsonl", `{"name":"a","prompt":"Double.","solution":"def f(x): return 2*x","tests":[{"call":"f(4)","expect":"8"},{"call":"f(0)","expect":"0"}],"hidden_tests":[{"call":"f(1)","expect":"2"}]}`+
		"\n"+`{"name":"b","prompt":"Half.","solution":"def f(x): return x/2","tests":[{"call":"f(4)","expect":"2"}]}`)
	task := must.Get(envs.New("code", envs.Setup{HeldOut: 1}, envs.Settings{"dataset": path, "max_turns": "2", "perfect_bonus": "3", "reward_scale": "2"}))(t)
	play := func(part envs.Part, actions ...string) (last envs.Step) {
		e := must.Get(task.Episode(part, 0))(t)
		must.Get(e.Reset(t.Context()))(t)
		for _, action := range actions {
			last = must.Get(e.Step(t.Context(), envs.Action{Text: action, Stop: envs.StopEnd}))(t)
		}
		_, err := e.Step(t.Context(), envs.Action{})
		expect.True(t, !last.Done || err != nil, "a step after the end is taken")
		return last
	}
	got := play(envs.Train, "```python\ndef f(x): return x + x\n```")
	expect.True(t, got.Done && got.Reward == 2*(1+3) && got.Info.Correct && got.Info.Tests.Total == 2, "%+v", got)
	got = play(envs.Train, "def f(x): return 8")
	expect.True(t, !got.Done && got.Reward == 0 && strings.Contains(got.Reply, "1 of 2 tests pass") && !strings.Contains(got.Reply, "f(0)"), "%+v", got)
	got = play(envs.Train, "no", "def f(x): return 8")
	expect.True(t, got.Done && got.Reward == 2*.5 && !got.Info.Correct, "%+v", got)
	e, _ := task.Episode(envs.Train, 0)
	_, _ = e.Reset(t.Context())
	if got, _ := e.Step(t.Context(), envs.Action{Stop: envs.StopCancelled}); !got.Done || !math.IsNaN(got.Reward) {
		t.Errorf("%+v", got)
	}
	for _, test := range []struct {
		settings envs.Settings
		want     string
	}{
		{envs.Settings{"dataset": must.File(t, "bad.jsonl", `{"name":"a","prompt":"Double.","solution":"def f(x): return x","tests":[{"call":"f(4)","expect":"8"}]}`+"\n"+`{"prompt":"y","tests":"assert 1"}`)}, `problem "a": the reference solution fails its tests (wrong: a test failed)`},
		{envs.Settings{"dataset": must.File(t, "tests.jsonl", `{"name":"a","prompt":"Double.","solution":"def f(x): return x","tests":"assert f(1) == ("}`+"\n"+`{"prompt":"y","tests":"assert 1"}`)}, "the tests do not parse: SyntaxError:"},
		{envs.Settings{"dataset": must.File(t, "none.jsonl", `{"name":"a","prompt":"Double.","solution":"def f(x): return x","tests":"f(1)"}`+"\n"+`{"prompt":"y","tests":"assert 1"}`)}, "the tests assert nothing"},
		{envs.Settings{"language": "q"}, "option language: q needs --dataset"},
		{envs.Settings{"language": "pepper", "dataset": must.File(t, "io.jsonl", `{"prompt":"a","tests":[{"output":"1"}]}`+"\n"+`{"prompt":"b","tests":[{"output":"1"}]}`), "interpreter": "/nowhere/chili"}, "no interpreter for pepper found; pip install chili-pie"},
	} {
		expect.Failure(envs.New("code", envs.Setup{HeldOut: 1}, test.settings))(t, test.want)
	}
}

func TestQuality(t *testing.T) {
	const good = "def f(x):\n    \"\"\"Double it.\"\"\"\n    # twice\n    return 2 * x\n"
	for _, test := range []struct {
		name       string
		value      func(string) float64
		text       string
		low, limit float64
	}{
		{"style", Style, good, 1, 1}, {"style", Style, "x = 1 \ny = 2\n", .5, .5}, {"style", Style, "", 0, 0}, {"style", Style, "x = 1; y = 2\n", 0, 0},
		{"documentation", Documentation, good, 1, 1}, {"documentation", Documentation, "def f(x):\n    return x\n", 0, 0},
		{"complexity", Complexity, good, 1, 1}, {"complexity", Complexity, "def f(x):\n" + strings.Repeat("    if x: pass\n", 19), .5, .5},
	} {
		got := test.value(test.text)
		expect.True(t, got >= test.low-1e-9 && got <= test.limit+1e-9, "%s of %q is %v", test.name, test.text, got)
	}
}

// TestRewards computes each reward by hand, also of runs that ended before the last test.
func TestRewards(t *testing.T) {
	o := &options{BaseWeight: 1, PerfectWeight: 2, PerfectBonus: 3, TimeBonus: 4, Scale: .5, Timeout: 5}
	for _, test := range []struct {
		verdict                       Verdict
		tests, partial, perfect, time float64
	}{
		{Verdict{Class: Pass, Tests: []bool{true, true, true, true}, Total: 4, CPU: 1}, .5 * (1 + 6 + 3.2), 1, 1, .8},
		{Verdict{Class: Pass, Tests: []bool{true}, Total: 1, CPU: 6}, .5 * (1 + 6), 1, 1, 0},
		{Verdict{Class: Wrong, Tests: []bool{true, false, true, false}, Total: 4, CPU: 1}, .25, .5, 0, 0},
		{Verdict{Class: Timeout, Tests: []bool{true}, Total: 4, CPU: 5}, .125, .25, 0, 0}, // three did not run
		{Verdict{Class: Runtime, Total: 4}, 0, 0, 0, 0},
	} {
		v := test.verdict
		c := envs.Completion{Info: &envs.Info{Tests: &envs.Tests{Class: string(v.Class), Passed: v.Passed(), Total: v.Total, Seconds: v.CPU, Program: "x = 1\n"}}}
		want := map[string]float64{"tests": test.tests, "partial": test.partial, "perfect": test.perfect, "time": test.time, "style": 1, "documentation": 0, "complexity": 1, "quality": 2. / 3}
		for _, r := range rewards {
			got, err := r.New(o, nil)(context.Background(), c)
			expect.True(t, err == nil && math.Abs(got-want[r.Name]) <= 1e-12, "%s of %+v: %v, %v, want %v", r.Name, v, got, err, want[r.Name])
			expect.Fails(r.New(o, nil)(context.Background(), envs.Completion{Reward: math.NaN()}))(t, "%s has a value of a program that was not run", r.Name)
		}
		got := o.reward(v)
		expect.True(t, math.Abs(got-test.tests) <= 1e-12, "reward of %+v: %v, want %v", v, got, test.tests)
	}
}

func FuzzExtract(f *testing.F) {
	f.Add("```python\nx\n```", true)
	f.Add("<answer>answer: ```", false)
	f.Fuzz(func(t *testing.T, text string, reasoning bool) {
		program, _ := Extract(text, "python", reasoning, "f")
		expect.Require(t, len(program) <= len(text), "%q is longer than %q", program, text)
	})
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(humanEvalRow))
	f.Add([]byte(`{"prompt":"x","tests":[{"call":"f()","expect":"1"},{"input":"","output":""}],"hidden_tests":"x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "p.jsonl")
		must.Do(t, os.WriteFile(path, data, 0o644))
		problems, err := Read(&dataset.Faults{}, path, "python", "")
		expect.Require(t, (err == nil) != (len(problems) == 0), "%d problems, %v", len(problems), err)
	})
}

// TestPepper runs programs in pepper, if its interpreter is installed.
func TestPepper(t *testing.T) {
	j, err := NewGrader(t.Context(), sandbox.Pepper, "", 5*time.Second, false)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	problems := must.Get(Read(&dataset.Faults{}, must.File(t, "p.jsonl", `{"prompt":"Double.","solution":"f:{[x] 2*x}","tests":[{"script":"show f 4;","output":"8"},{"script":"show sum f[1 2 3]","output":"12"}],"hidden_tests":[{"script":"show f -1;","output":"-2"}]}`), sandbox.Pepper, ""))(t)
	p := &problems[0]
	for _, test := range []struct {
		program string
		class   Class
		passed  int
	}{
		{p.Solution, Pass, 3},
		{"f:{[x] x+x}; // twice", Pass, 3},
		{"// nothing else\nf:{[x] 2*x};\n", Pass, 3},
		{"f:{[x] x*x};", Wrong, 0},
		{"f:{[x] 8};", Wrong, 1},
		{"f:{[x] 2*", Syntax, 0},
		{"g:{[x] x};", Runtime, 0},
		{"f:{[x] 2*x};\nexit 0;", Pass, 3},
		{"f:{[x] exit 0};", Wrong, 0},
		{"show 8; show 12; show -2; exit 0; f:1;", Runtime, 0},
	} {
		v, err := j.Run(t.Context(), p, test.program, slices.Concat(p.Tests, p.Hidden))
		expect.True(t, err == nil && v.Class == test.class && v.Passed() == test.passed, "%q: %+v, %v, want %s and %d tests", test.program, v, err, test.class, test.passed)
	}
}

// TestBadRows: problems that cannot be used are all listed, or dropped and counted: bad rows, and solutions that fail.
func TestBadRows(t *testing.T) {
	newTestGrader(t)
	const good = `{"name":"%d","prompt":"Double %[1]d.","solution":"def f(x): return 2*x","tests":"assert f(2) == 4"}` + "\n"
	text := `{"name":"wrong","prompt":"Triple.","solution":"def f(x): return 2*x","tests":"assert f(2) == 6"}` + "\n"
	for i := range 4 {
		text += fmt.Sprintf(good, i)
	}
	text += fmt.Sprintf(good, 3) + `{"prompt":3}`
	path := must.File(t, "p.jsonl", text)
	options := func(onBadRow string) *options {
		return &options{Dataset: path, Language: "python", Turns: 1, Timeout: 2, CheckSolutions: true, OnBadRow: dataset.OnBadRow{OnBadRow: onBadRow}}
	}
	expect.Failure(options("error").Task(envs.Setup{HeldOut: 1}))(t, "2 rows cannot be used", "p.jsonl:6: duplicate problem name")
	var told []string
	o := options("skip")
	made := must.Get(o.Task(envs.Setup{HeldOut: 1, Tell: func(line string) { told = append(told, line) }}))(t)
	defer made.(*task).Close()
	expect.Same(t, 3, made.Len(envs.Train), "training problems")
	expect.True(t, len(told) == 2 && strings.Contains(told[0], "2 rows skipped") && strings.Contains(told[1], "the reference solution fails its tests"), "told %q", told)
}

// TestChecksAreAnnounced: a check of many solutions prints what it does, and ends with the context.
func TestChecksAreAnnounced(t *testing.T) {
	var rows strings.Builder
	for i := range quietChecks + 1 {
		fmt.Fprintf(&rows, `{"name":"%d","prompt":"Give %[1]d.","solution":"def f(): return %[1]d","tests":[{"call":"f()","expect":"%[1]d"}]}`+"\n", i)
	}
	o := &options{Dataset: must.File(t, "p.jsonl", rows.String()), Language: "python", Turns: 1, Timeout: 2, CheckSolutions: true}
	var told []string
	tell := func(line string) { told = append(told, line) }
	made := must.Get(o.Task(envs.Setup{HeldOut: 1, Tell: tell}))(t)
	made.(*task).Close()
	expect.True(t, len(told) != 0 && strings.Contains(told[0], "51 problems") && strings.Contains(told[0], "--check-solutions=false"), "told %q", told)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := o.Task(envs.Setup{HeldOut: 1, Context: ctx})
	expect.True(t, errors.Is(err, context.Canceled), "error %v, want context.Canceled", err)
}
