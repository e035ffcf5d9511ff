package reward

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// novelty is a reward with options and a memory: the length of a completion above the mean of the last rollout.
type novelty struct {
	Per   float64 `option:"per" default:"1" range:"(0,)" help:"characters that are worth 1"`
	Sides string  `option:"sides" default:"both" allowed:"both,above" help:"what counts"`
	mean  float64
}

func (n *novelty) score(_ context.Context, c envs.Completion) (float64, error) {
	x := (float64(len(c.Text)) - n.mean) / n.Per
	if n.Sides == "above" {
		x = max(0, x)
	}
	return x, nil
}

func init() {
	Register(Definition{
		Name: "novelty", Help: "length above the mean of the last rollout", Options: func() any { return &novelty{} },
		Text: func(s Setup) (TextReward, error) {
			n := s.Options.(*novelty)
			return TextReward{
				Each:    n.score,
				Observe: func(values []float64) { n.mean, _ = moments(values, len(values)) },
				State:   func() any { return n.mean }, Restore: func(m json.RawMessage) error { return json.Unmarshal(m, &n.mean) },
			}, nil
		},
	})
}

func TestRegisteredReward(t *testing.T) {
	r := parseText(t, "novelty(per=2, sides=above)=3,expr:length", nil, Options{})
	expect.Equal(t, []string{"novelty(per=2, sides=above)", "expr:length"}, r.Names())
	score := func(r *Text) Scores {
		return must.Get(r.Score(t.Context(), completions("abcd", "ab"), 2))(t)
	}
	first := score(r)
	expect.Equal(t, []float64{3*2 + 4, 3*1 + 2}, first.Total)
	r.Observe(first)
	want := []float64{3*1.25 + 4, 3*0.25 + 2}
	expect.Equal(t, want, score(r).Total, "after a rollout")
	again := parseText(t, "novelty(per=2, sides=above)=3,expr:length", nil, Options{})
	must.Do(t, again.Restore(r.State()))
	expect.Equal(t, want, score(again).Total, "restored")
	// A reward of completions scores labels too.
	labels := parseLabels(t, "novelty", "a", "bcd")
	s, err := labels.Score(t.Context(), []Choice{{Action: 1}, {Action: 0}})
	expect.True(t, err == nil && cmp.Diff([]float64{3, 1}, s.Total) == "" && !labels.Enumerable(), "labels: %v, %v", s.Total, err)
	labels.Observe(nil, s)
	expect.Same(t, "2", string(labels.State().States["novelty"]), "mean of the labels")
	expect.Same(t, -1, must.Get(labels.Score(t.Context(), []Choice{{Action: 0}}))(t).Total[0], "labels after a rollout")
}

func TestOptionsOfRewards(t *testing.T) {
	for spec, want := range map[string]string{
		"novelty(per=0)":             "out of range",
		"novelty(par=1)":             "did you mean per",
		"novelty(per)":               `"per" is not option=value`,
		"novelty(=1)":                `"=1" is not option=value`,
		"novelty(per=1,per=2)":       "occurs twice",
		"novelty(sides=left)":        `"left" is not one of both, above`,
		"novelty(sides=')":           `"'" is not one of both, above`,
		"novelty(per=1":              "unclosed",
		"novelty(per=1),novelty(x=1": "unclosed",
		"accuracy()":                 "has no options",
	} {
		expect.Failure(ParseText(spec, nil, Options{}))(t, want)
	}
	r := parseText(t, `novelty(sides="above"),novelty`, nil, Options{})
	expect.Same(t, 2, len(r.Names()), "%v", r.Names())
}

