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

//go:embed sum_digits_model.yaml
var sumModelRecipe string

//go:embed reverse_digits_model.yaml
var reverseModelRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: Sum, Help: "sum the digits of a list of integers, step by step", Recipe: sumRecipe, ModelRecipe: sumModelRecipe,
		Options: func() any { return &lists{} }, Demonstrations: true, Forms: true,
	})
	envs.Register(envs.Definition{
		Name: Reverse, Help: "reverse the digits of an integer, step by step", Recipe: reverseRecipe, ModelRecipe: reverseModelRecipe,
		Options: func() any { return &numbers{} }, Demonstrations: true, Forms: true,
	})
}

// common are the options that both tasks share.
type common struct {
	Max        int  `option:"digits_max" default:"999" range:"[10,1e15]" help:"largest integer"`
	RequireTag bool `option:"require_tag" help:"reward only answers marked with [ANSWER]"`
	// As in the task code, demonstrations by themselves then do not show which answer is correct.
	SlipShare float64 `option:"slip_share" range:"[0,1)" help:"fraction of demonstrations with a plausible mistake, for experiments on what RL adds to SFT"`
}

// lists are the options of sum_digits.
type lists struct {
	Count int `option:"digits_count" default:"4" range:"[2,64]" help:"maximum length of a list"`
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

// Answers reads rows with a number in the field answer and a completion.
func (common) Answers(path, field string) (verifiers []envs.Verifier, usual answer.Match, err error) {
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
			return nil, "", fmt.Errorf("%s: field %q is missing or not text", r.Place(), field)
		}
		found := answer.Extract(text)
		info := verify(found, text, truth)
		verifiers = append(verifiers, func(match answer.Match) *envs.Info {
			// Extract finds values without units, so Exact is the only rule that can differ.
			verified := *info
			verified.Correct = info.Correct && (match != answer.Exact || match.Same(found.Text, info.Truth))
			return &verified
		})
	}
	if len(verifiers) == 0 {
		return nil, "", fmt.Errorf("%s: no rows", path)
	}
	return verifiers, answer.Numeric, nil
}

// verify compares the extracted answer with the correct one.
func verify(found answer.Number, text string, truth int64) *envs.Info {
	return &envs.Info{
		Correct:  found.Value != nil && found.Value.Cmp(new(big.Rat).SetInt64(truth)) == 0,
		FormatOK: answer.Tagged(text),
		FoundBy:  string(found.FoundBy),
		Answer:   found.Text,
		Truth:    strconv.FormatInt(truth, 10),
	}
}

// wholeNumber reads an integer that may be stored as text.
func wholeNumber(value any) (int64, error) {
	switch v := value.(type) {
	case nil:
		return 0, errors.New("missing")
	case int64:
		return v, nil
	case string:
		if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%.40q is not an integer", fmt.Sprint(value))
}
