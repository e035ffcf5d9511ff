package reward

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
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
	var resumed Centre
	must.Do(t, json.Unmarshal(state, &resumed))
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
	write := func(text string) {
		t.Helper()
		must.Do(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write("- question: Is it polite?\n  weight: 3\n- question: Is it short?\n  weight: -1\n- {question: Is it right?}\n")
	r := parseText(t, "rubric:"+path+"=2", nil, Options{Judge: &politeJudge{}})
	expect.True(t, r.Judged() != "", "the list has a rubric")
	s := must.Get(r.Score(t.Context(), completions("please", "go", "mute"), 2))(t)
	want := []float64{2 * (3*0.75 - 0.5 + 0.5) / 5, 2 * (3*0.5 - 0.75 + 0.75) / 5}
	diff := cmp.Diff(want, s.Total[:2])
	expect.True(t, diff == "" && s.Rewards[0].Failures == 1, "%s, %d failures", diff, s.Rewards[0].Failures)
	for text, want := range map[string]string{
		"":                "0 questions",
		"question: one":   "not a list",
		"- question: ' '": "question 1 is empty",
		"- {question: a}\n- {question: b, weight: 0}": "question 2 has weight 0",
		"- {question: a, weight: .nan}":               "has weight NaN",
		"- {question: a, points: 3}":                  "unknown field",
	} {
		write(text)
		if _, err := ParseText("rubric:"+path, nil, Options{Judge: &politeJudge{}}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want …%s…", text, err, want)
		}
	}
	expect.Failure(ParseText("rubric:nowhere.yaml", nil, Options{Judge: &politeJudge{}}))(t, "nowhere.yaml")
}
