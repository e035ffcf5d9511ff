package rollout

import (
	"context"
	"fmt"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/rl/policy"
	"rltrain/torch"
)

// Evaluate plays n episodes of the evaluation part, from the given one on, once each, as c says but for the number of
// samples and the rewards, and counts the answers; fewer where the part has no more.
func Evaluate(ctx context.Context, sampler *policy.Sampler, task envs.Task, from, n int, c Config) (rl.AnswerScores, error) {
	if most := task.Len(envs.Eval); most > 0 {
		n = max(0, min(n, most-from))
	}
	indices := make([]int, n)
	for i := range indices {
		indices[i] = from + i
	}
	c.Samples, c.Rewards = 1, nil
	played, err := Play(ctx, sampler, task, envs.Eval, indices, c)
	if err != nil {
		return rl.AnswerScores{}, fmt.Errorf("evaluating: %w", err)
	}
	infos := make([]*envs.Info, n)
	for i, g := range played.Groups {
		infos[i] = g[0].Info
	}
	return rl.ScoreAnswers(infos), nil
}

// Greedy is c with the likeliest tokens.
func (c Config) Greedy() Config {
	c.Sampling = torch.Sampling{RepetitionPenalty: c.Sampling.RepetitionPenalty}
	return c
}
