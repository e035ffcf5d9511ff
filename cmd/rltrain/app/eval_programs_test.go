package app

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// TestEvalPrograms grades the programs in a file.
func TestEvalPrograms(t *testing.T) {
	dir := t.TempDir()
	save := func(name, text string) string {
		path := filepath.Join(dir, name)
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	problems := save("p.jsonl", `{"task_id":"a","prompt":"Double.","tests":[{"call":"f(2)","expect":"4"},{"call":"f(0)","expect":"0"}]}`+"\n"+
		`{"task_id":"b","prompt":"Half.","tests":"assert f(2) == 1"}`)
	rows := save("c.jsonl", `{"task_id":"a","completion":"def f(x): return 2*x"}`+"\n"+`{"task_id":"a","completion":"def f(x): return 4"}`+"\n"+`{"task_id":"b","completion":""}`)
	run := func(args ...string) (int, string, string) {
		var out, errors strings.Builder
		code := Run(t.Context(), append([]string{"rltrain", "eval", "--task", "code"}, args...), nil, strings.NewReader(""), &out, &errors)
		return code, out.String(), errors.String()
	}
	output, verdicts := filepath.Join(dir, "out.json"), filepath.Join(dir, "rows.jsonl")
	code, printed, complaint := run("--language", "python", "--dataset", problems, "--completions", rows, "--output", output, "--output-rows", verdicts)
	if strings.Contains(complaint, "no interpreter") || strings.Contains(complaint, "no sandbox") {
		t.Skip(complaint)
	}
	expect.Require(t, code == 0 && strings.Contains(printed, "1 of 3 programs pass (2 of 2 problems)"),
		"exit code %d: %s%s", code, printed, complaint)
	data := must.Get(os.ReadFile(output))(t)
	var got programResults
	must.Do(t, json.Unmarshal(data, &got))
	want := map[string]int{"pass": 1, "wrong": 1, "empty": 1}
	if diff := cmp.Diff(want, got.Classes); diff != "" || got.N != 3 || got.Passed != 1 || got.Pass1 != .25 || got.TestRate != .5 || got.Excluded != 0 || len(got.PassAt) != 1 {
		t.Errorf("%+v %s", got, diff)
	}
	if text, err := os.ReadFile(verdicts); err != nil || strings.Count(string(text), "\n") != 3 || !strings.Contains(string(text), `"class":"wrong","passed":1,"total":2`) ||
		!strings.Contains(string(text), `"prompt":"Double.","completion":"def f(x): return 4"`) {
		t.Errorf("rows %s, %v", text, err)
	}
	expect.True(t, strings.Contains(printed, "at least 30 problems"), "nothing is said of 2 problems: %s", printed)
	for want, args := range map[string][]string{
		`task_id "c" is not in the data set`:             {"--dataset", problems, "--completions", save("x.jsonl", `{"task_id":"c","completion":""}`)},
		"the tests use g, np, which they do not define":  {"--dataset", save("z.jsonl", `{"task_id":"a","prompt":"x","tests":"assert np.all(g(1))"}`), "--completions", save("w.jsonl", `{"task_id":"a","completion":""}`)},
		`field "completion" is missing`:                  {"--dataset", problems, "--completions", save("y.jsonl", `{"task_id":"a"}`)},
		"--dataset: is needed":                           {"--completions", rows},
		"--n: does not apply with --completions":         {"--dataset", problems, "--completions", rows, "--n", "3"},
		`--language: "cobol" is not one of python, node`: {"--dataset", problems, "--completions", rows, "--language", "cobol"},
	} {
		if code, _, complaint := run(append(args, "--output", output)...); code == 0 || !strings.Contains(complaint, want) {
			t.Errorf("%v: exit code %d, %q, want %q", args, code, complaint, want)
		}
	}
}

// TestUngradedProgramsAreSkipped skips programs the sandbox failed on, and reports how many.
func TestUngradedProgramsAreSkipped(t *testing.T) {
	ran := func(problem string, right bool, class string) envs.Program {
		return envs.Program{Problem: problem, Info: &envs.Info{Correct: right, Tests: &envs.Tests{Class: class, Passed: map[bool]int{true: 2, false: 1}[right], Total: 2}}}
	}
	lost := func(problem string) envs.Program { return envs.Program{Problem: problem, Failure: "no process"} }
	tally := &programTally{programResults: programResults{Problems: 3, PassAt: map[string]float64{}}, attempts: map[string]rl.Attempts{}}
	for _, p := range []envs.Program{ran("a", true, "pass"), lost("a"), ran("b", false, "wrong"), ran("b", true, "pass"), lost("c"), lost("c")} {
		row := tally.add(p)
		expect.True(t, (row.Class == "sandbox-error") == (p.Info == nil) && row.Message == p.Failure, "%+v becomes %+v", p, row)
	}
	tally.score()
	got1 := rl.RateEstimate([]float64{1, .5}).Interval
	want := programResults{
		Problems: 3, Attempted: 2, N: 3, Passed: 2, Pass1: .75, PassAt: map[string]float64{"pass@1": .75}, TestRate: 1,
		Intervals: map[string]rl.Interval{"pass@1": got1},
		Classes:   map[string]int{"pass": 2, "wrong": 1}, Excluded: 3, Failure: "no process",
	}
	expect.Equal(t, want, tally.programResults)
	for _, want := range []string{"2 of 3 programs pass (2 of 3 problems)", "skipped 3 programs that the sandbox failed to run; first error: no process"} {
		expect.True(t, strings.Contains(tally.String(), want), "%q is not in %s", want, tally)
	}
}
