package reward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/internal/yamldepth"
)

// question is a question of a rubric.
type question struct {
	Question string   `yaml:"question"`
	Weight   *float64 `yaml:"weight"` // nil = 1
}

func (q question) weight() float64 {
	if q.Weight == nil {
		return 1
	}
	return *q.Weight
}

func init() {
	Register(Definition{
		Name: "rubric", Argument: "FILE", NeedsJudge: true, Help: "weighted yes/no questions to the model of --judge, -1 to 1",
		Text: func(s Setup) (TextReward, error) {
			switch {
			case s.Argument == "":
				return TextReward{}, errors.New("missing file; write rubric:FILE")
			case s.Judge == nil:
				return TextReward{}, errors.New("a rubric needs a judge; set --judge")
			}
			questions, err := readRubric(s.Argument)
			if err != nil {
				return TextReward{}, err
			}
			return TextReward{Each: rubricReward(s.Judge, questions)}, nil
		},
	})
}

// maxQuestions bounds the questions per completion.
const maxQuestions = 1000

func readRubric(path string) ([]question, error) {
	data, err := smallfile.Read(path)
	if err != nil {
		return nil, err
	}
	var questions []question
	if err := yamldepth.Check(data); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := yaml.UnmarshalWithOptions(data, &questions, yaml.Strict()); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		return nil, fmt.Errorf("%s: not a list of questions and weights: %s", path, first)
	}
	if len(questions) == 0 || len(questions) > maxQuestions {
		return nil, fmt.Errorf("%s: %d questions; use 1 to %d", path, len(questions), maxQuestions)
	}
	for i, q := range questions {
		if strings.TrimSpace(q.Question) == "" {
			return nil, fmt.Errorf("%s: question %d is empty", path, i+1)
		}
		if w := q.weight(); !finite(w) || w == 0 || math.Abs(w) > maxWeight {
			return nil, fmt.Errorf("%s: question %d has weight %v; use a number from -1e6 to 1e6 other than 0", path, i+1, w)
		}
	}
	return questions, nil
}

// rubricReward is Σ w·P(Yes) / Σ |w| over the judge's answers.
func rubricReward(judge envs.Scorer, questions []question) envs.Reward {
	return func(ctx context.Context, c envs.Completion) (float64, error) {
		sum, all := 0.0, 0.0
		for _, q := range questions {
			shares, err := judge.Choose(ctx, envs.Observation{Messages: []envs.Message{
				{Role: envs.RoleSystem, Content: "You judge an answer. " + strings.TrimSpace(q.Question) + " Say Yes or No."},
				{Role: envs.RoleUser, Content: "Question:\n" + strings.TrimSpace(prompt(c.Observation)) + "\n\nAnswer:\n" + envs.Quoted(c.Text)},
				{Role: envs.RoleAssistant, Content: "Verdict:"},
			}}, []string{"No", "Yes"})
			if err != nil {
				return 0, fmt.Errorf("asking the judge: %w", err)
			}
			sum, all = sum+q.weight()*shares[1], all+math.Abs(q.weight())
		}
		return sum / all, nil
	}
}
