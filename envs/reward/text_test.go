package reward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// functions are definitions of rewards by name.
func functions(byName map[string]envs.Reward) (all []Definition) {
	for name, score := range byName {
		all = append(all, Function(name, "for the test", score))
	}
	return all
}

func parseText(t testing.TB, spec string, own map[string]envs.Reward, o Options) *Text {
	t.Helper()
	return must.Open(ParseText(spec, functions(own), o))(t)
}

// completions of one turn each.
func completions(texts ...string) []envs.Completion {
	var list []envs.Completion
	for _, text := range texts {
		list = append(list, envs.Completion{Text: text, Action: envs.Action{Text: text}})
	}
	return list
}

func lengthReward(_ context.Context, c envs.Completion) (float64, error) {
	return float64(len(c.Text)), nil
}

func TestTextScore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck, warned := make(chan struct{}), []string{}
		defer close(stuck)
		moody := func(_ context.Context, c envs.Completion) (float64, error) {
			switch c.Text {
			case "hang":
				<-stuck // ignores its context
			case "error":
				return 0, errors.New("no")
			case "panic":
				panic("at once")
			case "nan":
				return math.NaN(), nil
			}
			return 1, nil
		}
		r := parseText(t, "length=0.5,mood=2,expr:'words == 1'=-1", map[string]envs.Reward{"length": lengthReward, "mood": moody}, Options{Timeout: time.Hour, Warn: func(line string) { warned = append(warned, line) }})
		got := must.Get(r.Score(t.Context(), completions("a", "hang", "error", "panic", "nan", "a b"), 3))(t)
		want := Scores{
			Total: []float64{1.5, nan, nan, nan, nan, 3.5},
			Rewards: []Score{
				// mean 21/6 = 3.5; squares 6.25+.25+2.25+2.25+.25+.25 = 11.5
				{Name: "length", Weight: 0.5, Values: []float64{1, 4, 5, 5, 3, 3}, N: 6, Mean: 3.5, Std: math.Sqrt(11.5 / 5)},
				{Name: "mood", Weight: 2, Values: []float64{1, nan, nan, nan, nan, 1}, N: 2, Mean: 1, Failures: 4, Failure: "reward mood: timeout after 1h0m0s"},
				{Name: "expr:words == 1", Weight: -1, Values: []float64{1, 1, 1, 1, 1, 0}, N: 6, Mean: 5. / 6, Std: math.Sqrt((5./36 + 25./36) / 5)},
			},
		}
		expect.Equal(t, want, got, cmpopts.EquateNaNs(), cmpopts.EquateApprox(0, 1e-12))
		expect.NoError(t, got.AllFailed(), "AllFailed")
		expect.True(t, len(warned) == 1 && strings.Contains(warned[0], "timeout after 1h0m0s"), "warnings %q", warned)
	})
}

func TestTextScoreStopsWithTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := parseText(t, "wait,expr:length", map[string]envs.Reward{"wait": func(ctx context.Context, _ envs.Completion) (float64, error) {
		cancel()
		<-ctx.Done()
		return 0, ctx.Err()
	}}, Options{})
	_, err := r.Score(ctx, make([]envs.Completion, 3), 1)
	expect.True(t, errors.Is(err, context.Canceled), "error %v", err)
}

func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		running, most := make(chan struct{}, 100), 0
		r := parseText(t, "busy", map[string]envs.Reward{"busy": func(context.Context, envs.Completion) (float64, error) {
			running <- struct{}{}
			time.Sleep(time.Second) // of the bubble
			most = max(most, len(running))
			<-running
			return 0, nil
		}}, Options{})
		_, err := r.Score(t.Context(), make([]envs.Completion, 10), 1)
		expect.True(t, err == nil && most == 1, "%d at a time, error %v; want 1", most, err)
	})
}

