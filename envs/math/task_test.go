package math

import (
	"context"
	"errors"
	"fmt"
	stdmath "math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// official returns n problems in the format of the GSM8K data set: i and i more.
func official(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, `{"question": "What is %d+%d?", "answer": "We add %d+%d=<<%d+%d=%d>>%d.\n#### %d"}`+"\n", i, i, i, i, i, i, 2*i, 2*i, 2*i)
	}
	return text.String()
}

func TestRead(t *testing.T) {
	for _, test := range []struct {
		name, task, kind, content string
		want                      []Problem
	}{
		{"official lines", GSM8K, "", official(2), []Problem{
			{GSM8K, "What is 0+0?", "We add 0+0=<<0+0=0>>0.\nThe answer is: 0", "0", ""},
			{GSM8K, "What is 1+1?", "We add 1+1=<<1+1=2>>2.\nThe answer is: 2", "2", ""},
		}},
		{"list", GSM8K, "", "\n[\n{\"id\": 3, \"problem\": \"p\", \"solution\": \"s\\nThe answer is: $1,200.\"}\n]\n", []Problem{
			{GSM8K, "p", "s\nThe answer is: $1,200.", "1200", ""},
		}},
		{"math", MATH, "level", `{"problem": "p", "solution": "First. Then $x=\\boxed{\\frac{1}{2}}$.", "level": "Level 1", "type": "Algebra"}`, []Problem{
			{MATH, "p", "First.\nThen $x=\\boxed{\\frac{1}{2}}$.", `\frac{1}{2}`, "Level 1"},
		}},
		{"a number is a kind too", MATH, "level", `{"problem": "p", "solution": "\\boxed{1}", "level": 3}`, []Problem{{MATH, "p", "\\boxed{1}", "1", "3"}}},
	} {
		got, err := Read(&dataset.Faults{}, file(must.File(t, "problems.json", test.content)), test.task, test.kind)
		expect.True(t, err == nil, "%s: %v", test.name, err)
		expect.Equal(t, test.want, got, test.name)
	}
	problems, completions, err := ReadCompletions(&dataset.Faults{}, must.File(t, "c.json", `{"problem":"p","solution":"#### 3","written":"The answer is: 3."}`), GSM8K, "written")
	expect.True(t, err == nil && len(problems) == 1 && cmp.Equal(completions, []string{"The answer is: 3."}), "%v, %v, %v", problems, completions, err)
}

func TestReadRefuses(t *testing.T) {
	for content, want := range map[string]string{
		"":                                       "the file is empty",
		official(1) + "{\"question\": \"q\"}":    ":2: field \"answer\" is missing",
		`{"problem": "p"}`:                       "field \"solution\" is missing",
		`{"problem": 3, "solution": "#### 1"}`:   "field \"problem\" is missing or not text",
		`{"problem": "p", "solution": "s"}`:      ":1: the solution has no answer",
		`{"problem": " ", "solution": "#### 1"}`: "the question is empty",
		official(2) + "nonsense":                 ":3:2: invalid JSON",
		"null":                                   "null, want an object",
	} {
		path := must.File(t, "problems.jsonl", content)
		_, err := Read(&dataset.Faults{}, file(path), GSM8K, "")
		expect.True(t, err != nil && strings.Contains(err.Error(), want) && strings.HasPrefix(err.Error(), path), "%q: error %v, want one with %q", content, err, want)
	}
	path := must.File(t, "problems.json", "[]")
	expect.Failure(Read(&dataset.Faults{}, file(path), GSM8K, ""))(t, path+": no problems")
}

func FuzzNewProblem(f *testing.F) {
	f.Add(GSM8K, "What is 1+1?", "We add <<1+1=2>>2.\n#### 2")
	f.Add(GSM8K, "p", "The answer is: $1,200.")
	f.Add(MATH, "p", `First. Then $x=\boxed{\frac{1}{2}}$.`)
	f.Add(MATH, "p", `\boxed{\boxed{1}`)
	f.Fuzz(func(t *testing.T, task, question, solution string) {
		p, err := NewProblem(task, question, solution)
		if err != nil {
			return
		}
		expect.Require(t, p.Question != "" && p.Answer != "", "%q, %q: %+v", question, solution, p)
		info := p.Verify(p.Solution, answer.Exact)
		expect.Require(t, info.Correct && info.FormatOK, "the solution of %+v: %+v", p, info)
	})
}

