package reward

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/envs"
)

// processOptions are the options of the reward process.
type processOptions struct {
	Model     string `option:"model" arg:"DIR" help:"reward model or classifier, as in model:DIR, or a process reward model of TRL"`
	Separator string `option:"separator" default:"\\n" help:"what ends a step; \\n is a newline"`
	Total     string `option:"total" default:"sum" allowed:"sum,mean,last,min" help:"what the rewards of the steps add up to: the sum, mean, last or smallest of the scores"`
}

func init() {
	Register(Definition{
		Name: "process", Help: "score of a reward model at the end of each step, as the reward of that step",
		Options: func() any { return &processOptions{} },
		Text: func(s Setup) (TextReward, error) {
			o := *s.Options.(*processOptions)
			o.Separator = strings.ReplaceAll(o.Separator, `\n`, "\n")
			switch {
			case o.Model == "":
				return TextReward{}, errors.New("missing model; write process(model=DIR)")
			case o.Separator == "":
				return TextReward{}, errors.New("the separator is empty; leave it out for \\n")
			}
			model, err := s.critic(o.Model)
			if err != nil {
				return TextReward{}, err
			}
			critic, ok := model.(envs.StepCritic)
			if !ok {
				return TextReward{}, fmt.Errorf("%s cannot score steps", o.Model)
			}
			return TextReward{Steps: func(ctx context.Context, completions []envs.Completion) ([][]Step, []error) {
				return o.steps(ctx, critic, completions)
			}}, nil
		},
	})
}

// steps scores each completion at the end of each of its steps.
func (o processOptions) steps(ctx context.Context, critic envs.StepCritic, completions []envs.Completion) ([][]Step, []error) {
	ends := make([][]int, len(completions))
	for i, c := range completions {
		ends[i] = stepEnds(c.Generated, o.Separator)
	}
	scores, errs := critic.Steps(ctx, completions, ends, o.Separator)
	all := make([][]Step, len(completions))
	for i := range all {
		for k, score := range scores[i] {
			all[i] = append(all[i], Step{End: ends[i][k], Value: score})
		}
		o.share(all[i])
	}
	return all, errs
}

// share turns the scores s of K steps into rewards r with the total S:
//
//	sum   S = Σ s       r_k = s_k
//	mean  S = Σ s/K     r_k = s_k/K
//	last  S = s_K       r_k = s_k − s_{k−1}, with s_0 = 0
//	min   S = min s     r_k = m_k − m_{k−1}, with m_k the smallest of the first k and m_0 = 0
//
// Sources: sum, Shao et al. 2024 (DeepSeekMath), section 4.1.3, and Wang et al. 2024 (Math-Shepherd); min, Cheng et al. 2025 (PURE).
func (o processOptions) share(steps []Step) {
	before := 0.0
	for k := range steps {
		switch s := &steps[k]; o.Total {
		case "mean":
			s.Value /= float64(len(steps))
		case "last":
			s.Value, before = s.Value-before, s.Value
		case "min":
			least := s.Value
			if k > 0 {
				least = min(before, s.Value)
			}
			s.Value, before = least-before, least
		}
	}
}

// stepEnds are the ends of the steps of a text, each after its separator; a part of space alone belongs to the step before it, or
// to the first. A text has one step at least.
func stepEnds(text, separator string) (ends []int) {
	from := 0
	for at := 0; ; {
		next := strings.Index(text[at:], separator)
		if next < 0 {
			break
		}
		at += next + len(separator)
		switch blank := strings.TrimSpace(text[from:at]) == ""; {
		case !blank:
			ends, from = append(ends, at), at
		case len(ends) > 0:
			ends[len(ends)-1], from = at, at
		}
	}
	if len(ends) == 0 || strings.TrimSpace(text[from:]) != "" {
		return append(ends, len(text))
	}
	ends[len(ends)-1] = len(text)
	return ends
}
