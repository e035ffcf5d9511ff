package train

import (
	"context"
	"errors"
	"math"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
)

// rewards are those of --reward, with the model of --judge where they ask one; nil are the task's own.
func (t *trainer) rewards(ctx context.Context) (rewards *reward.Text, done func(), err error) {
	c, done := t.config, func() {}
	judge := c.Judge.Model
	spec, judged, own := c.Rewards.Reward, map[string]bool{}, map[string]envs.Reward{"accuracy": accuracy}
	models := shared.NewModels(ctx, t.hub)
	for _, r := range c.Task.Rewards {
		own[r.Name], judged[r.Name] = r.New(c.Settings, models), r.NeedsJudge
		if r.NeedsJudge && judge != "" && spec == "" {
			spec = r.Name
		}
	}
	if spec == "" {
		return nil, done, nil
	}
	list, err := reward.ParseText(spec, own, reward.Options{Judge: models, Critic: models.Critic})
	if err != nil {
		models.Close()
		return nil, nil, c.Errorf("reward", "%v", err)
	}
	done = func() {
		list.Close()
		models.Close()
	}
	asks := list.Rubric()
	for _, name := range list.Names() {
		if judged[name] {
			asks = name
		}
	}
	switch {
	case asks != "" && judge == "":
		err = c.Errorf("reward", "%s asks a language model: name one with --judge", asks)
	case asks == "" && judge != "":
		err = c.Errorf("judge", "no reward in %s asks a language model", spec)
	case asks != "":
		if err = models.OpenJudge(judge, t.dtype()); err != nil {
			err = c.Errorf("judge", "%v", err)
		}
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return list, done, nil
}

// accuracy pays 1 for an answer that the task finds right, and 0 for one that it does not, or not yet.
func accuracy(_ context.Context, c envs.Completion) (float64, error) {
	if c.Info == nil && math.IsNaN(c.Reward) {
		return 0, errors.New("the task has not judged the answer")
	}
	if c.Info != nil && c.Info.Correct {
		return 1, nil
	}
	return 0, nil
}