func TestRegisterRefuses(t *testing.T) {
	text := func(Setup) (TextReward, error) { return TextReward{}, nil }
	for _, d := range []Definition{
		{Name: "accuracy", Help: "again", Text: text}, {Name: "a b", Help: "two words", Text: text}, {Name: "silent", Text: text}, {Name: "empty", Help: "nothing"},
		{Name: "both", Help: "an argument and options", Argument: "X", Text: text, Options: func() any { return &novelty{} }},
		{Name: "wrong", Help: "a tag", Text: text, Options: func() any {
			return &struct {
				X int `option:"x" range:"[" help:"x"`
			}{}
		}},
	} {
		expect.Panic(t, func() { Register(d) }, d)
	}
}

// A batch that answers for another number of completions has failed.
func TestBatchOfAnotherLength(t *testing.T) {
	d := Definition{Name: "short", Help: "too few", Text: func(Setup) (TextReward, error) {
		return TextReward{Batch: func(context.Context, []envs.Completion) ([]float64, []error) { return []float64{1}, []error{nil} }}, nil
	}}
	r := must.Get(ParseText("short", []Definition{d}, Options{}))(t)
	s, err := r.Score(t.Context(), completions("a", "b"), 1)
	expect.True(t, err == nil && math.IsNaN(s.Total[0]) && s.Rewards[0].Failures == 2, "%+v, %v", s, err)
}

func TestHelpOfRewards(t *testing.T) {
	own := []envs.NamedReward{{Name: "tests", Help: "share of the tests passed"}}
	text, labels := Help(false, own), Help(true, nil)
	expect.Contains(t, text, "accuracy: 1 if", "cmd:'PROGRAM ARGS': ", "novelty(per=X,sides=NAME): length above the mean of the last rollout, per: characters that are worth 1 (default 1)", "tests: share")
	for _, want := range []string{"calibration: ", "f1: ", "model:DIR: "} {
		expect.True(t, strings.Contains(labels, want) && !strings.Contains(labels, "rubric"), "no %q, or a rubric, in %s", want, labels)
	}
}

// lengthCritic scores a completion by its length, and fails on one marked text.
type lengthCritic struct{ calls int }

func (c *lengthCritic) Score(_ context.Context, completions []envs.Completion) ([]float64, []error) {
	c.calls++
	scores, errs := make([]float64, len(completions)), make([]error, len(completions))
	for i, x := range completions {
		scores[i] = float64(len(x.Observation.Text) + len(x.Text))
		if x.Text == "unreadable" {
			errs[i] = errors.New("too long")
		}
	}
	return scores, errs
}

func critics(c envs.Critic) Options {
	return Options{Critic: func(name string) (envs.Critic, error) {
		if name != "a=b" {
			return nil, errors.New("no such folder " + name)
		}
		return c, nil
	}}
}

func TestModelScoresABatch(t *testing.T) {
	c := &lengthCritic{}
	r := parseText(t, "model:'a=b'=-2,length", map[string]envs.Reward{"length": lengthReward}, critics(c))
	s := must.Get(r.Score(t.Context(), completions("a", "abc", "unreadable"), 1))(t)
	nan := s.Total[2]
	diff := cmp.Diff([]float64{-1, -3, nan}, s.Total, cmpopts.EquateNaNs())
	expect.True(t, diff == "" && nan != nan && c.calls == 1, "totals: %s; %d calls", diff, c.calls)
	expect.True(t, s.Rewards[0].Failures == 1 && strings.Contains(s.Rewards[0].Failure, "too long"), "%+v", s.Rewards[0])
}

// TestCentre subtracts the mean of the first rollout from all, also in a resumed run.
func TestCentre(t *testing.T) {
	r := parseText(t, "model:'a=b'=2,length", map[string]envs.Reward{"length": lengthReward}, critics(&lengthCritic{}))
	score := func(texts ...string) Scores {
		return must.Get(r.Score(t.Context(), completions(texts...), 1))(t)
	}
	var c Centre
	none := score("unreadable")
	c.Apply(&none)
	expect.True(t, c.Means == nil, "means %v of no score", c.Means)
	first, later := score("a", "abc", "unreadable"), score("abcdef")
	c.Apply(&first)
	state := must.Get(json.Marshal(c))(t)
	resumed := must.Into[Centre](t, json.Unmarshal, state)
	resumed.Apply(&later)
	// 2·(score − 2) + length
	expect.Equal(t, [][]float64{{2*(1-2) + 1, 2*(3-2) + 3}, {2*(6-2) + 6}}, [][]float64{first.Total[:2], later.Total})
	expect.True(t, first.Total[2] != first.Total[2] && first.Rewards[0].Values[0] == 1, "total %v of a failure, value %v of a text of one byte", first.Total[2], first.Rewards[0].Values[0])
}

