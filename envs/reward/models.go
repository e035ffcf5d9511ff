package reward

import (
	"context"
	"errors"
	"math"
	"strings"

	"github.com/rltrain/rltrain/envs"
)

// critic is the reward model:NAME.
func (o Options) critic(name string) (textReward, error) {
	if o.Critic == nil {
		return nil, errors.New("there are no reward models here")
	}
	opened, err := o.Critic(name)
	return criticReward{opened}, err
}

// criticReward is a model that scores completions.
type criticReward struct{ envs.Critic }

func (r criticReward) judge(ctx context.Context, completions []envs.Completion, _ int) judged {
	values, errs := r.Score(ctx, completions)
	return judged{values, errs}
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
		if !strings.HasPrefix(r.Name, prefixes[kindModel]) {
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
