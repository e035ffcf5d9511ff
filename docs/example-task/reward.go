package main

import (
	"context"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
)

func init() {
	reward.Register(reward.Definition{
		Name: "short", Help: "1 for a completion of few words, less for each further one",
		Options: func() any { return &short{} },
		Text: func(s reward.Setup) (reward.TextReward, error) {
			return reward.TextReward{Each: s.Options.(*short).score}, nil
		},
	})
}

// short has the options of the reward, which --reward 'short(words=2)' sets.
type short struct {
	Words int `option:"words" default:"1" range:"[1,1000]" help:"words that score 1"`
}

func (o *short) score(_ context.Context, c envs.Completion) (float64, error) {
	n := max(o.Words, len(strings.Fields(c.Action.Text)))
	return float64(o.Words) / float64(n), nil
}