func TestModelScoresTheChosenLabel(t *testing.T) {
	r := must.Open(ParseLabels("model:'a=b',accuracy=10", []string{"yes", "never"}, critics(&lengthCritic{})))(t)
	s, err := r.Score(t.Context(), []Choice{{Text: "is it?", Action: 1, Truth: 1}, {Text: "", Action: 0, Truth: 1}})
	expect.Require(t, err == nil && !r.Enumerable(), "%v %v", err, r.Enumerable())
	expect.Equal(t, []float64{6 + 5 + 10, 3}, s.Total)
	for spec, want := range map[string]string{
		"model:'a=b',calibration": "cannot be combined",
		"model:nowhere":           "no such folder nowhere",
		"model:":                  "write model:DIR",
		"rubric:x.yaml":           "scores generated text, not labels",
	} {
		expect.Failure(ParseLabels(spec, []string{"a"}, critics(&lengthCritic{})))(t, want)
	}
}

// politeJudge answers Yes to questions about words in the completion.
type politeJudge struct{}

func (*politeJudge) Choose(_ context.Context, prompt envs.Observation, choices []string) ([]float64, error) {
	question, answer := prompt.Messages[0].Content, prompt.Messages[1].Content
	switch {
	case cmp.Diff([]string{"No", "Yes"}, choices) != "":
		return nil, errors.New("other choices")
	case strings.Contains(answer, "mute"):
		return nil, errors.New("nothing to say")
	case strings.Contains(question, "polite") == strings.Contains(answer, "please"):
		return []float64{0.25, 0.75}, nil
	}
	return []float64{0.5, 0.5}, nil
}

func TestRubric(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rubric.yaml")
	write := func(text string) { must.Write(t, path, text) }
	write("- question: Is it polite?\n  weight: 3\n- question: Is it short?\n  weight: -1\n- {question: Is it right?}\n")
	r := parseText(t, "rubric:"+path+"=2", nil, Options{Judge: &politeJudge{}})
	expect.True(t, r.Judged() != "" && r.JudgeCount() == nil, "the list has a rubric, whose judge does not count")
	s := must.Get(r.Score(t.Context(), completions("please", "go", "mute"), 2))(t)
	want := []float64{2 * (3*0.75 - 0.5 + 0.5) / 5, 2 * (3*0.5 - 0.75 + 0.75) / 5}
	diff := cmp.Diff(want, s.Total[:2])
	expect.True(t, diff == "" && s.Rewards[0].Failures == 1, "%s, %d failures", diff, s.Rewards[0].Failures)
	for text, want := range map[string]string{
		"": "0 questions",
		strings.Repeat("- {question: a, weight: -1000000}\n", 1001): "1001 questions; use 1 to 1000",
		"- {question: a, weight: 1000001}":                          "question 1 has weight 1.000001e+06",
		strings.Repeat("[", 101):                                    "line 1: nested more than 100 deep",
		"question: one":                                             "not a list",
		"- question: ' '":                                           "question 1 is empty",
		"- {question: a}\n- {question: b, weight: 0}":               "question 2 has weight 0",
		"- {question: a, weight: .nan}":                             "has weight NaN",
		"- {question: a, points: 3}":                                "unknown field",
	} {
		write(text)
		_, err := ParseText("rubric:"+path, nil, Options{Judge: &politeJudge{}})
		expect.True(t, err != nil && strings.Contains(err.Error(), want) && strings.Contains(err.Error(), path) && !strings.Contains(err.Error(), "\n"), "%q: %v; want …%s…", text, err, want)
	}
	write(strings.Repeat("- {question: a, weight: -1000000}\n", 1000))
	parseText(t, "rubric:"+path, nil, Options{Judge: &politeJudge{}})
	expect.Failure(ParseText("rubric:", nil, Options{}))(t, "write rubric:FILE")
	expect.Failure(ParseText("rubric:"+path, nil, Options{}))(t, "a rubric needs a judge")
	expect.Failure(ParseText("rubric:nowhere.yaml", nil, Options{Judge: &politeJudge{}}))(t, "nowhere.yaml")
}

