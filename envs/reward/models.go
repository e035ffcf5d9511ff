package reward

import (
	"errors"
	"math"
	"strings"

	"github.com/rltrain/rltrain/envs"
)

func init() {
	Register(Definition{
		Name: "model", Argument: "DIR", Help: "score of a reward model or classifier; with #LABEL, the probability of a label",
		Text: func(s Setup) (TextReward, error) {
			if s.Argument == "" {
				return TextReward{}, errors.New("missing model; write model:DIR")
			}
			critic, err := s.critic(s.Argument)
			if err != nil {
				return TextReward{}, err
			}
			return TextReward{Batch: critic.Score}, nil
		},
	})
}

// critic opens a reward model.
func (s Setup) critic(name string) (envs.Critic, error) {
	if s.Critic == nil {
		return nil, errors.New("reward models are not available here")
	}
	return s.Critic(name)
}

// Centre shifts the zero of reward models to the mean of their first scores. A reward model is trained on differences, so
// its zero is arbitrary, and a reward far from 0 on average adds noise to a policy gradient without a baseline (Stiennon
// et al. 2020, section 3.4). It is part of a run's state: the mean stays that of the first rollout.
type Centre struct {
	Means map[string]float64 `json:"means,omitempty"` // by reward name
}

// Apply subtracts the means from the totals of a rollout. The values of the single rewards stay unchanged.
func (c *Centre) Apply(s *Scores) {
	for _, r := range s.Rewards {
		if !strings.HasPrefix(r.Name, "model:") {
			continue
		}
		mean, known := c.Means[r.Name]
		if !known {
			n := 0.0
			for _, v := range r.Values { // of all ranks; r.Mean is of this one
				if !math.IsNaN(v) {
					mean, n = mean+v, n+1
				}
			}
			if n == 0 {
				continue
			}
			mean /= n
			if c.Means == nil {
				c.Means = map[string]float64{}
			}
			c.Means[r.Name] = mean
		}
		for i, v := range r.Values {
			if !math.IsNaN(v) {
				s.Total[i] -= r.Weight * mean
			}
		}
	}
}
