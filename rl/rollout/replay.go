package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/torch"
)

// ReplayOptions say how a step samples turns from a replay buffer.
type ReplayOptions struct {
	PromptsPerStep int     `option:"prompts_per_step" default:"32" range:"[1,1048576]" common:"true" help:"prompts per step"`
	NumUpdateSteps int     `option:"num_update_steps" default:"256" range:"[1,1048576]" help:"turns sampled from the replay buffer per step, at most as many as it holds"`
	BatchSize      int     `option:"rl_batch_size" default:"32" range:"[1,1048576]" help:"batch size"`
	BufferSize     int     `option:"buffer_size" default:"100000" range:"[1,)" help:"turns that the replay buffer holds; the oldest are dropped first"`
	Temperature    float64 `option:"temperature" default:"1" range:"(0,)" help:"sampling temperature of rollouts"`
	Gamma          float64 `option:"gamma" default:"0.99" range:"[0,1]" help:"discount factor"`
	BufferCache    string  `option:"buffer_cache" arg:"FILE" help:"file of the replay buffer, for load_buffer and cache_buffer"`
	LoadBuffer     bool    `option:"load_buffer" needs:"buffer_cache" help:"start with the turns in buffer_cache"`
	CacheBuffer    bool    `option:"cache_buffer" needs:"buffer_cache" help:"save the buffer after each rollout; with load_buffer to a new file next to buffer_cache"`
}

// ReplayConfig configures a Replay.
type ReplayConfig struct {
	ReplayOptions
	MaxNew  int          // tokens of an action at most
	Rewards *reward.Text // nil = the task's own
	Seed    uint64
	Load    string // file that the buffer starts with; "" = an empty buffer
	Save    string // file that each step saves the buffer to; "" = none
	Now     func() time.Time
	Group   *dist.Group // the ranks that play together; nil = this process only
}

// Replay is a source of single turns out of a replay buffer, as in stepwise mathematics, where a turn is a line. A step plays
// PromptsPerStep episodes, gives each turn its discounted return G_t = r_t + γ·G_{t+1}, adds the turns to the buffer, and
// samples NumUpdateSteps turns from it with replacement. The reward of a sample is its turn's return.
//
// The buffer is first in, first out, and keeps its turns across steps: a policy learns from completions of earlier policies
// without importance weights, which is biased. Turns whose reward failed, turns without a sampled token and failed episodes
// are dropped.
type Replay struct {
	config  ReplayConfig
	sampler Generator
	task    envs.Task
	buffer  *rl.Replay
	state   replayState
}

type replayState struct {
	Cursor int            `json:"cursor"`
	Tokens int64          `json:"tokens"`
	Buffer rl.ReplayState `json:"buffer"`
	Centre reward.Centre  `json:"centre"` // of reward models
	// Rewards is what rewards remember.
	Rewards *reward.State `json:"rewards,omitempty"`
}

// NewReplay makes a source, and loads its buffer. The caller keeps owning the sampler.
func NewReplay(sampler Generator, task envs.Task, c ReplayConfig) (*Replay, error) {
	switch {
	case c.PromptsPerStep < 1 || c.NumUpdateSteps < 1 || c.MaxNew < 1:
		return nil, fmt.Errorf("%d prompts per step, %d new tokens, %d turns per step: each must be at least 1", c.PromptsPerStep, c.MaxNew, c.NumUpdateSteps)
	case !(c.Temperature > 0):
		return nil, fmt.Errorf("temperature %v: rollouts need one above 0", c.Temperature)
	case !(c.Gamma >= 0 && c.Gamma <= 1):
		return nil, fmt.Errorf("gamma %v: want one in [0,1]", c.Gamma)
	}
	if c.Now == nil {
		c.Now = func() time.Time { return time.Time{} }
	}
	buffer, err := rl.NewReplay(c.BufferSize)
	if err != nil {
		return nil, err
	}
	r := &Replay{config: c, sampler: sampler, task: task, buffer: buffer}
	if c.Load == "" {
		return r, nil
	}
	return r, r.load(c.Load)
}

// load reads a buffer and checks that its tokens are the policy's.
func (r *Replay) load(path string) error {
	if err := r.buffer.Load(path); err != nil {
		return err
	}
	p := r.sampler.Policy()
	for _, e := range r.buffer.State().Entries {
		x := e.Trajectory
		if len(x.Tokens) > p.MaxLength() {
			return fmt.Errorf("%s: a trajectory has %d tokens, the model has %d positions", path, len(x.Tokens), p.MaxLength())
		}
		for _, token := range x.Tokens {
			if token < 0 || int(token) >= p.VocabSize() {
				return fmt.Errorf("%s: token %d is not one of the model's %d: the buffer belongs to another model", path, token, p.VocabSize())
			}
		}
		for _, turn := range e.Turns {
			if x.TurnSample(turn, 1).Len() == 0 {
				return fmt.Errorf("%s: a turn has no sampled token to learn from", path)
			}
		}
	}
	return nil
}

