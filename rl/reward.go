package rl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"rltrain/envs"
)

// WeightedReward is one of several rewards whose weighted sum a run maximises.
type WeightedReward struct {
	Name    string
	Weight  float64       // finite and not 0
	Timeout time.Duration // of one judgement; 0 means none
	Judge   envs.Reward
}

// Rewards is a list of named, weighted rewards.
type Rewards struct {
	list []WeightedReward
}

// NewRewards checks the list and returns it.
func NewRewards(list ...WeightedReward) (*Rewards, error) {
	if len(list) == 0 {
		return nil, errors.New("rewards: the list is empty")
	}
	names := map[string]bool{}
	for _, r := range list {
		if r.Name == "" || names[r.Name] {
			return nil, fmt.Errorf("reward %q is given twice or has no name", r.Name)
		}
		names[r.Name] = true
		if !isFinite(r.Weight) || r.Weight == 0 || r.Timeout < 0 {
			return nil, fmt.Errorf("reward %s: weight %v, timeout %v: the weight must be finite and not 0, the timeout not negative", r.Name, r.Weight, r.Timeout)
		}
	}
	return &Rewards{list: list}, nil
}

// Scores is the outcome of judging a batch of completions.
type Scores struct {
	// Total is the weighted sum of each completion, NaN where one of the rewards failed:
	// a sum without it would be on another scale.
	Total   []float64
	Rewards []RewardScores // in the order of the list
}

// RewardScores is what one reward said.
type RewardScores struct {
	Name     string
	Values   []float64 // unweighted; NaN where it failed
	Mean     float64   // over the values that are there
	Std      float64   // unbiased
	Failures int
	Failure  string // the first one, "" where there is none
}

// Score judges every completion by every reward, up to parallel completions at a time
// (at least 1). A judgement that takes longer than its timeout is given up, even where
// it ignores its context, and counts as failed, like an error, a panic or a value that
// is not finite. The only error is that of ctx.
func (r *Rewards) Score(ctx context.Context, completions []envs.Completion, parallel int) (Scores, error) {
	s := Scores{Total: make([]float64, len(completions)), Rewards: make([]RewardScores, len(r.list))}
	failures := make([][]error, len(r.list))
	for j, reward := range r.list {
		s.Rewards[j] = RewardScores{Name: reward.Name, Values: make([]float64, len(completions))}
		failures[j] = make([]error, len(completions))
	}
	slots := make(chan struct{}, max(1, parallel))
	var wait sync.WaitGroup
	for i := range completions {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			for j, reward := range r.list {
				s.Rewards[j].Values[i], failures[j][i] = reward.judge(ctx, completions[i])
			}
		})
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return Scores{}, err
	}
	for j, reward := range r.list {
		score := &s.Rewards[j]
		for i, err := range failures[j] {
			s.Total[i] += reward.Weight * score.Values[i]
			if err == nil {
				continue
			}
			if score.Failures++; score.Failures == 1 {
				score.Failure = err.Error()
			}
		}
		score.Mean, score.Std, _ = rewardMoments(score.Values)
	}
	return s, nil
}

// judge returns NaN with every error.
func (r WeightedReward) judge(ctx context.Context, c envs.Completion) (float64, error) {
	value, err := Within(ctx, r.Timeout, func(ctx context.Context) (float64, error) { return r.Judge(ctx, c) })
	if err == nil && !isFinite(r.Weight*value) {
		err = fmt.Errorf("the value is %v", value)
	}
	if err != nil {
		return math.NaN(), fmt.Errorf("reward %s: %w", r.Name, err)
	}
	return value, nil
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
