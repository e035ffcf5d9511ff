package rollout

import (
	"context"
	"errors"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/within"
	"github.com/rltrain/rltrain/rl"
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
	for rank, part := range parts {
		if rank == g.Rank() {
			all = all.join(own)
		} else {
			all = all.join(part.received())
		}
	}
	return all, nil
}

// join adds what another rank has played, behind p.
func (p Played) join(q Played) Played {
	for _, at := range q.unscored {
		p.unscored = append(p.unscored, turnID{at.Group + len(p.Groups), at.Sample, at.Turn})
	}
	p.Groups = append(p.Groups, q.Groups...)
	p.Scores = joinScores(p.Scores, q.Scores)
	p.Environment = max(p.Environment, q.Environment)
	p.failed = append(p.failed, q.failed...)
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
	Groups      []rl.Group
	Informed    []bool // of each trajectory: gob does not distinguish nil from a pointer to a zero value
	Unscored    []turnID
	Scores      reward.Scores
	Failed      []sentFailure
	Environment time.Duration
}

type sentFailure struct {
	Episode, Sample  int
	Text             string
	Timeout, TooLong bool
}

func sent(p Played) sentPlayed {
	s := sentPlayed{Groups: p.Groups, Unscored: p.unscored, Scores: p.Scores, Environment: p.Environment}
	for _, g := range p.Groups {
		for _, x := range g {
			s.Informed = append(s.Informed, x.Info != nil)
		}
	}
	for _, f := range p.failed {
		s.Failed = append(s.Failed, sentFailure{f.episode, f.sample, f.err.Error(), errors.Is(f.err, within.ErrTimeout), errors.Is(f.err, ErrTooLong)})
	}
	return s
}

func (s sentPlayed) received() Played {
	at := 0
	for _, g := range s.Groups {
		for _, x := range g {
			if s.Informed[at] && x.Info == nil {
				x.Info = &envs.Info{}
			}
			at++
		}
	}
	p := Played{Groups: s.Groups, Scores: s.Scores, Environment: s.Environment, unscored: s.Unscored}
	for _, f := range s.Failed {
		err := remoteError{text: f.Text}
		switch {
		case f.Timeout:
			err.kind = within.ErrTimeout
		case f.TooLong:
			err.kind = ErrTooLong
		}
		p.failed = append(p.failed, failedEpisode{f.Episode, f.Sample, err})
	}
	return p
}

// remoteError is the error of an episode of another rank.
type remoteError struct {
	text string
	kind error // nil, or what errors.Is is to find
}

func (e remoteError) Error() string { return e.text }
func (e remoteError) Unwrap() error { return e.kind }