// Len is the number of turns in the buffer.
func (r *Replay) Len() int { return r.buffer.Len() }

// State implements rl.Stateful.
func (r *Replay) State() any {
	r.state.Buffer, r.state.Rewards = r.buffer.State(), stateOf(r.config.Rewards)
	return r.state
}

// Restore implements rl.Stateful.
func (r *Replay) Restore(state json.RawMessage) error {
	if err := json.Unmarshal(state, &r.state); err != nil {
		return err
	}
	if err := restoreRewards(r.config.Rewards, r.state.Rewards); err != nil {
		return err
	}
	return r.buffer.Restore(r.state.Buffer)
}

// Next implements train.Source.
func (r *Replay) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	c := r.config
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	began := c.Now()
	var failed failures
	p, err := play(ctx, r.sampler, r.task, envs.Train, upFrom(r.state.Cursor, c.PromptsPerStep), Config{
		Group: c.Group, Samples: 1, MaxNew: c.MaxNew, Seed: c.Seed, Step: uint64(at.Step), Version: at.Version, Rewards: c.Rewards, Centre: &r.state.Centre,
		Sampling: torch.Sampling{Temperature: c.Temperature}, Failed: failed.add,
	}, c.Now)
	if err != nil {
		return nil, err
	}
	if err := p.Scores.AllFailed(); err != nil {
		return nil, err
	}
	step := &rl.Step{Figures: rl.Meter{}}
	if err := failed.report(step, at.Step, p.Groups); err != nil {
		return nil, err
	}
	r.state.Cursor += c.PromptsPerStep
	step.Figures.Mean("time/generation", (c.Now().Sub(began) - p.Environment).Seconds(), 1)
	step.Figures.Mean("time/environment", p.Environment.Seconds(), 1)
	added, skipped := r.keep(p.Groups)
	if c.Save != "" {
		if err := r.buffer.Save(c.Save); err != nil {
			return nil, err
		}
	}
	r.sample(step, at)
	if err := r.measure(step, p, added, skipped); err != nil {
		return nil, err
	}
	step.Records = func(prompts int) ([]rl.Record, error) {
		return records(r.sampler.Policy(), at, p.Groups, nil, nil, prompts)
	}
	return step, nil
}

// keep puts the turns of a step into the buffer.
func (r *Replay) keep(groups []rl.Group) (added, skipped int) {
	for _, g := range groups {
		x := g[0]
		returns := rl.ReturnsToGo(x.Rewards(), r.config.Gamma)
		for i := range returns {
			if x.TurnSample(i, 1).Len() == 0 {
				returns[i] = math.NaN()
			}
		}
		n := r.buffer.Add(x, returns)
		added, skipped = added+len(returns)-n, skipped+n
	}
	return added, skipped
}

// sample takes the samples of a step from the buffer. A turn that is sampled twice is one sample.
func (r *Replay) sample(step *rl.Step, at rl.At) {
	c := r.config
	sampled := r.buffer.Sample(rl.Stream(c.Seed, rl.StreamReplay, uint64(at.Step)), min(c.NumUpdateSteps, r.buffer.Len()))
	known := map[rl.Experience]*rl.Sample{}
	for _, e := range sampled {
		x := known[e]
		if x == nil {
			x = e.Trajectory.TurnSample(e.Turn, c.Temperature)
			x.Rewards = make([]float64, x.Len())
			x.Rewards[x.Len()-1] = e.Return
			known[e] = x
		}
		step.Samples = append(step.Samples, x)
		step.Figures.Mean("buffer/staleness", float64(at.Version-min(at.Version, e.Trajectory.Version)), 1)
	}
}

// measure fills in the figures of a step.
func (r *Replay) measure(step *rl.Step, p Played, added, skipped int) (err error) {
	m := step.Figures
	all := slices.Concat(p.Groups...)
	var rewards []float64
	turns := 0
	for _, x := range all {
		rewards = append(rewards, x.Reward())
		r.state.Tokens += int64(len(x.Tokens))
		turns += len(x.Turns)
	}
	if step.Health, err = describe(m, r.sampler.Policy(), all, [][]float64{rewards}); err != nil {
		return err
	}
	step.Health.ZeroStd = 0 // one sample per episode: no groups whose rewards could be equal
	rewardFigures(m, p.Scores)
	m.Last("num_tokens", float64(r.state.Tokens))
	m.Last("buffer/size", float64(r.buffer.Len()))
	m.Total("buffer/added", float64(added))
	m.Total("buffer/skipped", float64(skipped))
	m.Mean("episode_length", float64(turns), float64(len(all)))
	step.Line = syncLine(infos(all), fmt.Sprintf("buffer=%d ", r.buffer.Len()))
	return nil
}
