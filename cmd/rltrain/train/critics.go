package train

import (
	"context"

	"rltrain/envs"
	"rltrain/rl/policy"
	"rltrain/torch"
)

// critics are the models of a list of rewards. They compute on a thread of their own, while the policy waits for them.
type critics struct {
	*trainer
	thread *torch.Thread
	models []*policy.RewardModel
}

// open opens a model for a reward.
func (all *critics) open(ctx context.Context) func(name string) (envs.Critic, error) {
	return func(name string) (envs.Critic, error) {
		m, err := policy.LoadRewardModel(ctx, all.hub, name)
		if err != nil {
			return nil, err
		}
		if all.thread == nil {
			all.thread = torch.NewThread()
		}
		all.models = append(all.models, m)
		return critic{m, all.thread}, nil
	}
}

func (all *critics) close() {
	if all.thread != nil {
		all.thread.Close()
	}
	for _, m := range all.models {
		m.Close()
	}
	all.thread, all.models = nil, nil
}

// critic is a reward model as rewards see it.
type critic struct {
	model  *policy.RewardModel
	thread *torch.Thread
}

// Score implements envs.Critic. What cannot be read has an error, and the rest is scored in one go.
func (m critic) Score(ctx context.Context, completions []envs.Completion) ([]float64, []error) {
	scores, errs := make([]float64, len(completions)), make([]error, len(completions))
	var sequences [][]int32
	var of []int
	for i, c := range completions {
		prompt, answer := policy.Judged(c)
		ids, err := m.model.Encode(prompt, answer)
		if err != nil {
			errs[i] = err
			continue
		}
		sequences, of = append(sequences, ids), append(of, i)
	}
	err := m.thread.Do(ctx, func(ctx context.Context) error {
		found, err := m.model.Scores(ctx, sequences)
		for i, score := range found {
			scores[of[i]] = score
		}
		return err
	})
	if err != nil {
		for _, i := range of {
			errs[i] = err
		}
	}
	return scores, errs
}