func TestJudge(t *testing.T) {
	number := Problem{Task: GSM8K, Answer: "18"}
	boxed := Problem{Task: MATH, Answer: `\frac{1}{2}`}
	letter := Problem{Task: MATH, Answer: "B"}
	for _, test := range []struct {
		problem            Problem
		text               string
		match              answer.Match
		correct, formatted bool
		tier               answer.FoundBy
	}{
		{number, "The answer is: 18", answer.Exact, true, true, answer.ByPhrase},
		{number, "The answer is 18.", answer.Exact, true, true, answer.ByPhrase}, // the colon may be missing
		{number, "The answer is: 18 dollars", answer.Exact, false, true, answer.ByPhrase},
		{number, "The answer is: 18 dollars", answer.Units, true, true, answer.ByPhrase},
		{number, "The answer is: $18.00", answer.Numeric, true, true, answer.ByPhrase},
		{number, "so 18", answer.Numeric, true, false, answer.ByLastNumber},
		{number, "#### 18", answer.Numeric, true, false, answer.ByHash},
		{number, "", answer.Units, false, false, answer.NotFound},
		{boxed, `\boxed{\frac12}`, answer.Exact, false, true, answer.ByBoxed},
		{boxed, `\boxed{\frac12}`, answer.Numeric, true, true, answer.ByBoxed},
		{boxed, `The answer is 3, no: \boxed{0.5}`, answer.Numeric, true, true, answer.ByBoxed},
		{letter, `\boxed{\text{b}}`, answer.Numeric, true, true, answer.ByBoxed},
		{number, "Answer: 18 apples (3 red)", answer.Math, true, false, answer.ByPhrase},
		{number, "The answer is: 18 or 19", answer.Math, false, true, answer.ByPhrase},
		{boxed, "a half, that is **0.5**", answer.Math, true, false, answer.ByBold},
		{letter, `\boxed{(B)\ 12}`, answer.Math, true, true, answer.ByBoxed},
	} {
		got := test.problem.Verify(test.text, test.match)
		expect.True(t, got.Correct == test.correct && got.FormatOK == test.formatted && got.FoundBy == string(test.tier),
			"%q by %s: %+v, want correct %t, formatted %t, tier %s", test.text, test.match, got, test.correct, test.formatted, test.tier)
	}
	expect.Same(t, "Level 2", (Problem{Task: MATH, Answer: "1", Kind: "Level 2"}).Verify("", answer.Math).Kind, "kind of a judgement")
}

func file(path string) Files { return Files{Name: path, Paths: []string{path}} }

func newTask(t *testing.T, name string, change func(*Options)) *Task {
	t.Helper()
	o := Defaults(name)
	o.Train, o.FewShot = file(must.File(t, "train.jsonl", official(12))), 2
	if change != nil {
		change(&o)
	}
	return must.Get(New(name, 5, o))(t)
}

func start(t *testing.T, e envs.Env) envs.Observation {
	t.Helper()
	return must.Get(e.Reset(t.Context()))(t)
}

func step(t *testing.T, e envs.Env, text string, stop envs.StopReason) envs.Step {
	t.Helper()
	return must.Get(e.Step(t.Context(), envs.Action{Text: text, Stop: stop}))(t)
}

func TestTaskParts(t *testing.T) {
	other := must.File(t, "other.jsonl", strings.ReplaceAll(official(5), "What is", "How much is"))
	first, six := must.File(t, "first.jsonl", official(3)), must.File(t, "six.jsonl", official(6))
	for _, test := range []struct {
		name                  string
		change                func(*Options)
		train, eval, examples int
	}{
		{"examples from the training file", nil, 10, 0, 2},
		{"evaluation file untouched", func(o *Options) { o.Eval = file(other) }, 10, 5, 2},
		{"examples from their own file for the evaluation file alone", func(o *Options) { o.Train, o.Eval, o.Examples = Files{}, file(other), file(first) }, 0, 5, 2},
		{"no example is evaluated", func(o *Options) { o.Train, o.Eval, o.Examples = Files{}, file(first), file(six) }, 0, 3, 2},
		{"examples from their own file", func(o *Options) { o.Examples = file(other) }, 12, 0, 2},
		{"examples from another file with the same problems", func(o *Options) { o.Examples = file(first) }, 10, 0, 2},
		{"no examples", func(o *Options) { o.FewShot = 0 }, 12, 0, 0},
		{"held out", func(o *Options) { o.HoldOut = 4 }, 6, 4, 2},
		{"an evaluation file instead", func(o *Options) { o.Eval, o.HoldOut = file(other), 4 }, 10, 5, 2},
		{"held out of problems that come twice", func(o *Options) {
			o.Train, o.HoldOut = file(must.File(t, "twice.jsonl", official(6)+official(6))), 3
		}, 2, 3, 2}, // 0 and 1 are examples; the last three of 2 3 4 5 2 3 4 5 are held out, with their duplicates
	} {
		task := newTask(t, GSM8K, test.change)
		expect.True(t, task.Len(envs.Train) == test.train && task.Len(envs.Eval) == test.eval && len(task.examples) == test.examples, "%s: %d, %d and %d problems, want %d, %d and %d", test.name, task.Len(envs.Train), task.Len(envs.Eval), len(task.examples), test.train, test.eval, test.examples)
	}
}

