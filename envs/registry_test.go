package envs_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
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
	played := define("played")
	worked := define("worked")
	worked.Demonstrations = true
	expect.Equal(t, [][]string{{envs.RLOnly}, {envs.SupervisedThenRL, envs.Supervised, envs.RLOnly}}, [][]string{played.Modes(), worked.Modes()})
	expect.True(t, !played.Labels() && played.Plays(), "a task of episodes is taken for one of labels")
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

// TestMissingColumns: the error names the columns of the file and the options that choose them.
func TestMissingColumns(t *testing.T) {
	path := must.File(t, "tickets.csv", "body;queue\nIt broke;support\n")
	find := func(context.Context, string, string, ...string) ([]dataset.Part, error) {
		return []dataset.Part{{Split: dataset.Train, Files: []string{path}}}, nil
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
}
