package rollout

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

// places is a task of which few episodes run at the same time. Each of an episode's samples shows another text if varied.
type places struct {
	envs.Task
	free   *atomic.Int64
	varied bool
	waits  bool // episodes begin together
	shown  *atomic.Int64
}

func (places) Replies() []string { return nil }
func (p places) Waits() bool     { return p.waits }

func (p places) Episode(part envs.Part, index int) (envs.Env, error) {
	e, err := p.Task.Episode(part, index)
	return &placed{Env: e, places: p}, err
}

type placed struct {
	envs.Env
	places
	held bool
}

func (p *placed) Reset(ctx context.Context) (envs.Observation, error) {
	if p.free.Add(-1) < 0 {
		p.free.Add(1)
		return envs.Observation{}, envs.ErrFull
	}
	p.held = true
	o, err := p.Env.Reset(ctx)
	if p.varied {
		o.Text = fmt.Sprintf("%s %d", o.Text, p.shown.Add(1))
	}
	return o, err
}

func (p *placed) Close() error {
	if p.held {
		p.free.Add(1)
	}
	p.held = false
	return nil
}

// TestPlaces: an environment with few places plays all episodes, some after others. If whole groups fit, the samples are those of
// an environment with many places.
func TestPlaces(t *testing.T) {
	p, indices := tiny(t), []int{4, 11, 5}
	m := sampler(t, p, 4)
	want := played(t, m, dialogues(3), indices, sampled).Groups
	for _, c := range []struct {
		places        int64
		varied, waits bool
	}{
		{1, false, false}, {2, false, false}, {3, false, false}, {4, false, false}, {6, false, false}, {9, false, false}, {100, true, false}, {2, true, false},
		{1, false, true}, {2, false, true}, {3, false, true}, {4, false, true}, {6, false, true}, {9, false, true}, {2, true, true},
	} {
		task := places{Task: dialogues(3), free: &atomic.Int64{}, varied: c.varied, waits: c.waits, shown: &atomic.Int64{}}
		task.free.Store(c.places)
		groups := played(t, m, task, indices, sampled).Groups
		expect.Same(t, c.places, task.free.Load(), "free places at the end")
		if c.places%3 == 0 {
			expect.Equal(t, want, groups)
		}
		var samples []*rl.Sample
		texts := map[string]bool{}
		for i, g := range groups {
			expect.Same(t, sampled.Samples, len(g), "samples")
			for sample, x := range g {
				expect.True(t, x.Prompt == indices[i] && x.Index == sample && len(x.Turns) == 2 && x.Validate() == nil, "%+v", x)
				texts[fmt.Sprint(x.Tokens[:12])] = true
				samples = append(samples, x.Sample(1))
			}
		}
		sampledAs(t, p, samples, 1)
		expect.True(t, len(texts) > 3, "%d places: the samples are alike", c.places)
	}
}

// together is a task whose episodes begin once n of them do.
type together struct {
	places
	all *sync.WaitGroup
}

func (g together) Episode(part envs.Part, index int) (envs.Env, error) {
	e, err := g.Task.Episode(part, index)
	return &meeting{Env: e, all: g.all}, err
}

type meeting struct {
	envs.Env
	all *sync.WaitGroup
}

func (m *meeting) Reset(ctx context.Context) (envs.Observation, error) {
	m.all.Done()
	m.all.Wait()
	return m.Env.Reset(ctx)
}

// TestBeginTogether: the episodes of programs and servers do not wait for the start of others.
func TestBeginTogether(t *testing.T) {
	m := sampler(t, tiny(t), 4)
	task := together{places{Task: dialogues(3), waits: true}, &sync.WaitGroup{}}
	task.all.Add(9)
	c := sampled
	c.Timeout = 5 * time.Second
	expect.Equal(t, played(t, m, dialogues(3), []int{4, 11, 5}, c).Groups, played(t, m, task, []int{4, 11, 5}, c).Groups)
}

// TestNoPlace: asynchronous rollouts need a place for each episode.
func TestNoPlace(t *testing.T) {
	task := places{Task: dialogues(3), free: &atomic.Int64{}}
	task.free.Store(2)
	c := tokensConfig()
	c.Async, c.MaxStaleness = true, 1
	s := tokens(t, sampler(t, tiny(t), 4), task, c)
	expect.Failure(s.Next(t.Context(), rl.At{}))(t, "asynchronous rollouts", "after 2 of")
}