func TestParseList(t *testing.T) {
	type namedWeight struct {
		Name   string
		Weight float64
	}
	for _, test := range []struct {
		list string
		want []namedWeight
	}{
		{" f1 = 0.5 , calibration ", []namedWeight{{"f1", 0.5}, {"calibration", 1}}},
		{"accuracy,expr:'max(correct, confidence)'=0.5,f1=-1", []namedWeight{{"accuracy", 1}, {"expr:max(correct, confidence)", 0.5}, {"f1", -1}}},
		{`expr:"correct"`, []namedWeight{{"expr:correct", 1}}},
		{`expr:"label == 'a' ? 1 : 0"`, []namedWeight{{"expr:label == 'a' ? 1 : 0", 1}}},
		{"expr:correct=2", []namedWeight{{"expr:correct", 2}}},
		{"expr:max(correct, confidence)=0.5,f1", []namedWeight{{"expr:max(correct, confidence)", 0.5}, {"f1", 1}}},
		{"expr:(correct>=1 ? 1 : 0)=0.25", []namedWeight{{"expr:(correct>=1 ? 1 : 0)", 0.25}}},
		{`expr:probs["x=,1"]=2`, []namedWeight{{`expr:probs["x=,1"]`, 2}}},
		{"expr:text contains \"a\\\"b,c\" and `x,y` in text", []namedWeight{{"expr:text contains \"a\\\"b,c\" and `x,y` in text", 1}}},
		{"accuracy=1e6,f1=-1e6", []namedWeight{{"accuracy", 1e6}, {"f1", -1e6}}},
		{"cmd: python3 judge.py --level 2 = 0.2", []namedWeight{{"cmd:python3 judge.py --level 2", 0.2}}},
		{`cmd:'./judge --level=2'=0.5`, []namedWeight{{"cmd:./judge --level=2", 0.5}}},
		{`cmd:'./judge "a, b"',accuracy`, []namedWeight{{`cmd:./judge "a, b"`, 1}, {"accuracy", 1}}},
		{`cmd:./judge 'a, b=c' [x,f1`, []namedWeight{{"cmd:./judge 'a, b=c' [x", 1}, {"f1", 1}}},
	} {
		pieces, err := parseList(test.list, Definitions())
		if err != nil {
			t.Errorf("%s: %v", test.list, err)
			continue
		}
		var got []namedWeight
		for _, p := range pieces {
			got = append(got, namedWeight{p.name, p.weight})
		}
		expect.Equal(t, test.want, got, test.list)
	}
}

