package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rltrain/rltrain/rl"
)

// LabelReplayOptions say how a classifier explores, and what it learns from in a step.
type LabelReplayOptions struct {
	Capacity     int     `option:"replay_size" default:"10000" range:"[1,)" help:"choices kept to learn from; the oldest go first"`
	Updates      int     `option:"replay_updates" default:"8" range:"[1,65536]" help:"updates of a step, each on rl_batch_size choices drawn from those that are kept"`
	EpsilonStart float64 `option:"epsilon_start" default:"1" range:"[0,1]" help:"share of choices that are drawn from all labels alike, in the first step"`
	EpsilonEnd   float64 `option:"epsilon_end" default:"0.05" range:"[0,1]" help:"and when it has fallen"`
	EpsilonDecay float64 `option:"epsilon_decay" default:"0.5" range:"(0,1]" help:"share of the steps over which it falls, in a straight line"`
	Gamma        float64 `option:"gamma" default:"1" range:"[0,1]" needs:"episodes" help:"discount of later rewards"`
	NSteps       int     `option:"n_step" default:"1" range:"[1,65536]" needs:"episodes" help:"rewards that are added up before the target network is asked"`
}

// Check refuses an exploration that grows.
func (o LabelReplayOptions) Check() error {
	switch {
	case o.Capacity < 1 || o.Updates < 1 || o.NSteps < 1:
		return fmt.Errorf("a buffer of %d, %d updates a step, returns of %d steps: each must be at least 1", o.Capacity, o.Updates, o.NSteps)
	case o.EpsilonEnd > o.EpsilonStart:
		return fmt.Errorf("epsilon_end %v is above epsilon_start %v: exploration falls", o.EpsilonEnd, o.EpsilonStart)
	case !(o.EpsilonDecay > 0 && o.EpsilonDecay <= 1) || !(o.Gamma >= 0 && o.Gamma <= 1):
		return fmt.Errorf("epsilon_decay %v, gamma %v: want the first above 0 and both up to 1", o.EpsilonDecay, o.Gamma)
	}
	return nil
}

// LabelReplayConfig is what a LabelReplay needs to know.
type LabelReplayConfig struct {
	LabelReplayOptions
	BatchSize int // transitions of an update
	Steps     int // of the run
	Seed      uint64
}

// player is what plays for a LabelReplay: Labels or LabelEpisodes, made with Epsilon.
type player interface {
	rl.Stateful
	Next(ctx context.Context, at rl.At) (*rl.Step, error)
	Explore(epsilon float64)
}

// LabelReplay is a source of a classifier's choices out of a replay buffer: in each step another source plays, by the
// likeliest label but for a share ε of the choices, what came of it goes into the buffer as transitions of NSteps, and
// Updates·BatchSize transitions are drawn from it with replacement.
type LabelReplay struct {
	config LabelReplayConfig
	player player
	buffer *rl.Transitions
}

// NewLabelReplay makes a source with an empty buffer.
func NewLabelReplay(p player, c LabelReplayConfig) (*LabelReplay, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if c.BatchSize < 1 || c.Steps < 1 {
		return nil, errors.New("a replay buffer needs at least one transition an update, and one step")
	}
	buffer, err := rl.NewTransitions(c.Capacity)
	return &LabelReplay{config: c, player: p, buffer: buffer}, err
}

// epsilon is the share of choices drawn from all labels in a step.
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

// Next implements algo.Source.
func (r *LabelReplay) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	c, epsilon := r.config, r.epsilon(at.Step)
	r.player.Explore(epsilon)
	step, err := r.player.Next(ctx, at)
	if err != nil {
		return nil, err
	}
	for from := 0; from < len(step.Samples); {
		to := from + 1
		for to < len(step.Samples) && step.Samples[to].Episode == step.Samples[from].Episode {
			to++
		}
		r.buffer.Add(rl.TransitionsOf(step.Samples[from:to], c.Gamma, c.NSteps)...)
		from = to
	}
	step.Samples, step.Groups = nil, nil
	known := map[*rl.Transition]*rl.Sample{} // what is drawn again is the same sample
	for _, x := range r.buffer.Draw(rl.Stream(c.Seed, rl.StreamReplay, uint64(at.Step)), c.Updates*c.BatchSize) {
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