// TestPlainText shows problems to a model without a chat template.
func TestPlainText(t *testing.T) {
	task := newTask(t, GSM8K, func(o *Options) { o.Plain, o.Stepwise, o.Annotate, o.FewShot = true, false, false, 1 })
	e := task.episode(envs.Train, task.bank.Train[0])
	want := envs.Observation{
		Text: "Q: What is 0+0?\nA: We add 0+0=0.\nThe answer is: 0\n\nQ: What is 1+1?\nA: ",
		Stop: []string{"\n\nQ: "},
	}
	expect.Equal(t, want, start(t, e))
	got := step(t, e, "The answer is: 2\n\nQ: ", envs.StopString)
	expect.True(t, got.Done && got.Keep == len("The answer is: 2") && got.Reward == 1, "%+v", got)
	task = newTask(t, GSM8K, func(o *Options) { o.Plain, o.Instruction, o.FewShot = true, "Think.", 0 })
	expect.Same(t, "Think.\n\nQ: What is 0+0?\nA: ", start(t, task.episode(envs.Train, task.bank.Train[0])).Text, "with an instruction")
}

// TestRewardOfTurns replaces the reward of training episodes only.
func TestRewardOfTurns(t *testing.T) {
	var judged []envs.Completion
	task := newTask(t, GSM8K, func(o *Options) {
		o.HoldOut, o.EvalStepwise = 1, false
		o.Reward = func(_ context.Context, c envs.Completion) (float64, error) {
			judged = append(judged, c)
			if len(judged) == 3 {
				return 0, errors.New("no judgement")
			}
			return 0.25, nil
		}
	})
	e := task.episode(envs.Train, task.bank.Train[0])
	start(t, e)
	for i, line := range []string{"We add.\n", "2+2=4.\n", "The answer is: 4\n"} {
		got := step(t, e, line, envs.StopString)
		expect.True(t, (i >= 2 || got.Reward == 0.25) && (i != 2 || stdmath.IsNaN(got.Reward)), "line %d: reward %v", i, got.Reward)
		c := judged[i]
		expect.True(t, c.Action.Text == line && strings.HasSuffix(c.Text, line) && (c.Info != nil) == (i == 2) && c.Observation.Messages[0].Content == "What is 2+2?", "line %d: completion %+v", i, c)
	}
	e = task.episode(envs.Eval, task.bank.Eval[0])
	expect.Equal(t, []string(nil), start(t, e).Stop)
	if got := step(t, e, "We add.\nThe answer is: 22\n", envs.StopEnd); got.Reward != 1 || len(judged) != 3 {
		t.Errorf("evaluation reward %v", got.Reward)
	}
}

func TestTrainingProblemsAreShuffledEachTimeAround(t *testing.T) {
	questions := func(task *Task, from, to int) []string {
		var out []string
		for i := from; i < to; i++ {
			e := must.Get(task.Episode(envs.Train, i))(t)
			out = append(out, e.(*Episode).Problem().Question)
		}
		return out
	}
	task := newTask(t, GSM8K, nil)
	first, second := questions(task, 0, 10), questions(task, 10, 20)
	expect.True(t, !cmp.Equal(first, second) && !slices.IsSorted(first), "the order is not shuffled anew")
	expect.Equal(t, first, questions(task, 0, 10), "an episode depends on those made before it")
	for _, order := range [][]string{first, second} {
		expect.Same(t, 10, len(slices.Compact(slices.Sorted(slices.Values(order)))), "not every problem once: %v", order)
	}
	for _, index := range []int{-1, 0} {
		expect.Fails(task.Episode(envs.Eval, index))(t, "there is an evaluation episode %d", index)
	}
}

