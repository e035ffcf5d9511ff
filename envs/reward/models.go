package reward

import (
	"errors"
	"math"
	"strings"
)

func init() {
	Register(Definition{
		Name: "model", Argument: "DIR", Help: "score of a reward model, or of a classifier; with #LABEL the probability of a label",
		Text: func(s Setup) (TextReward, error) {
			if s.Argument == "" {
				return TextReward{}, errors.New("it names no model: write model:DIR")
			}
			if s.Critic == nil {
				return TextReward{}, errors.New("there are no reward models here")
			}
			critic, err := s.Critic(s.Argument)
			if err != nil {
				return TextReward{}, err
			}
			return TextReward{Batch: critic.Score}, nil
		},
	})
}

// Centre moves the zero of models to the mean of what they first score. A reward model is trained on differences,
// so its zero means nothing, and a reward that is far from 0 on average is noise to a policy gradient that has no
// baseline (Stiennon et al. 2020, section 3.4). It is part of a run's state: the mean stays that of the first rollout.
type Centre struct {
	Means map[string]float64 `json:"means,omitempty"` // by the name of the reward
}

// Apply takes the means off the totals of a rollout. The values of the single rewards stay as the models gave them.
func (c *Centre) Apply(s *Scores) {
	for _, r := range s.Rewards {
		if !strings.HasPrefix(r.Name, "model:") {
			continue
		}
		mean, known := c.Means[r.Name]
		if !known {
			if r.N == 0 {
				continue
			}
			mean = r.Mean
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