func TestAllFailed(t *testing.T) {
	r := parseText(t, "expr:1/0,length=0.1", map[string]envs.Reward{"length": lengthReward}, Options{})
	scores := must.Get(r.Score(t.Context(), completions("a", "b"), 1))(t)
	want := "rewards failed for all 2 samples: reward expr:1/0: the value is +Inf"
	err := scores.AllFailed()
	expect.True(t, err != nil && err.Error() == want, "error %v, want %s", err, want)
	scores, err = r.Score(t.Context(), nil, 1)
	expect.True(t, err == nil && scores.AllFailed() == nil, "no samples: %v, %v", err, scores.AllFailed())
	one := must.Get(parseText(t, "expr:length + 3", nil, Options{}).Score(t.Context(), completions("ab"), 1))(t)
	expect.True(t, one.Rewards[0].Mean == one.Total[0] && one.Total[0] > 3 && one.Rewards[0].Std == 0, "one sample: %+v", one.Rewards[0])
	mixed := parseText(t, "expr:1/correct", nil, Options{})
	scores, err = mixed.Score(t.Context(), []envs.Completion{{Info: &envs.Info{}}, {Info: &envs.Info{Correct: true}}}, 1)
	expect.True(t, err == nil && scores.AllFailed() == nil, "one of two: %v, %v", err, scores.AllFailed())
}

// Weights and values are bounded so that no sum leaves float32.
func TestTotalsFitFloat32(t *testing.T) {
	huge := func(value float64) envs.Reward {
		return func(context.Context, envs.Completion) (float64, error) { return value, nil }
	}
	for value, ok := range map[float64]bool{1e32: true, 1.6e32: true, 1e33: false, 1e39: false, math.Inf(1): false} {
		r := parseText(t, "a=1e6,b=1e6", map[string]envs.Reward{"a": huge(value), "b": huge(value)}, Options{})
		scores := must.Get(r.Score(t.Context(), completions("x"), 1))(t)
		total := scores.Total[0]
		expect.True(t, (!ok || finite(float64(float32(total)))) && (ok || math.IsNaN(total) && scores.Rewards[1].Failures == 1), "twice 1e6·%g: total %g, %+v", value, total, scores.Rewards[1])
	}
	most := float64(math.MaxFloat32)
	expect.True(t, fits(most, 1, 1) && !fits(math.Nextafter(most, math.Inf(1)), 1, 1), "the bound is not MaxFloat32")
	expect.True(t, fits(most, 0.5, 2) && !fits(most, 1, 2), "two rewards share it")
}

func TestParseTextErrors(t *testing.T) {
	own := map[string]envs.Reward{"answer": lengthReward, "format": lengthReward}
	long := strings.Repeat("ö", 80)
	for _, test := range []struct{ spec, want string }{
		{"", "has an empty item; choose from accuracy, answer, cmd:'PROGRAM ARGS', expr:'EXPR', format, model:DIR"},
		{"answr", `unknown reward "answr"; did you mean "answer"?`},
		{"vowels.py", `unknown reward "vowels.py"; to run a program write cmd:'python3 vowels.py'; choose`},
		{"./judge", `unknown reward "./judge"; to run a program write cmd:'./judge'; choose`},
		{"answer,python3 my.py=0.5", `to run a program write cmd:'python3 my.py'; choose`},
		{"sh run", "to run a program write cmd:'sh run'; choose"},
		{"node my.js", "to run a program write cmd:'node my.js'; choose"},
		{long, `unknown reward "` + long + `"; choose`},
		{long + "ö", `unknown reward "` + long + `"…; choose`},
		{"model:m", "reward models are not available here"},
		{"answer,cmd:./no-such-judge", "no such file"},
		{"expr:'length >'", `reward "expr:length >": column 8: unexpected token EOF`},
	} {
		expect.Failure(ParseText(test.spec, functions(own), Options{}))(t, test.want)
	}
	for _, name := range []string{"", "expr", "cmd", "model", "rubric", "a,b", "a=b", "cmd:x", "a b"} {
		expect.Fails(ParseText("expr:1", functions(map[string]envs.Reward{name: lengthReward}), Options{}))(t, "a reward of a task may be called %q", name)
	}
}

