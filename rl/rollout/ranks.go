package rollout

import (
	"context"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/remote"
)

// share has this rank play its share of n episodes, and returns what all ranks have played, as one process would play it.
// Servers that generate get the policy's weights first. All ranks call it together.
func share(ctx context.Context, g *dist.Group, sampler Generator, n int, play func(ctx context.Context, from, to int) (Played, error)) (Played, error) {
	if servers, ok := sampler.(*remote.Servers); ok {
		if err := servers.Share(ctx); err != nil {
			return Played{}, err
		}
	}
	from, to := g.Share(n)
	own, err := play(dist.Until(ctx), from, to)
	if g.Size() == 1 {
		return own, err
	}
	parts, err := dist.Together(g, sent(own), err)
	if err != nil {
		return Played{}, err
	}
	var all Played
	for _, part := range parts {
		all = all.join(part.received())
	}
	return all, nil
}

// join adds what another rank has played, behind p.
func (p Played) join(q Played) Played {
	for _, at := range q.Unscored {
		p.Unscored = append(p.Unscored, turnID{at.Group + len(p.Groups), at.Sample, at.Turn})
	}
	p.Groups = append(p.Groups, q.Groups...)
	p.Steps = append(p.Steps, q.Steps...)
	p.Scores = joinScores(p.Scores, q.Scores)
	p.Environment = max(p.Environment, q.Environment)
	p.Failed = append(p.Failed, q.Failed...)
	return p
}

// joinScores puts the scores of two batches end to end.
func joinScores(a, b reward.Scores) reward.Scores {
	if len(a.Rewards) == 0 {
		return b
	}
	a.Total = append(a.Total, b.Total...)
	for i := range b.Rewards {
		x, y := &a.Rewards[i], b.Rewards[i]
		x.Values = append(x.Values, y.Values...)
		if x.Failures += y.Failures; x.Failure == "" {
			x.Failure = y.Failure
		}
	}
	return a
}

// sentPlayed is Played as it travels between ranks.
type sentPlayed struct {
	Played
	Informed []bool // of each trajectory: gob does not distinguish nil from a pointer to a zero value
}

func sent(p Played) sentPlayed {
	s := sentPlayed{Played: p}
	for _, x := range slices.Concat(p.Groups...) {
		s.Informed = append(s.Informed, x.Info != nil)
	}
	return s
}

func (s sentPlayed) received() Played {
	for i, x := range slices.Concat(s.Groups...) {
		if s.Informed[i] && x.Info == nil {
			x.Info = &envs.Info{}
		}
	}
	return s.Played
}
