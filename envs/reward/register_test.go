package reward

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
}

func TestOptionsOfRewards(t *testing.T) {
	for spec, want := range map[string]string{
		"novelty(per=0)":             "out of range",
		"novelty(par=1)":             "did you mean per",
		"novelty(per)":               "not option=value",
		"novelty(per=1,per=2)":       "occurs twice",
		"novelty(sides=left)":        `"left" is not one of both, above`,
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
	for _, want := range []string{"accuracy: 1 if", "cmd:'PROGRAM ARGS': ", "novelty(per=X,sides=NAME): length above the mean of the last rollout, per: characters that are worth 1 (default 1)", "tests: share"} {
		expect.True(t, strings.Contains(text, want), "no %q in %s", want, text)
	}
	for _, want := range []string{"calibration: ", "f1: ", "model:DIR: "} {
		expect.True(t, strings.Contains(labels, want) && !strings.Contains(labels, "rubric"),
			"no %q, or a rubric, in %s", want, labels)
	}
}
