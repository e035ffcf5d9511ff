package digits

import (
	_ "embed"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/dataset"
)

//go:embed sum_digits.yaml
var sumRecipe string

//go:embed reverse_digits.yaml
var reverseRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: Sum, Help: "add up all digits of some integers, step by step", Recipe: sumRecipe,
		Options: func() any { return &lists{} }, Demonstrations: true, Forms: true,
	})
	envs.Register(envs.Definition{
		Name: Reverse, Help: "write an integer backwards, step by step", Recipe: reverseRecipe,
		Options: func() any { return &numbers{} }, Demonstrations: true, Forms: true,
	})
}

// common are the options of both tasks.
type common struct {
	Max        int  `option:"digits_max" default:"999" range:"[10,1e15]" help:"largest integer"`
	RequireTag bool `option:"require_tag" help:"pay only answers with [ANSWER] in them"`
	// As in programs, what is imitated then does not say which form is right.
	SlipShare float64 `option:"slip_share" range:"[0,1)" help:"share of the program's own worked solutions that are wrong in a likely way, for experiments: rewards and preferences alone tell them apart"`
}

// lists are the options of sum_digits.
type lists struct {
	Count int `option:"digits_count" default:"4" range:"[2,64]" help:"integers in a list at most"`
	common
}

func (o *lists) Task(s envs.Setup) (envs.Task, error) {
	return New(Sum, s.Seed, Options{Count: o.Count, Max: o.Max, RequireTag: o.RequireTag, SlipShare: o.SlipShare, Short: s.Text})
}

// numbers are the options of reverse_digits.
type numbers struct{ common }

func (o *numbers) Task(s envs.Setup) (envs.Task, error) {
	return New(Reverse, s.Seed, Options{Max: o.Max, RequireTag: o.RequireTag, SlipShare: o.SlipShare, Short: s.Text})
}

// Answers reads rows with a number called answer and a completion.
func (common) Answers(path, field string) (judges []envs.Verifier, usual answer.Match, err error) {
	for r, err := range dataset.Records(path) {
		if err != nil {
			return nil, "", err
		}
		value, _ := r.Fields.Get("answer")
		truth, err := wholeNumber(value)
		if err != nil {
			return nil, "", fmt.Errorf("%s: field \"answer\": %w", r.Place(), err)
		}
		completion, _ := r.Fields.Get(field)
		text, ok := completion.(string)
		if !ok {
			return nil, "", fmt.Errorf("%s: field %q is missing or no text", r.Place(), field)
		}
		found := answer.Extract(text)
		info := judge(found, text, truth)
		judges = append(judges, func(match answer.Match) *envs.Info {
			// What Extract finds has a value and no unit: apart from its spelling there is one rule, that of the tasks.
			judged := *info
			judged.Correct = info.Correct && (match != answer.Exact || match.Same(found.Text, info.Truth))
			return &judged
		})
	}
	if len(judges) == 0 {
		return nil, "", fmt.Errorf("%s has no rows", path)
	}
	return judges, answer.Numeric, nil
}

// judge compares what was found in a text with the right answer.
func judge(found answer.Number, text string, truth int64) *envs.Info {
	return &envs.Info{
		Correct:  found.Value != nil && found.Value.Cmp(new(big.Rat).SetInt64(truth)) == 0,
		FormatOK: answer.Tagged(text),
		FoundBy:  string(found.FoundBy),
		Answer:   found.Text,
		Truth:    strconv.FormatInt(truth, 10),
	}
}

// wholeNumber reads a number of a row, which may be text.
func wholeNumber(value any) (int64, error) {
	switch v := value.(type) {
	case nil:
		return 0, errors.New("it is missing")
	case int64:
		return v, nil
	case string:
		if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%.40q is not a whole number", fmt.Sprint(value))
}