func TestParseLabelsErrors(t *testing.T) {
	for _, test := range []struct{ spec, want string }{
		{"accuracy,", "empty item"},
		{"=2=3", "empty item"},
		{"acuracy", `unknown reward "acuracy"; did you mean "accuracy"?`},
		{"judge.sh", "to run a program write cmd:'sh judge.sh'"},
		{"judge.py", "to run a program write cmd:'python3 judge.py'"},
		{"cmd", "write cmd:'PROGRAM ARGS'"},
		{"cmd:", "the command is empty"},
		{"cmd:\"''\"", "the command is empty"},
		{"cmd:'./judge", "unclosed quote"},
		{"cmd:./judge 'x", "unclosed quote in the command"},
		{"cmd:./judge x\\", "trailing backslash"},
		{"cmd:'./judge' x", "after the closing quote"},
		{"cmd:'./judge'==2", `unexpected "==2" after the closing quote`},
		{"cmd:./judge --level=2", "belong to --level"},
		{"cmd:env LEVEL=2 ./judge", `has weight "2 ./judge"`},
		{"cmd:./no-such-judge", `reward "cmd:./no-such-judge": exec: "./no-such-judge": stat ./no-such-judge: no such file`},
		{"cmd:cat,calibration", "cannot be combined"},
		{"expr:confidence,cmd:cat", "cannot be combined"},
		{"accuracy=1000001", `has weight "1000001"; use a number from -1e6 to 1e6`},
		{"accuracy,accuracy=2", `"accuracy" occurs twice`},
		{"accuracy=0", `weight "0"`},
		{"accuracy=", `has weight ""`},
		{"f1=NaN", `weight "NaN"`},
		{"expr", "write expr:'EXPR'"},
		{"expr:", "expression is empty"},
		{"expr:'correct", "unclosed quote"},
		{"expr:''", "the expression is empty"},
		{"expr:correct==", "column"},
		{"expr:'a' == label ? 1 : 0", "after the closing quote"},
		{"expr:'correct +'", `reward "expr:correct +": column 9: unexpected token EOF`},
		{"expr:'1 + confidense'", `column 5: unknown name "confidense"; did you mean "confidence"?`},
		{"expr:'2*sqr(confidence)'", `column 3: unknown function "sqr"; did you mean "sqrt"?`},
		{"expr:'sum(probs, # * 2)'", `column 1: unknown function "sum"`},
		{"expr:'confidence > 0.5 ? 1 : 0'", "column 12: a condition on probabilities"},
		{"expr:'0.5 == confidence ? 1 : 0'", "column 5: a condition on probabilities"},
		{"expr:'entropy or correct'", "column 1: a condition on probabilities"},
		{"expr:'correct && entropy ? 1 : 0'", "column 12: a condition on probabilities"},
		{"expr:'not entropy'", "column 5: a condition on probabilities"},
		{"expr:'correct in [1, confidence]'", "column 16: a condition on probabilities"},
		{"expr:'correct in correct'", `column 9: in needs a list literal: label in ["law"]`},
		{"expr:'nothing == 1'", "column 1: unknown name"},
		{"expr:'1 < nothing'", "column 5: unknown name"},
		{`expr:'label in ["law", "maths"]'`, `column 18: "maths" is not a label`},
		{"expr:'label in [1]'", "column 11: cannot compare a label with a number"},
		{"expr:'-label'", "column 2: got a label, want a number"},
		{"expr:'+label'", "column 2: got a label, want a number"},
		{"expr:'correct ? 0 : label'", "column 15: got a label, want a number"},
		{"expr:'pow(1, 2, 3)'", "column 1: pow does not take 3 arguments"},
		{"expr:'abs(1, 2)'", "column 1: abs does not take 2 arguments"},
		{"expr:'log()'", "column 1: log does not take 0 arguments"},
		{"expr:'confidence in [1] ? 1 : 0'", "column 12: a condition on probabilities"},
		{"expr:'confidence % 2'", "column 12: operator % is not available"},
		{"expr:'label'", "column 1: the reward must be a number"},
		{`expr:'label == "maths" ? 1 : 0'`, `column 10: "maths" is not a label; did you mean "math"?`},
		{"expr:'label == 1 ? 1 : 0'", "column 7: cannot compare a label with a number"},
		{"expr:'label < predicted ? 1 : 0'", "column 7: a label has no order"},
		{`expr:'nothing in ["math"] ? 1 : 0'`, "column 1: "},
		{"expr:'label + 1'", "column 1: got a label, want a number"},
		{"expr:'label ? 1 : 0'", "column 1: got a label, want a condition"},
		{"expr:'correct ? label : 0'", "column 11: got a label, want a number"},
		{"expr:'probs'", "column 1: probs is a list"},
		{"expr:'probs[2]'", "column 7: index 2 is out of range; 2 labels"},
		{"expr:'probs[-1]'", "column 7: probs needs an integer index"},
		{`expr:'probs["mat"]'`, `column 7: "mat" is not a label; did you mean "math"?`},
		{"expr:'label[0]'", "only probs has elements"},
		{"expr:'let x = 1; x'", "this construct is not supported"},
		{"expr:'{a: 1}.a'", "only probs has elements"},
		{"expr:'log(probs)'", "column 5: probs is a list"},
		{"expr:'correct" + strings.Repeat(" ", maxExpression-6) + "'", "4097 bytes, maximum 4096"},
	} {
		_, err := ParseLabels(test.spec, []string{"law", "math"}, Options{})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s:\n got  %v\n want …%s…", test.spec, err, test.want)
			continue
		}
		expect.True(t, !strings.Contains(err.Error(), "\n"), "%s: the error has several lines: %q", test.spec, err)
	}
	parseLabels(t, "expr:'correct"+strings.Repeat(" ", maxExpression-7)+"'", "law")
	expect.Fails(ParseLabels("accuracy", nil, Options{}))(t, "no labels: no error")
}

