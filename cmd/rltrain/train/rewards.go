package train

import (
	"context"
	"os"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl/judge"
)

// rewards are those of --reward, with the model of --judge where they ask one; nil are the task's own.
func (t *trainer) rewards(ctx context.Context) (rewards *reward.Text, done func(), err error) {
	c, done := t.config, func() {}
	model, spec := c.Judge.Model, c.Rewards.Reward
	for _, r := range c.Task.Rewards {
		if r.NeedsJudge && model != "" && spec == "" {
			spec = r.Name
		}
	}
	if spec == "" {
		return nil, done, nil
	}
	models := shared.NewModels(ctx, t.hub)
	models.Now = t.template.Now
	list, err := reward.ParseText(spec, reward.OfTask(c.Task.Rewards, c.Settings), reward.Options{Timeout: c.Rewards.Limit(), Warn: t.console.Warn, Judge: models, Critic: models.Critic})
	if err != nil {
		models.Close()
		return nil, nil, c.Errorf("reward", "%v", err)
	}
	done = func() {
		list.Close()
		models.Close()
	}
	asks := list.Judged()
	switch {
	case asks != "" && model == "":
		err = c.Errorf("reward", "%s asks a language model: name one with --judge", asks)
	case asks == "" && model != "":
		err = c.Errorf("judge", "no reward in %s asks a language model", spec)
	case asks != "" && c.Judge.URL != "":
		var remote *judge.Client
		if remote, err = judge.New(c.Judge.Options, model, os.Getenv("JUDGE_API_KEY")); err == nil {
			models.UseJudge(remote)
		} else {
			err = c.Errorf("judge_url", "%v", err)
		}
	case asks != "":
		if err = models.OpenJudge(model, t.dtype()); err != nil {
			err = c.Errorf("judge", "%v", err)
		}
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return list, done, nil
}