func TestConversation(t *testing.T) {
	task := newTask(t, GSM8K, func(o *Options) { o.Calculator = true })
	o := start(t, task.episode(envs.Train, task.bank.Train[0]))
	expect.True(t, len(o.Messages) == 6 && strings.Contains(o.Messages[0].Content, "<<expression=result>>") && strings.Contains(o.Messages[2].Content, "<<0+0=0>>") && o.Messages[5].Content == "What is 2+2?", "%+v", o.Messages)
	expect.Equal(t, []string{"\n", ">>"}, o.Stop)
	task = newTask(t, GSM8K, func(o *Options) { o.Annotate, o.Stepwise = false, false })
	e := task.episode(envs.Train, task.bank.Train[0])
	o = start(t, e)
	expect.True(t, !strings.Contains(fmt.Sprint(o.Messages), "<<") && o.Stop == nil, "%+v", o)
	expect.Same(t, "We add 2+2=4.\nThe answer is: 4", e.Solution(), "solution")
}

func TestStepwise(t *testing.T) {
	task := newTask(t, GSM8K, func(o *Options) { o.MaxSteps = 3 })
	problem := task.bank.Train[0] // 2+2
	e := task.episode(envs.Train, problem)
	start(t, e)
	if got := step(t, e, "We add.\nand more", envs.StopString); got.Keep != len("We add.\n") || got.Done || got.Continues {
		t.Errorf("a line: %+v", got)
	}
	got := step(t, e, "The answer is: 4\n", envs.StopString)
	expect.True(t, got.Done && got.Reward == 1 && got.Info.Correct, "the answer: %+v", got)
	expect.Fails(e.Step(t.Context(), envs.Action{Text: "x"}))(t, "a step after the end is taken")

	start(t, e)
	for i := range 3 {
		got = step(t, e, "hm\n", envs.StopString)
		expect.True(t, got.Done == (i == 2) && got.Reward == 0, "line %d: %+v", i, got)
	}
	start(t, e)
	got = step(t, e, "The answer is: 5\n", envs.StopString)
	expect.True(t, got.Done && got.Reward == 0 && !got.Info.Correct, "a wrong answer: %+v", got)
	start(t, e)
	got = step(t, e, "it is 4", envs.StopEnd)
	expect.True(t, got.Done && got.Reward == 0 && !got.Info.FormatOK, "the model stopped: %+v", got)
	start(t, e)
	got = step(t, e, "half a li", envs.StopLength)
	expect.True(t, !got.Done && !got.Continues, "cut off: %+v", got)
	got = step(t, e, "x", envs.StopCancelled)
	expect.True(t, got.Done && stdmath.IsNaN(got.Reward), "cancelled: %+v", got)
	task = newTask(t, GSM8K, func(o *Options) { o.Match = answer.Math })
	e = task.episode(envs.Train, task.bank.Train[0]) // 2+2
	start(t, e)
	got = step(t, e, "The answer is: 2 + 2", envs.StopEnd)
	expect.True(t, got.Reward == 0 && !got.Info.Correct && got.Info.Unfinished, "a calculation: %+v", got)
}

func TestCalculator(t *testing.T) {
	task := newTask(t, GSM8K, func(o *Options) { o.Calculator = true })
	e := task.episode(envs.Train, task.bank.Train[0])
	for _, test := range []struct {
		name, text string
		stop       envs.StopReason
		want       envs.Step
	}{
		{"wrong result", "We add <<2+2=5>>", envs.StopString, envs.Step{Keep: len("We add <<2+2="), Append: "4>>4", Continues: true}},
		{"no equals sign", "<<1/3>>", envs.StopString, envs.Step{Keep: len("<<1/3"), Append: "=0.33>>0.33", Continues: true}},
		{"no expression", "<<a+b=c>>", envs.StopString, envs.Step{Keep: len("<<a+b=c>>"), Continues: true}},
		{"never opened", "2>>", envs.StopString, envs.Step{Keep: 3, Continues: true}},
		{"opened on another line", "<<2+2\n=4>>", envs.StopString, envs.Step{Keep: len("<<2+2\n")}},
		{"a whole line at once", "<<1+1=2>> and <<2+2=5>>\n", envs.StopString, envs.Step{Keep: len("<<1+1="), Append: "2>>2", Continues: true}},
	} {
		start(t, e)
		expect.Equal(t, test.want, step(t, e, test.text, test.stop), test.name)
	}
	start(t, e)
	for i := range 6 {
		got := step(t, e, "<<2+2=5>>", envs.StopString)
		expect.True(t, (got.Append != "") == (i < maxCalculations) && got.Continues, "calculation %d of a line: %+v", i, got)
	}
	step(t, e, " so\n", envs.StopString)
	step(t, e, "The answer is: <<2+2=5>>", envs.StopString)
	expect.True(t, step(t, e, ".\n", envs.StopString).Done, "goes on after the answer")
	start(t, e)
	step(t, e, "Adding gives <<2+2=5>>", envs.StopString)
	step(t, e, ".\n", envs.StopString)
	expect.Same(t, 1, step(t, e, "The answer is: 4", envs.StopEnd).Reward, "reward")
}

