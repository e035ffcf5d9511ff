package envs_test

import (
	"context"
	"errors"
	"fmt"
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

// countdown is a task whose only purpose is its options.
type countdown struct {
	From  int     `option:"from" default:"10" range:"[1,100]" help:"where it begins"`
	Share float64 `option:"share" range:"[0,1]" help:"a share"`
	Loud  bool    `option:"loud" help:"whether it is heard"`
	Word  string  `option:"word" default:"go" allowed:"go,stop" help:"the last word"`

	seed uint64
}

func (o *countdown) Task(s envs.Setup) (envs.Task, error) {
	o.seed = s.Seed
	return o, nil
}

func (*countdown) Len(envs.Part) int                        { return 0 }
func (*countdown) Episode(envs.Part, int) (envs.Env, error) { return nil, nil }

func define(name string) envs.Definition {
	return envs.Definition{Name: name, Help: "count", Options: func() any { return &countdown{} }}
}

func TestRegistry(t *testing.T) {
	envs.Register(define("countdown"))
	expect.True(t, slices.ContainsFunc(envs.Definitions(), func(d envs.Definition) bool { return d.Name == "countdown" }), "countdown is missing in %v", envs.Definitions())
	task := must.Get(envs.New("countdown", envs.Setup{Seed: 7}, envs.Settings{"from": "3", "share": "0.25", "loud": "True"}))(t)
	expect.Equal(t, countdown{From: 3, Share: 0.25, Loud: true, Word: "go", seed: 7}, *task.(*countdown), cmp.AllowUnexported(countdown{}))
	for _, test := range []struct {
		name     string
		settings envs.Settings
		want     string
	}{
		{"countdwn", nil, `task "countdwn" is unknown`},
		{"countdown", envs.Settings{"form": "3"}, "task countdown: option form: does not apply: choose from from, share, loud, word; did you mean from?"},
		{"countdown", envs.Settings{"from": "x"}, `task countdown: option from: "x" is not an integer`},
		{"countdown", envs.Settings{"from": "0"}, "task countdown: option from: 0 is out of range; it must be 1 to 100"},
		{"countdown", envs.Settings{"word": "stip"}, `"stip" is not one of go, stop; did you mean stop?`},
	} {
		expect.Failure(envs.New(test.name, envs.Setup{}, test.settings))(t, test.want)
	}
}

func TestModes(t *testing.T) {
	all := []string{envs.SupervisedThenRL, envs.Supervised, envs.RLOnly}
	for _, test := range []struct {
		options         any
		demonstrations  bool
		preferences     bool
		modes           []string
		labels, decides bool
		plays           bool
	}{
		{options: &countdown{}, modes: []string{envs.RLOnly}, plays: true},
		{options: &countdown{}, demonstrations: true, modes: all, plays: true},
		{options: &records{}, demonstrations: true, modes: []string{envs.Supervised}},
		{options: &records{}, preferences: true, modes: []string{envs.RLOnly, envs.RewardModel}},
		{options: &struct {
			countdown
			records
		}{}, modes: all, plays: true},
		{options: &envs.LabelledRows{}, modes: all, labels: true},
		{options: &struct{ envs.DecisionSource }{}, modes: all, labels: true, decides: true},
	} {
		d := envs.Definition{Options: func() any { return test.options }, Demonstrations: test.demonstrations, Preferences: test.preferences}
		expect.Equal(t, test.modes, d.Modes(), test)
		expect.Equal(t, []bool{test.labels, test.decides, test.plays}, []bool{d.Labels(), d.Decides(), d.Plays()}, test)
	}
}

// records is a task of records.
type records struct{}

func (*records) Records(context.Context, envs.Setup) (envs.Records, error) {
	return envs.Records{}, nil
}

// TestProblemFiles: the splits that are asked for, and the files that train and evaluate.
func TestProblemFiles(t *testing.T) {
	var asked []string
	find := func(splits ...string) func(context.Context, string, string, ...string) ([]dataset.Part, error) {
		return func(_ context.Context, name, config string, wanted ...string) (parts []dataset.Part, err error) {
			asked = append(asked, name+"/"+config+"/"+strings.Join(wanted, "+"))
			if name == "missing" {
				return nil, errors.New("no such data set")
			}
			for _, split := range splits {
				parts = append(parts, dataset.Part{Split: split, Files: []string{name + "." + split}})
			}
			return parts, nil
		}
	}
	everything := find("train", "validation", "test")
	type result struct{ Train, Eval, Asked []string }
	for _, test := range []struct {
		setup     envs.Setup
		set, eval string
		want      result
		err       string
	}{
		{envs.Setup{Find: everything}, "", "", result{}, ""},
		{envs.Setup{Find: everything}, "a", "", result{[]string{"a.train"}, []string{"a.validation"}, []string{"a/c/train+validation"}}, ""},
		{envs.Setup{Find: everything}, "a", "b", result{[]string{"a.train"}, []string{"b.test"}, []string{"a/c/train+validation", "b//"}}, ""},
		{envs.Setup{Find: everything, EvalOnly: true}, "a", "a", result{[]string{"a.train"}, []string{"a.test"}, []string{"a/c/train+validation", "a/c/"}}, ""},
		{envs.Setup{Find: everything, EvalOnly: true}, "a", "", result{nil, []string{"a.test"}, []string{"a/c/"}}, ""},
		{envs.Setup{Find: find("train", "validation"), EvalOnly: true}, "a", "", result{nil, []string{"a.validation"}, []string{"a/c/"}}, ""},
		{envs.Setup{Find: find("train"), EvalOnly: true}, "a", "", result{nil, []string{"a.train"}, []string{"a/c/"}}, ""},
		{envs.Setup{}, "a", "", result{[]string{"a"}, nil, nil}, ""},
		{envs.Setup{Find: find("test")}, "a", "", result{}, "option dataset: the data set has no split \"train\"; choose from \"test\""},
		{envs.Setup{Find: everything}, "missing", "", result{}, "option dataset: no such data set"},
		{envs.Setup{Find: everything}, "a", "missing", result{}, "option eval_dataset: no such data set"},
	} {
		asked = nil
		train, eval, err := test.setup.ProblemFiles(test.set, "c", test.eval)
		if test.err != "" {
			expect.Error(t, err, test.err)
			continue
		}
		expect.Equal(t, test.want, result{train, eval, asked}, test.set+", "+test.eval)
		expect.NoError(t, err, "problem files")
	}
	files := must.Get(envs.Setup{Find: everything}.MixedFiles(t.Context(), "m", "train"))(t)
	expect.Equal(t, []string{"m.train"}, files)
	expect.Failure(envs.Setup{Find: everything}.MixedFiles(t.Context(), "m", "other"))(t, "option dataset_mix: m: the data set has no split \"other\"")
	expect.Failure(envs.Setup{Find: everything}.MixedFiles(t.Context(), "missing", "train"))(t, "option dataset_mix: no such data set")
}

// TestForms: an unfinished or doubted answer counts as correct only in any form.
func TestForms(t *testing.T) {
	for _, test := range []struct {
		info envs.Info
		form answer.Form
		want envs.Info
	}{
		{envs.Info{Correct: true, Truth: "4", Answer: "4"}, answer.FinalForm, envs.Info{Correct: true, Truth: "4", Answer: "4"}},
		{envs.Info{Correct: true, Truth: "4", Answer: "2+2"}, answer.FinalForm, envs.Info{Truth: "4", Answer: "2+2", Unfinished: true}},
		{envs.Info{Correct: true, Truth: "4", Answer: "2+2"}, answer.AnyForm, envs.Info{Correct: true, Truth: "4", Answer: "2+2", Unfinished: true, Doubted: true}},
		{envs.Info{Correct: true, Truth: "4", Answer: "4", Doubted: true}, answer.FinalForm, envs.Info{Truth: "4", Answer: "4"}},
		{envs.Info{Truth: "4", Answer: "2+3", Doubted: true}, answer.AnyForm, envs.Info{Truth: "4", Answer: "2+3"}},
	} {
		got := test.info
		got.CheckForm(test.form)
		expect.Equal(t, test.want, got, test)
	}
}

func TestRegisterRefuses(t *testing.T) {
	envs.Register(define("taken"))
	giving := func(o any) envs.Definition {
		return envs.Definition{Name: "new", Help: "new", Options: func() any { return o }}
	}
	for name, d := range map[string]envs.Definition{
		"taken": define("taken"), "no name": define(""), "nothing to learn from": giving(&struct{}{}), "no pointer": giving(3),
		"a bad default": giving(&struct {
			countdown
			Size int `option:"size" default:"big" help:"size"`
		}{}),
		"a name twice": giving(&struct {
			countdown
			From int `option:"from" help:"again"`
		}{}),
	} {
		expect.Panic(t, func() { envs.Register(d) }, name)
	}
}

// TestLabelledRows: the error names the columns of the file and the options that choose them.
func TestLabelledRows(t *testing.T) {
	path := must.File(t, "tickets.csv", "body;queue\nIt broke;support\n")
	find := func(context.Context, string, string, ...string) ([]dataset.Part, error) {
		return []dataset.Part{{Split: dataset.Train, Files: []string{path}}}, nil
	}
	write := func(labels, rows int) {
		text := "body,queue\n"
		for i := range rows {
			text += fmt.Sprintf("text %d,label %d\n", i, i%labels)
		}
		must.Write(t, path, text)
	}
	for _, test := range []struct {
		options envs.LabelledRows
		want    string
	}{
		{envs.LabelledRows{TextColumn: "text", LabelColumn: "label"}, `tickets.csv:1: no columns "text", "label"; columns are "body", "queue" … pass --text-column NAME --label-column NAME`},
		{envs.LabelledRows{TextColumn: "body", LabelColumn: "que"}, `tickets.csv:1: no column "que"; … did you mean "queue"?; pass --label-column NAME`},
		{envs.LabelledRows{TextColumn: "body", LabelColumn: "queue", SplitColumn: "part"}, `no column "part"; … pass --split-column NAME`},
	} {
		_, err := test.options.Rows(t.Context(), envs.Setup{Find: find})
		expect.True(t, expect.Names(err, test.want), "\n got %v\nwant %s", err, test.want)
	}
	right := envs.LabelledRows{TextColumn: "body", LabelColumn: "queue"}
	rows, err := right.Rows(t.Context(), envs.Setup{Find: find})
	expect.True(t, err == nil && len(rows) == 1 && rows[0].Text == "It broke", "%v, %v", rows, err)
	expect.Error(t, (&envs.LabelledRows{TextColumn: "a", LabelColumn: "a"}).Check(), `option label_column: is "a", as text_column is; name two columns`)
	lost := envs.Setup{Find: func(context.Context, string, string, ...string) ([]dataset.Part, error) {
		return nil, errors.New("lost")
	}}
	expect.Failure(right.Rows(t.Context(), lost))(t, "option dataset: lost")
	// Eight labels may have one row each; with more, a tenth of the rows must share theirs.
	for rows, labels := range map[int]int{8: 8, 10: 9} {
		write(labels, rows)
		read := must.Get(right.Rows(t.Context(), envs.Setup{Find: find}))(t)
		expect.Same(t, rows, len(read), "rows of %d labels", labels)
		expect.Same(t, labels, len(must.Get((&envs.LabelledRows{MaxSamples: labels}).Balanced(read))(t)), "one row per label")
		expect.Failure((&envs.LabelledRows{MaxSamples: labels - 1}).Balanced(read))(t, fmt.Sprintf("option max_samples: %d rows cannot be shared out among %d labels", labels-1, labels))
	}
	write(9, 9)
	expect.Failure(right.Rows(t.Context(), envs.Setup{Find: find}))(t, `option label_column: column "queue" has 9 different values in 9 rows`)
}
