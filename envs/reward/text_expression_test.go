package reward

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
)

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
		{"length % formatted", sample, "column 8: "},
		{"int(text)", sample, "column 1: "},
		{"int(split(text, 'x')[5])", sample, "column 21: index out of range"},
		{"text matches truth + '('", sample, "column 6: "},
		{"max(['a', 'b'])", sample, "column 1: "},
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
		{"1 + confidence", "column 5: confidence is available only in rewards of classifiers"},
		{"probs[0]", "column 1: probs is available only in rewards of classifiers"},
		{"$env", `column 1: unknown name "$env"`},
		{"text", "column 1: the reward must be a number"},
		{"[1, 2]", "not a slice"},
		{"length + text", "column 8: "},
		{"correct == true", "column 9: "},
		{"len(length)", "column 1: "},
		{"sqrt(text)", "column 6: "},
		{"pow(2)", "column 1: "},
		{"length ? 1 : 0", "column 1: "},
		{"text.foo", "column 6: "},
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

// expr's tree contains each link of a chained comparison twice.
func TestTextExpressionsAreBounded(t *testing.T) {
	source := "length"
	for range 60 {
		source = "(0 < (" + source + ") < 2 ? 1 : 0)"
	}
	expect.Failure(compileText(source))(t, "operations")
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