// TestCalculatorOfWholeSolutions: a line break within an action begins a line, with calculations of its own.
func TestCalculatorOfWholeSolutions(t *testing.T) {
	task := newTask(t, GSM8K, func(o *Options) { o.Calculator, o.Stepwise = true, false })
	e := task.episode(envs.Train, task.bank.Train[0])
	start(t, e)
	for i := range 6 {
		got := step(t, e, "\nso <<2+2=5>>", envs.StopString)
		expect.True(t, got.Append != "", "calculation on line %d: %+v", i, got)
	}
}

func TestMATHEndsWithABox(t *testing.T) {
	train := must.File(t, "math.json", `[{"problem":"a","solution":"\\boxed{1}"},{"problem":"b","solution":"So $\\boxed{A}$."}]`)
	task := newTask(t, MATH, func(o *Options) { o.Train, o.FewShot = file(train), 1 })
	e := task.episode(envs.Train, task.bank.Train[0])
	start(t, e)
	got := step(t, e, "so \\boxed{\n", envs.StopString)
	expect.True(t, !got.Done, "an open box: %+v", got)
	got = step(t, e, "a}\n", envs.StopString)
	expect.True(t, got.Done && got.Reward == 1, "a box over two lines: %+v", got)
	start(t, e)
	got = step(t, e, "so \\boxed{a}\n", envs.StopString)
	expect.True(t, got.Done && got.Reward == 1, "a letter in another case: %+v", got)
}

func TestNewRefuses(t *testing.T) {
	three := must.File(t, "three.jsonl", official(3))
	five := must.File(t, "five.jsonl", official(5))
	for _, test := range []struct {
		setup    envs.Setup
		settings envs.Settings
		want     string
	}{
		{envs.Setup{}, nil, "no file of problems"},
		{envs.Setup{}, envs.Settings{"dataset": three}, "3 of 3 problems are not evaluated, too few for 8 few-shot examples"},
		{envs.Setup{}, envs.Settings{"dataset": three, "few_shot": "3"}, "no problem is left after 3 few-shot examples"},
		{envs.Setup{}, envs.Settings{"dataset": five, "eval_dataset": three, "few_shot": "1"}, `share the problem "What is 0+0?"`},
		{envs.Setup{EvalOnly: true}, envs.Settings{"dataset": three, "few_shot": "1"}, "few_shot: the 1 examples would be problems of "},
		{envs.Setup{HeldOut: 2}, envs.Settings{"dataset": three, "few_shot": "1"}, "2 problems are too few to hold out 2"},
		{envs.Setup{Lines: true}, envs.Settings{"dataset": three, "few_shot": "1"}, "max_steps is 0"},
		{envs.Setup{}, envs.Settings{"dataset": three, "few_shot": "1", "sym_calc": "true", "annotate": "false"}, "sym_calc"},
		{envs.Setup{}, envs.Settings{"dataset": three, "few_shot": "1", "kind_column": "level"}, "kind_column: " + three + ` has no column "level"; its columns are`},
		{envs.Setup{}, envs.Settings{"dataset": three, "system_prompt": three + ".txt"}, "option system_prompt: open "},
	} {
		expect.Failure(envs.New(GSM8K, test.setup, test.settings))(t, test.want)
	}
	must.Get(envs.New(GSM8K, envs.Setup{}, envs.Settings{"dataset": three, "few_shot": "2", "sym_calc": "true", "answer_match": "units"}))(t)
}