func ExampleParseText() {
	// The task's reward, and a penalty for long answers.
	own := Function("answer", "1 for the right answer", func(_ context.Context, c envs.Completion) (float64, error) {
		if c.Info != nil && c.Info.Correct {
			return 1, nil
		}
		return 0, nil
	})
	rewards, err := ParseText("answer,expr:'length > 10 ? -1 : 0'=0.5", []Definition{own}, Options{})
	if err != nil {
		panic(err)
	}
	defer rewards.Close()
	scores, err := rewards.Score(context.Background(), []envs.Completion{
		{Action: envs.Action{Text: "42"}, Info: &envs.Info{Correct: true}},
		{Action: envs.Action{Text: "It may well be 42."}, Info: &envs.Info{Correct: true}},
		{Action: envs.Action{Text: "41"}, Info: &envs.Info{}},
	}, 1)
	if err != nil {
		panic(err)
	}
	fmt.Println(scores.Total)
	for _, r := range scores.Rewards {
		fmt.Printf("%s: mean %.2f, %d failures\n", r.Name, r.Mean, r.Failures)
	}
	// Output:
	// [1 0.5 0]
	// answer: mean 0.67, 0 failures
	// expr:length > 10 ? -1 : 0: mean -0.33, 0 failures
}

var sample = envs.Completion{
	Observation: envs.Observation{Messages: []envs.Message{{Role: envs.RoleSystem, Content: "Be brief."}, {Role: envs.RoleUser, Content: "6 times 7?"}}},
	Text:        "6 times 7\nis the answer: Öl 42\n",
	Action:      envs.Action{Text: "is the answer: Öl 42\n"},
	Info:        &envs.Info{Correct: true, Answer: "42", Truth: "42.0"},
}

func TestTextExpressions(t *testing.T) {
	for source, want := range map[string]float64{
		"correct": 1, "formatted": 0, "correct + 2*formatted": 1,
		"correct ? 3 : 4": 3, "formatted ? 3 : 4": 4, "not formatted": 1, "correct and not formatted": 1, "correct && formatted || formatted": 0,
		"if formatted { 1 } else { -1.5 }": -1.5,
		"length":                           21, "words": 5, "lines": 1, "len(written)": 31, "len(text) == length": 1,
		`text contains "answer"`: 1, `text startsWith "is"`: 1, `text endsWith "42\n"`: 1, `trim(text) endsWith "42"`: 1,
		`text matches "[0-9]+\\s*$"`: 1, `text matches "^[0-9]+$"`: 0, `upper(answer) == answer`: 1, `lower(text) contains "öl"`: 1,
		`prompt == "6 times 7?"`: 1, "answer == truth": 0, `float(answer) == float(truth)`: 1, `int(answer) - 40`: 2,
		`len(split(written, "\n"))`: 3, `text[0:2] == "is" ? 0.25 : 0`: 0.25, `"e" in split("a e", " ")`: 1, `answer in ["41", "42"]`: 1,
		`hasPrefix(text, "is") and hasSuffix(text, "\n")`: 1, `indexOf(text, "the")`: 3, `lastIndexOf(text, "nope")`: -1,
		"max(0, 1 - length/42)": 0.5, "min([3, 1, 2])": 1, "abs(-2) + ceil(0.2) + floor(0.8) + round(2.5)": 6,
		"exp(0) + log(1) + sqrt(4) + sqrt(correct) + pow(2, 3) + 2**2 + 2^3": 1 + 0 + 2 + 1 + 8 + 4 + 8, "length % 4": 1, "7 / 2": 3.5,
		"0 < length < 22": 1, `trimPrefix(trimSuffix(text, "42\n"), "is ") == "the answer: Öl "`: 1, `string(length) == "21"`: 1,
	} {
		got, err := evaluate(t, source, sample)
		expect.True(t, err == nil && got == want, "%s is %g, error %v; want %g", source, got, err, want)
	}
}

