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

// part is what a rank has played of a rollout, as the ranks tell it to each other.
type part struct {
	Groups      []rl.Group
	Informed    []bool // of each trajectory: gob does not tell nil from a pointer to nothing
	Judged      []judgedTurn
	Scores      reward.Scores // of these turns
	Failed      []failedEpisode
	Environment time.Duration
}

// judgedTurn is a turn that was judged by Config.Rewards.
type judgedTurn struct{ Group, Sample, Turn int }

// failedEpisode is an episode that Config.Failed is to hear of.
type failedEpisode struct {
	Episode, Sample  int
	Text             string
	Timeout, TooLong bool

	err error // of one that was played here
}

// toldError is the error of an episode of another rank.
type toldError struct {
	text string
	kind error // nil, or what errors.Is is to find
}

func (e toldError) Error() string { return e.text }
func (e toldError) Unwrap() error { return e.kind }

func (f failedEpisode) cause() error {
	switch {
	case f.err != nil:
		return f.err
	case f.Timeout:
		return toldError{f.Text, within.ErrTimeout}
	case f.TooLong:
		return toldError{f.Text, ErrTooLong}
	}
	return toldError{text: f.Text}
}

// play plays this rank's share of the episodes, and returns what all ranks have played of them.
func play(ctx context.Context, sampler Writer, task envs.Task, of envs.Part, indices []int, c Config, now func() time.Time) (Played, error) {
	if servers, ok := sampler.(*remote.Servers); ok {
		if err := servers.Share(ctx); err != nil {
			return Played{}, err
		}
	}
	from, to := c.Group.Share(len(indices))
	tell := c.Failed
	r := &rollout{sampler: sampler, config: c, now: now}
	if tell != nil {
		r.config.Failed = r.note
	}
	own, err := r.play(dist.Until(ctx), task, of, indices[from:to])
	parts, err := dist.Together(c.Group, own, err)
	if err != nil {
		return Played{}, err
	}
	return c.join(parts, tell), nil
}

// note remembers a failed episode for Config.Failed.
func (r *rollout) note(episode, sample int, err error) {
	r.failed = append(r.failed, failedEpisode{
		Episode: episode, Sample: sample, Text: err.Error(), Timeout: errors.Is(err, within.ErrTimeout), TooLong: errors.Is(err, ErrTooLong), err: err,
	})
}

func (r *rollout) play(ctx context.Context, task envs.Task, of envs.Part, indices []int) (part, error) {
	if err := r.open(ctx, task, of, indices); err != nil {
		return part{}, err
	}
	if err := r.start(ctx, nil); err != nil {
		return part{}, err
	}
	return r.finish(ctx)
}

// join lays the parts of all ranks end to end, and pays what the rewards gave.
func (c Config) join(parts []part, tell func(episode, sample int, err error)) Played {
	var p Played
	var judged []judgedTurn
	for _, one := range parts {
		at := 0
		for _, g := range one.Groups {
			for _, x := range g {
				if one.Informed[at] && x.Info == nil {
					x.Info = &envs.Info{}
				}
				at++
			}
		}
		for _, j := range one.Judged {
			judged = append(judged, judgedTurn{j.Group + len(p.Groups), j.Sample, j.Turn})
		}
		p.Groups = append(p.Groups, one.Groups...)
		p.Scores = joinScores(p.Scores, one.Scores)
		p.Environment = max(p.Environment, one.Environment)
		for _, f := range one.Failed {
			tell(f.Episode, f.Sample, f.cause())
		}
	}
	if c.Rewards == nil {
		return p
	}
	if c.Centre != nil {
		c.Centre.Apply(&p.Scores)
		c.Rewards.Observe(p.Scores)
	}
	for i, j := range judged {
		x := p.Groups[j.Group][j.Sample]
		x.Turns[j.Turn].Reward += p.Scores.Total[i]
		note(x, p.Scores, i)
	}
	return p
}