// A data set with splits, as on the hub, trains on its training rows and evaluates on its test rows.
func TestParts(t *testing.T) {
	parts := []dataset.Part{{Split: dataset.Train, Files: []string{must.File(t, "train.jsonl", official(7))}}, {Split: dataset.Test, Files: []string{must.File(t, "test.jsonl", official(9)[len(official(7)):])}}}
	for _, c := range []struct {
		eval          string
		judging       bool
		train, judged int
	}{{"", false, 5, 2}, {"openai/gsm8k", false, 7, 2}, {"", true, 0, 2}} {
		setup := envs.Setup{HeldOut: 2, EvalOnly: c.judging, Find: func(_ context.Context, name, config string, _ ...string) ([]dataset.Part, error) {
			expect.True(t, name == "openai/gsm8k" && config == "main", "%q is looked up with configuration %q", name, config)
			return parts, nil
		}}
		settings := envs.Settings{"dataset": "openai/gsm8k", "dataset_config": "main", "few_shot": "0"}
		if c.eval != "" {
			settings["eval_dataset"] = c.eval
		}
		task, err := envs.New(GSM8K, setup, settings)
		expect.True(t, err == nil && task.Len(envs.Train) == c.train && task.Len(envs.Eval) == c.judged, "%+v: %v", c, err)
	}
}

// judge gives every question the same answer and records the questions.
type judge struct {
	shares []float64
	asked  []envs.Observation
	err    error
}

func (j *judge) Choose(_ context.Context, prompt envs.Observation, choices []string) ([]float64, error) {
	j.asked = append(j.asked, prompt)
	return j.shares, j.err
}

func TestJudgeRewards(t *testing.T) {
	c := envs.Completion{
		Observation: envs.Observation{Messages: []envs.Message{{Role: envs.RoleUser, Content: "What is 2+2?"}}},
		Text:        "We add.\nIt is 4.\n",
		Action:      envs.Action{Text: "It is 4.\n"},
	}
	scorer := &judge{shares: []float64{0, 0, 0, 0, 0.5, 0, 0, 0, 0, 0.5}}
	got, err := ScoreReward(scorer, 0.2)(t.Context(), c)
	expect.True(t, err == nil && stdmath.Abs(got-0.15) <= 1e-12, "score %v, %v, want 0.15", got, err) // .2·(.5·5+.5·10)/10
	expect.Contains(t, scorer.asked[0].Messages[1].Content, "Problem:\nWhat is 2+2?\n", "Solution so far:\nWe add.\n", "Next step:\nIt is 4.")
	last := scorer.asked[0].Messages[2]
	expect.True(t, last.Role == envs.RoleAssistant && last.Content == "Score (from 1 to 10):", "the judge's last message: %+v", last)

	aspects := &judge{shares: []float64{0.25, 0.75}}
	if got, err := AspectsReward(aspects, 1)(t.Context(), c); got != 0.75 || err != nil || len(aspects.asked) != 3 {
		t.Errorf("aspects %v, %v after %d questions", got, err, len(aspects.asked))
	}
	c.Info = &envs.Info{Correct: true, FormatOK: true}
	if got, err := AspectsReward(aspects, 2)(t.Context(), c); got != 2 || err != nil || len(aspects.asked) != 3 {
		t.Errorf("reward of the final answer: %v, %v", got, err)
	}
	for _, bad := range []*judge{{err: errors.New("no model")}, {shares: []float64{1}}} {
		expect.Failure(ScoreReward(bad, 1)(t.Context(), c))(t, "asking the judge")
	}
}

// TestBadRows: all rows that cannot be used are listed, or dropped and counted.
func TestBadRows(t *testing.T) {
	path := must.File(t, "p.jsonl", official(3)+`{"question": "q"}`+"\n"+official(1)+`{"question": 3, "answer": "#### 1"}`+"\n"+`{"question": "q", "answer": "none"}`)
	expect.Failure(Read(&dataset.Faults{}, file(path), GSM8K, ""))(t, "3 rows cannot be used", "p.jsonl:4: ", "p.jsonl:7: ")
	o := Defaults(GSM8K)
	var skipped int
	o.Eval, o.FewShot, o.OnBadRow, o.Skipped = file(path), 0, dataset.OnBadRow{OnBadRow: "skip"}, func(f *dataset.Faults) { skipped, _ = f.Skipped() }
	task, err := New(GSM8K, 1, o)
	expect.True(t, err == nil && skipped == 3 && task.Len(envs.Eval) == 4, "%d rows skipped, %v", skipped, err)
	// A column that is missing from all rows is a wrong option, not a bad row.
	_, err = Read(&dataset.Faults{Skip: true}, file(path), GSM8K, "level")
	expect.True(t, isOption(err), "error %v", err)
}