// TestVerificationAtTheEnd: an earlier turn has reward 0; an episode that is never verified has none.
func TestVerificationAtTheEnd(t *testing.T) {
	turn := sample
	turn.Info, turn.Continues = nil, true
	for source, want := range map[string]float64{"correct": 0, "1 - correct": 0, `answer == ""`: 0, "length": 21} {
		got, err := evaluate(t, source, turn)
		expect.True(t, err == nil && got == want, "%s is %g, error %v; want %g", source, got, err, want)
	}
	turn.Continues = false
	expect.Failure(evaluate(t, "correct", turn))(t, "no verified answer")
}

func evaluate(t *testing.T, source string, c envs.Completion) (float64, error) {
	t.Helper()
	x, err := compileText(source)
	expect.Require(t, err == nil, "%s: %v", source, err)
	values, errs := x.score(t.Context(), []envs.Completion{c})
	said := weigh([]piece{{weight: 1}}, []results{batched(values, errs, 1)}, 1)
	if said.Rewards[0].Failures > 0 {
		err = errors.New(said.Rewards[0].Failure)
	}
	return said.Total[0], err
}

func TestLinesAndWords(t *testing.T) {
	for text, want := range map[string]float64{"": 0, "a": 101, "a\n": 101, "a b\nc": 203, "\n\n": 200, " a  b ": 102} {
		r := parseText(t, "expr:lines*100 + words", nil, Options{})
		scores, err := r.Score(t.Context(), completions(text), 1)
		expect.True(t, err == nil && scores.Total[0] == want, "%q: %v, %v; want %g", text, scores.Total, err, want)
	}
}

func TestExpressionsThatFail(t *testing.T) {
	unverified := sample
	unverified.Info = nil
	for _, test := range []struct {
		source     string
		completion envs.Completion
		want       string
	}{
		{"correct", unverified, "no verified answer for this episode"},
		{"truth == '1' ? 1 : 0", unverified, "no verified answer for this episode"},
		{"1/formatted", sample, "the value is +Inf"},
		{"log(-1)", sample, "the value is NaN"},
		{"int(text)", sample, "column 1: "},
		{"int(split(text, 'x')[5])", sample, "column 21: index out of range"},
		{"text matches truth + '('", sample, "column 6: "},
	} {
		value, err := evaluate(t, test.source, test.completion)
		expect.True(t, err != nil && math.IsNaN(value) && strings.Contains(err.Error(), test.want) && !strings.Contains(err.Error(), "\n"),
			"%s: value %g, error %v; want one with %q", test.source, value, err, test.want)
	}
	// Fields that the expression does not read may be missing.
	expect.Result(evaluate(t, "length", unverified))(t, 21, "length of an episode that was not verified")
}

func TestTextExpressionErrors(t *testing.T) {
	for _, test := range []struct{ source, want string }{
		{"lenght", `column 1: unknown name "lenght"; did you mean "length"?`},
		{"-lenght", `column 2: unknown name "lenght"`},
		{"correct ? 1 : lenght", `column 15: unknown name "lenght"`},
		{"len(text[lenght:])", `column 10: unknown name "lenght"`},
		{"1 in [lenght]", `column 7: unknown name "lenght"`},
		{"[1][lenght]", `column 5: unknown name "lenght"`},
		{"abs(lenght)", `column 5: unknown name "lenght"`},
		{"1 + confidence", "column 5: confidence is available only in rewards of classifiers"},
		{"probs[0]", "column 1: probs is available only in rewards of classifiers"},
		{"$env", `column 1: unknown name "$env"`},
		{"text", "column 1: the reward must be a number"},
		{"[1, 2]", "not a slice"},
		{"length + text", "column 8: "},
		{"correct == true", "column 9: "},
		{"sqrt(text)", "column 6: "},
		{`text matches "("`, "column 6: "},
		{"1..1000000", "column 2: operator .. is not supported"},
		{"sum(map(1..10, # * 2))", `unknown function "sum"`},
		{"len(replace(text, '', text))", `column 5: unknown function "replace"`},
		{"lenn(text)", `unknown function "lenn"; did you mean "len"?`},
		{"let x = text + text; len(x + x)", "this construct is not supported"},
		{"text.upper()", "this construct is not supported"},
		{"1 % 0", "divide by zero"},
		{strings.Repeat("1+", 3000) + "1", "maximum 4096"},
	} {
		_, err := compileText(test.source)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s:\n got  %v\n want …%s…", test.source, err, test.want)
			continue
		}
		expect.True(t, !strings.Contains(err.Error(), "\n"), "%s: the error has several lines: %q", test.source, err)
	}
}

