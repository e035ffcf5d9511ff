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
	"github.com/rltrain/rltrain/rl/policy"
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
	MaxNew      int          // tokens of an action at most
	MaxThinking int          // tokens of a thought at most; 0 = no limit
	Rewards     *reward.Text // nil = the task's own
	Seed        uint64
	Load        string // file that the buffer starts with; "" = an empty buffer
	Save        string // file that each step saves the buffer to; "" = none
	Now         func() time.Time
	Group       *dist.Group // the ranks that play together; nil = this process only
}

// Replay is a source of single turns out of a replay buffer, as in stepwise mathematics, where a turn is a line. A step plays
// PromptsPerStep episodes, gives each turn its discounted return G_t = r_t + γ·G_{t+1}, adds the turns to the buffer, and
// samples NumUpdateSteps turns from it with replacement. The reward of a sample is its turn's return.
//
// The buffer is first in, first out, and keeps its turns across steps: a policy learns from completions of earlier policies
// without importance weights, which is biased. Turns whose reward failed, turns without a sampled token and failed episodes
// are dropped.
type Replay struct {
	config ReplayConfig
	player *Tokens // plays the episodes of a step
	buffer *rl.Replay
}

type replayState struct {
	tokensState
	Buffer rl.ReplayState `json:"buffer"`
}

// NewReplay makes a source, and loads its buffer. The caller keeps owning the sampler.
func NewReplay(sampler Generator, task envs.Task, c ReplayConfig) (*Replay, error) {
	switch {
	case c.NumUpdateSteps < 1:
		return nil, fmt.Errorf("num_update_steps %d: it must be at least 1", c.NumUpdateSteps)
	case !(c.Gamma >= 0 && c.Gamma <= 1):
		return nil, fmt.Errorf("gamma %v: want one in [0,1]", c.Gamma)
	}
	player, err := NewTokens(sampler, task, TokensConfig{
		Options: Options{PromptsPerStep: c.PromptsPerStep, SamplesPerPrompt: 1, Sampling: Sampling{Temperature: c.Temperature}},
		MaxNew:  c.MaxNew, MaxThinking: c.MaxThinking, Rewards: c.Rewards, Seed: c.Seed, Now: c.Now, Group: c.Group,
	})
	if err != nil {
		return nil, err
	}
	buffer, err := rl.NewReplay(c.BufferSize)
	if err != nil {
		return nil, err
	}
	r := &Replay{config: c, player: player, buffer: buffer}
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
	p := r.player.sampler.Policy()
	for _, e := range r.buffer.State().Entries {
		x := e.Trajectory
		if i := unknownToken(p, x.Tokens); i >= 0 {
			return fmt.Errorf("%s: token %d is not one of the model's %d: the buffer belongs to another model", path, x.Tokens[i], p.VocabSize())
		}
		for _, turn := range e.Turns {
			switch s := x.TurnSample(turn, 1); {
			case s.Len() == 0:
				return fmt.Errorf("%s: a turn has no sampled token to learn from", path)
			case len(s.Tokens) > p.MaxLength():
				return fmt.Errorf("%s: a trajectory has %d tokens, the model has %d positions", path, len(s.Tokens), p.MaxLength())
			}
		}
	}
	return nil
}

// unknownToken is the index of the first token that a policy does not have, −1 for none.
func unknownToken(p *policy.CausalLM, tokens []int32) int {
	return slices.IndexFunc(tokens, func(token int32) bool { return token < 0 || int(token) >= p.VocabSize() })
}

// Len is the number of turns in the buffer.
func (r *Replay) Len() int { return r.buffer.Len() }

// State implements rl.Stateful.
func (r *Replay) State() any { return replayState{r.player.State().(tokensState), r.buffer.State()} }

// Restore implements rl.Stateful.
func (r *Replay) Restore(state json.RawMessage) error {
	var s struct{ Buffer rl.ReplayState }
	if err := json.Unmarshal(state, &s); err != nil {
		return err
	}
	if err := r.player.Restore(state); err != nil {
		return err
	}
	return r.buffer.Restore(s.Buffer)
}

// Next implements train.Source.
func (r *Replay) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	c := r.config
	played, err := r.player.collect(ctx, at)
	if err != nil {
		return nil, err
	}
	step := &rl.Step{Figures: rl.Meter{}}
	if err := played.failed.report(step, at.Step, played.groups); err != nil {
		return nil, err
	}
	added, skipped := r.keep(played.groups)
	if c.Save != "" {
		if err := r.buffer.Save(c.Save); err != nil {
			return nil, err
		}
	}
	r.sample(step, at)
	if err := r.measure(step, played, added, skipped); err != nil {
		return nil, err
	}
	step.Records = func(prompts int) ([]rl.Record, error) {
		return records(r.player.sampler.Policy(), at, played.groups, nil, nil, prompts)
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
func (r *Replay) measure(step *rl.Step, p collection, added, skipped int) error {
	m := step.Figures
	all := slices.Concat(p.groups...)
	turns := 0
	for _, x := range all {
		turns += len(x.Turns)
	}
	// One sample per episode: there are no groups whose rewards could be equal.
	if err := r.player.measureAll(step, p, all, [][]float64{rl.Group(all).Rewards()}); err != nil {
		return err
	}
	step.Health.ZeroStd = 0
	m.Last("buffer/size", float64(r.buffer.Len()))
	m.Total("buffer/added", float64(added))
	m.Total("buffer/skipped", float64(skipped))
	m.Mean("episode_length", float64(turns), float64(len(all)))
	step.Line = syncLine(infos(all), fmt.Sprintf("buffer=%d ", r.buffer.Len()))
	return nil
}