func TestParseRefusesANegativeTimeout(t *testing.T) {
	expect.Failure(ParseText("expr:1", nil, Options{Timeout: -1}))(t, "timeout")
	expect.Failure(ParseLabels("accuracy", []string{"a"}, Options{Timeout: -1}))(t, "timeout")
}

func FuzzParseLabels(f *testing.F) {
	for _, seed := range []string{
		"accuracy", "f1=0.5,calibration", "accuracy,expr:'correct*confidence'=0.5", `expr:"label == 'law' ? 1 : 0"`,
		"expr:max(probs)-min(probs)=2", "expr:log(probs[label])", "expr:probs.math", "expr:if correct { 1 } else { entropy }",
		"expr:pow(confidence, 2) + confidence ** 3 ^ 2", "expr:-abs(1/confidence)", "expr:label not in ['law'] ? 1 : 0", "cmd:./judge=2,f1", "cmd:cat 'a' \"b\"=1",
		"expr:1 < correct < 2 ? 1 : 0", "expr:confidence | abs()", "expr:sum(map(probs, # * 2))", "expr:probs[1:]", "expr:'", "expr:((((", "expr:let x = 1; x", "expr:1 ?? 2", "expr:a.b?.c()",
	} {
		f.Add(seed)
	}
	probs := []float32{0.25, 0.75}
	f.Fuzz(func(t *testing.T, spec string) {
		r, err := ParseLabels(spec, []string{"law", "math"}, Options{})
		if err != nil {
			expect.True(t, !strings.ContainsAny(err.Error(), "\n\r"), "the error has several lines: %q", err)
			return
		}
		for _, p := range r.pieces {
			expect.True(t, finite(p.weight) && p.weight != 0 && math.Abs(p.weight) <= 1e6, "weight %v", p.weight)
		}
		if !r.Enumerable() {
			return // and start no program
		}
		scores, grad := r.Expected([]int{1}, probs)
		failed := math.IsNaN(scores.Total[0])
		expect.True(t, failed != (scores.AllFailed() == nil), "the total is %v, AllFailed says %v", scores.Total[0], scores.AllFailed())
		for _, g := range grad {
			expect.True(t, finite(float64(float32(g))) && (!failed || g == 0), "J %g, gradient %v", scores.Total[0], grad)
		}
		if !r.ReadsProbs() {
			total := score(t, r, 0, 1)
			expect.True(t, !math.IsInf(float64(float32(total)), 0), "total %g", total)
		}
	})
}
