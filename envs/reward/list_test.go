package reward

import (
	"math"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

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
		{"", "empty item"},
		{"accuracy,", "empty item"},
		{"acuracy", `unknown reward "acuracy"; did you mean "accuracy"?`},
		{"quality", `unknown reward "quality"; choose`},
		{"judge.sh", "to run a program write cmd:'sh judge.sh'"},
		{"judge.py", "to run a program write cmd:'python3 judge.py'"},
		{"cmd", "write cmd:'PROGRAM ARGS'"},
		{"cmd:", "the command is empty"},
		{"cmd:\"''\"", "the command is empty"},
		{"cmd:'./judge", "unclosed quote"},
		{"cmd:./judge 'x", "unclosed quote in the command"},
		{"cmd:./judge x\\", "trailing backslash"},
		{"cmd:'./judge' x", "after the closing quote"},
		{"cmd:./judge --level=2", "belong to --level"},
		{"cmd:env LEVEL=2 ./judge", `has weight "2 ./judge"`},
		{"cmd:./no-such-judge", `reward "cmd:./no-such-judge": exec: "./no-such-judge": stat ./no-such-judge: no such file`},
		{"cmd:cat,calibration", "cannot be combined"},
		{"expr:confidence,cmd:cat", "cannot be combined"},
		{"accuracy=1000001", `has weight "1000001"; use a number from -1e6 to 1e6`},
		{"accuracy,accuracy=2", `"accuracy" occurs twice`},
		{"accuracy=", `reward "accuracy" has weight ""`},
		{"accuracy=0", `weight "0"`},
		{"f1=NaN", `weight "NaN"`},
		{"expr", "write expr:'EXPR'"},
		{"expr:", "expression is empty"},
		{"expr:'correct", "unclosed quote"},
		{"expr:'a' == label ? 1 : 0", "after the closing quote"},
		{"expr:'correct +'", `reward "expr:correct +": column 9: unexpected token EOF`},
		{"expr:'1 + accurate'", `column 5: unknown name "accurate"`},
		{"expr:'1 + confidense'", `column 5: unknown name "confidense"; did you mean "confidence"?`},
		{"expr:'2*sqr(confidence)'", `column 3: unknown function "sqr"; did you mean "sqrt"?`},
		{"expr:'sum(probs, # * 2)'", `column 1: unknown function "sum"`},
		{"expr:'confidence > 0.5 ? 1 : 0'", "column 12: a condition on probabilities"},
		{"expr:'correct && entropy ? 1 : 0'", "column 12: a condition on probabilities"},
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
		{"expr:'pow(1)'", "column 1: pow does not take 1 arguments"},
		{"expr:'log(probs)'", "column 5: probs is a list"},
		{"expr:'" + strings.Repeat("1+", 3000) + "1'", "maximum 4096"},
	} {
		_, err := ParseLabels(test.spec, []string{"law", "math"}, Options{})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s:\n got  %v\n want …%s…", test.spec, err, test.want)
			continue
		}
		expect.True(t, !strings.Contains(err.Error(), "\n"), "%s: the error has several lines: %q", test.spec, err)
	}
	expect.Fails(ParseLabels("accuracy", nil, Options{}))(t, "no labels: no error")
}

// expr's tree repeats the middle of a chained comparison; nesting must not take exponential time.
func TestParseLabelsBoundsChainedComparisons(t *testing.T) {
	spec := "correct"
	for range 60 {
		spec = "(0 < (" + spec + ") < 2 ? 1 : 0)"
	}
	expect.Failure(ParseLabels("expr:"+spec, []string{"a"}, Options{}))(t, "operations")
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
