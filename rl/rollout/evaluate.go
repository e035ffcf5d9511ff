package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// Evaluate plays n episodes of the evaluation part once each, starting with from, and scores the answers. It plays fewer if
// the part has fewer. c.Rewards score only tasks that are envs.Open.
func Evaluate(ctx context.Context, sampler Generator, task envs.Task, from, n int, c Config) (rl.AnswerScores, error) {
	if most := task.Len(envs.Eval); most > 0 {
		n = max(0, min(n, most-from))
	}
	indices := make([]int, n)
	for i := range indices {
		indices[i] = from + i
	}
	c.Samples = 1
	if _, open := task.(envs.Open); !open {
		c.Rewards = nil
	}
	var failed error // without c.Failed
	unverified, failedBefore := map[int]bool{}, c.Failed
	c.Failed = func(episode, sample int, err error) {
		switch {
		case errors.Is(err, envs.ErrNotScored):
			unverified[episode] = true
		case failedBefore != nil:
			failedBefore(episode, sample, err)
		default:
			failed = cmp.Or(failed, err)
		}
	}
	played, err := Play(ctx, sampler, task, envs.Eval, indices, c)
	if err := cmp.Or(err, failed); err != nil {
		return rl.AnswerScores{}, fmt.Errorf("evaluating: %w", err)
	}
	var infos []*envs.Info
	for i, g := range played.Groups {
		if !unverified[indices[i]] {
			infos = append(infos, g[0].Info)
		}
	}
	if len(infos) == 0 && n > 0 {
		return rl.AnswerScores{}, fmt.Errorf("evaluating: none of %d answers could be verified", n)
	}
	scores := rl.ScoreAnswers(infos)
	if c.Rewards != nil {
		mean, standardError, err := meanReward(played)
		if err != nil {
			return scores, fmt.Errorf("evaluating: %w", err)
		}
		scores.Reward, scores.RewardError = &mean, standardError
		if n := accepted(played); scores.Verified() && n >= 0 {
			scores.Accepted = &n
		}
	}
	return scores, nil
}

// meanReward is over the episodes that have a reward, with its standard error.
func meanReward(p Played) (mean, standardError float64, err error) {
	sum, squares, n := 0.0, 0.0, 0.0
	for _, g := range p.Groups {
		for _, x := range g {
			if reward := x.Reward(); !math.IsNaN(reward) {
				sum, squares, n = sum+reward, squares+reward*reward, n+1
			}
		}
	}
	if n == 0 {
		return 0, 0, cmp.Or(p.Scores.AllFailed(), errors.New("no episode has a reward"))
	}
	mean = sum / n
	return mean, math.Sqrt(max(0, squares/n-mean*mean) / n), nil
}

// accepted counts the completions with the higher of two rewards; −1 if there are more than two rewards. If there is one, it
// accepts if it is above 0.
func accepted(p Played) (n int) {
	least, most := math.Inf(1), math.Inf(-1)
	for _, g := range p.Groups {
		if reward := g[0].Reward(); !math.IsNaN(reward) {
			least, most = min(least, reward), max(most, reward)
		}
	}
	for _, g := range p.Groups {
		switch reward := g[0].Reward(); {
		case math.IsNaN(reward), reward == least && (least < most || most <= 0):
		case reward != most:
			return -1
		default:
			n++
		}
	}
	return n
}

// Greedy is c with the most likely tokens instead of sampled ones.
func (c Config) Greedy() Config {
	c.Sampling = torch.Sampling{RepetitionPenalty: c.Sampling.RepetitionPenalty}
	return c
}
