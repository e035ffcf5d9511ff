package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
)

// LabelReplayOptions say how a classifier explores, and how a step samples its replay buffer.
type LabelReplayOptions struct {
	Capacity     int     `option:"replay_size" default:"10000" range:"[1,)" help:"choices that the replay buffer holds; the oldest are dropped first"`
	Updates      int     `option:"replay_updates" default:"8" range:"[1,65536]" help:"updates per step, each on rl_batch_size choices sampled from the replay buffer"`
	EpsilonStart float64 `option:"epsilon_start" default:"1" range:"[0,1]" help:"fraction of random choices in the first step"`
	EpsilonEnd   float64 `option:"epsilon_end" default:"0.05" range:"[0,1]" help:"fraction of random choices after the decay"`
	EpsilonDecay float64 `option:"epsilon_decay" default:"0.5" range:"(0,1]" help:"fraction of the steps over which epsilon falls linearly"`
}

// Check returns what is wrong with the options.
func (o LabelReplayOptions) Check() error {
	switch {
	case o.Capacity < 1 || o.Updates < 1:
		return fmt.Errorf("replay_size %d, replay_updates %d: each must be at least 1", o.Capacity, o.Updates)
	case o.EpsilonEnd > o.EpsilonStart:
		return envs.OptionErrorf("epsilon_end", "%v is above epsilon_start %v; exploration must not grow", o.EpsilonEnd, o.EpsilonStart)
	case !(o.EpsilonDecay > 0 && o.EpsilonDecay <= 1):
		return envs.OptionErrorf("epsilon_decay", "%v must be above 0 and at most 1", o.EpsilonDecay)
	}
	return nil
}

// LabelReplayConfig configures a LabelReplay.
type LabelReplayConfig struct {
	LabelReplayOptions
	BatchSize int // transitions of an update
	Steps     int // of the run
	Seed      uint64
}

// LabelReplay is a source of a classifier's choices from a replay buffer. In each step Labels, made with Epsilon, chooses
// labels: the most likely one, or with probability ε any. The choices go into the buffer, and Updates·BatchSize of them are
// sampled from it with replacement.
type LabelReplay struct {
	config LabelReplayConfig
	player *Labels
	buffer *rl.Transitions
}

// NewLabelReplay makes a source with an empty buffer.
func NewLabelReplay(p *Labels, c LabelReplayConfig) (*LabelReplay, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.BatchSize < 1 || c.Steps < 1 {
		return nil, errors.New("a replay buffer needs a batch size and a number of steps of at least 1")
	}
	buffer, err := rl.NewTransitions(c.Capacity)
	return &LabelReplay{config: c, player: p, buffer: buffer}, err
}

// epsilon is the fraction of random choices in a step.
func (r *LabelReplay) epsilon(step int) float64 {
	c := r.config
	fallen := min(1, float64(step)/(c.EpsilonDecay*float64(c.Steps)))
	return c.EpsilonStart + fallen*(c.EpsilonEnd-c.EpsilonStart)
}

// labelReplayState is all that changes from step to step.
type labelReplayState struct {
	Player any `json:"player"`
	Buffer any `json:"buffer"`
}

// State implements rl.Stateful.
func (r *LabelReplay) State() any { return labelReplayState{r.player.State(), r.buffer.State()} }

// Restore implements rl.Stateful.
func (r *LabelReplay) Restore(state json.RawMessage) error {
	var parts struct{ Player, Buffer json.RawMessage }
	if err := json.Unmarshal(state, &parts); err != nil {
		return err
	}
	if err := r.player.Restore(parts.Player); err != nil {
		return err
	}
	return r.buffer.Restore(parts.Buffer)
}

// Next implements train.Source.
func (r *LabelReplay) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	c, epsilon := r.config, r.epsilon(at.Step)
	r.player.Explore(epsilon)
	step, err := r.player.Next(ctx, at)
	if err != nil {
		return nil, err
	}
	for _, x := range step.Samples {
		r.buffer.Add(rl.TransitionOf(x))
	}
	step.Samples, step.Groups = nil, nil
	known := map[*rl.Transition]*rl.Sample{} // a choice that is sampled twice is one sample
	for _, x := range r.buffer.Sample(rl.Stream(c.Seed, rl.StreamReplay, uint64(at.Step)), c.Updates*c.BatchSize) {
		if known[x] == nil {
			known[x] = x.Sample()
		}
		step.Samples = append(step.Samples, known[x])
		step.Figures.Mean("buffer/staleness", float64(at.Version-min(at.Version, x.Version)), 1)
	}
	step.Figures.Last("epsilon", epsilon)
	step.Figures.Last("buffer/size", float64(r.buffer.Len()))
	if step.Line != nil {
		step.Line = func(m rl.Meter) string {
			return fmt.Sprintf("DQN Update: td_loss=%.4f, q_values=%.4f, q_target=%.4f, entropy=%.4f, epsilon=%.3f, buffer=%.0f, grad_norm=%.3f",
				m.Get("td_loss"), m.Get("q_values"), m.Get("q_target"), m.Get("entropy"), m.Get("epsilon"), m.Get("buffer/size"), m.Get("grad_norm"))
		}
	}
	return step, nil
}
