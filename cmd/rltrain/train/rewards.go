package train

import (
	"context"
	"errors"
	"math"

	"rltrain/envs"
	"rltrain/envs/reward"
	"rltrain/rl/policy"
	"rltrain/torch"
	"rltrain/torch/hub"
)

// rewards are those of --reward, with the model of --judge where they ask one; nil are the task's own.
func (t *trainer) rewards(ctx context.Context) (rewards *reward.Text, done func(), err error) {
	c, done := t.config, func() {}
	judge := c.Judge.Model
	spec, judged, own := c.Rewards.Reward, map[string]bool{}, map[string]envs.Reward{"accuracy": accuracy}
	model := &judgeModel{}
	for _, r := range c.Task.Rewards {
		own[r.Name], judged[r.Name] = r.New(c.Settings, model), r.Judged
		if r.Judged && judge != "" && spec == "" {
			spec = r.Name
		}
	}
	if spec == "" {
		return nil, done, nil
	}
	critics := &critics{trainer: t}
	list, err := reward.ParseText(spec, own, reward.Options{Judge: model, Critic: critics.open(ctx)})
	if err != nil {
		critics.close()
		return nil, nil, c.Errorf("reward", "%v", err)
	}
	done = func() {
		list.Close()
		critics.close()
		model.close()
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
		if err = model.open(ctx, t, judge); err != nil {
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

// judgeModel is the judge on a thread of its own: rewards ask it from many goroutines, while the policy waits for them.
type judgeModel struct {
	judge  *policy.Judge
	thread *torch.Thread
}

func (m *judgeModel) open(ctx context.Context, t *trainer, name string) error {
	found, err := t.hub.Model(ctx, name, hub.Weights)
	if err != nil {
		return err
	}
	if m.judge, err = policy.NewJudge(found.Dir, t.dtype()); err != nil {
		return err
	}
	m.thread = torch.NewThread()
	return nil
}

// close does nothing where none was opened.
func (m *judgeModel) close() {
	if m.thread != nil {
		m.thread.Close()
		m.judge.Close()
	}
}

// Choose implements envs.Scorer.
func (m *judgeModel) Choose(ctx context.Context, prompt envs.Observation, choices []string) (shares []float64, err error) {
	err = m.thread.Do(ctx, func(ctx context.Context) error {
		shares, err = m.judge.Choose(ctx, prompt, choices)
		return err
	})
	return shares, err
}