// expr's tree contains each link of a chained comparison twice; nesting must not take exponential time.
func TestExpressionsAreBounded(t *testing.T) {
	source := "correct"
	for range 60 {
		source = "(0 < (" + source + ") < 2 ? 1 : 0)"
	}
	expect.Failure(compileText(source))(t, "more than 10000 operations")
	expect.Failure(compileDifferentiable(source, nil))(t, "more than 10000 operations")
}

func FuzzTextExpression(f *testing.F) {
	for _, seed := range []string{
		"correct", "length > 10 ? -1 : 0", `text contains "a" and not formatted`, `text matches "a+$"`, "max(words, lines) / len(prompt)", "text[1:3] == answer",
		`split(text, " ")[0] in ["a", "b"]`, "1 < length < 5", "if correct { 1 } else { 2 }", `float(answer) - float(truth)`, "pow(length, 2) ** 2 ^ 0.5", "1..5", "let a = 1; a",
		"text | trim() | len()", "upper(text)[-1:]", "#", "nil", "{}", "[[[1]]]", "-length % 3", "0x7fffffffffffffff + 1", "'\\u00e9' == text", "string(1e300)", "correct ?: 2", "text[length]",
	} {
		f.Add(seed, "some text\nwith 42")
	}
	f.Fuzz(func(t *testing.T, source, text string) {
		x, err := compileText(source)
		if err != nil {
			expect.True(t, !strings.ContainsAny(err.Error(), "\n\r"), "the error has several lines: %q", err)
			return
		}
		c := completions(text)[0]
		c.Info = &envs.Info{Correct: true, Answer: "1", Truth: text}
		values, errs := x.score(t.Context(), []envs.Completion{c, {}})
		said := results{values: values, errs: errs}
		for i, err := range said.errs {
			expect.True(t, err == nil || !strings.ContainsAny(err.Error(), "\n\r"), "sample %d: the error has several lines: %q", i, err)
		}
	})
}

// scripted scores the texts that it knows.
type scripted map[string]float64

func (s scripted) Score(_ context.Context, completions []envs.Completion) ([]float64, []error) {
	scores, errs := make([]float64, len(completions)), make([]error, len(completions))
	for i, c := range completions {
		var known bool
		if scores[i], known = s[c.Text]; !known {
			errs[i] = fmt.Errorf("unknown text %q", c.Text)
		}
	}
	return scores, errs
}

func (s scripted) Steps(ctx context.Context, completions []envs.Completion, ends [][]int, separator string) ([][]float64, []error) {
	all, errs := make([][]float64, len(completions)), make([]error, len(completions))
	for i, c := range completions {
		var parts []envs.Completion
		for _, end := range ends[i] {
			parts = append(parts, envs.Completion{Text: strings.TrimSuffix(c.Text, c.Generated) + strings.TrimSuffix(c.Generated[:end], separator)})
		}
		var failed []error
		all[i], failed = s.Score(ctx, parts)
		errs[i] = errors.Join(failed...)
	}
	return all, errs
}

func TestProcessRewards(t *testing.T) {
	// The first turn has been scored already; blank lines belong to the step before them.
	c := envs.Completion{Text: "earlier a\n\nb\nc", Generated: "a\n\nb\nc", Action: envs.Action{Text: "a\n\nb\nc"}}
	judge := scripted{"earlier a\n": 3, "earlier a\n\nb": 1, "earlier a\n\nb\nc": 2}
	for total, want := range map[string][]float64{"sum": {3, 1, 2}, "mean": {1, 1. / 3, 2. / 3}, "last": {3, -2, 1}, "min": {3, -2, 0}} {
		list := fmt.Sprintf("process(model=DIR,total=%s)=0.5,expr:'10'", total)
		r := must.Get(ParseText(list, nil, Options{Critic: func(name string) (envs.Critic, error) {
			expect.Same(t, "DIR", name, "model")
			return judge, nil
		}}))(t)
		scores := must.Get(r.Score(t.Context(), []envs.Completion{c, {Text: "?\n!", Generated: "?\n!"}}, 1))(t)
		steps, sum := []Step(nil), 0.0
		for i, end := range []int{3, 5, 6} {
			steps, sum = append(steps, Step{end, want[i] / 2}), sum+want[i]
		}
		near := cmpopts.EquateApprox(0, 1e-12)
		expect.Equal(t, [][]Step{steps, nil}, scores.Steps, near, total)
		expect.Equal(t, sum/2+10, scores.Total[0], near, total)
		expect.Contains(t, scores.Rewards[0].Failure, `unknown text "?"`)
	}
}

// TestStepsOfSeveralRewards: they are weighted, and in the order of their ends.
func TestStepsOfSeveralRewards(t *testing.T) {
	of := func(steps ...Step) results { return stepped([][]Step{steps}, []error{nil}, 1) }
	got := weigh([]piece{{weight: 1}, {weight: 2}}, []results{of(Step{3, 1}, Step{6, 2}), of(Step{3, 1}, Step{4, 5})}, 1)
	expect.Equal(t, [][]Step{{{3, 1}, {3, 2}, {4, 10}, {6, 2}}}, got.Steps)
	expect.Equal(t, []float64{1 + 2 + 2*(1+5)}, got.Total)
}

// FuzzStepEnds: steps divide a text, and each has something other than space if the text has.
func FuzzStepEnds(f *testing.F) {
	for _, text := range []string{"", "\n", "a", "a\n", "\n\na\n\nb", "a\n \nb\n\n"} {
		f.Add(text, "\n")
	}
	f.Add("1. x 2. y", ". ")
	f.Fuzz(func(t *testing.T, text, separator string) {
		if separator == "" {
			return
		}
		from := 0
		ends := stepEnds(text, separator)
		for i, end := range ends {
			step := text[from:end]
			expect.Require(t, end > from || text == "", "ends %v of %q", ends, text)
			expect.True(t, strings.TrimSpace(step) != "" || strings.TrimSpace(text) == "", "step %q of %q is blank", step, text)
			expect.True(t, i == len(ends)-1 || strings.HasSuffix(step, separator), "step %q of %q ends without %q", step, text, separator)
			from = end
		}
		expect.Same(t, len(text), from, "end of the last step of %q", text)
	})
}

func TestProcessIsRefused(t *testing.T) {
	whole := Options{Critic: func(string) (envs.Critic, error) { return &lengthCritic{}, nil }}
	expect.Failure(ParseText("process(model=m)", nil, whole))(t, "m cannot score steps")
	expect.Failure(ParseText("accuracy", nil, Options{NoTruth: true}))(t, `unknown reward "accuracy"`)
	missing := Options{Critic: func(string) (envs.Critic, error) { return nil, errors.New("no such folder") }}
	for list, want := range map[string]string{
		"process": "write process(model=DIR)", "process(model=m,separator=)": "separator", "process(model=m,total=product)": "total",
		"process:m": "process", "process(model=m)": "no such folder",
	} {
		expect.Failure(ParseText(list, nil, missing))(t, want)
	}
}
