package decisions

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
)

// RolloutConfig configures Rollouts.
type RolloutConfig struct {
	rollout.LabelOptions
	Algorithm string // for log lines
	Steps     int    // of the run, for log lines
	Seed      uint64
}

// Rollouts is a source of answers: a step takes BufferSize/Samples questions, those of a state together, and samples Samples
// options a ~ π(·|x) of each.
type Rollouts struct {
	config  RolloutConfig
	policy  *policy.Decider
	cases   []envs.Decision
	samples []*rl.Sample // of the cases
	rows    [][]int      // cases of each state
	rewards *Rewards
	state   rolloutState
}

type rolloutState struct {
	BestReward float64 `json:"best_reward"` // highest mean of a step
	Met        bool    `json:"met"`         // there was a step
}

// NewRollouts makes a source of the cases, whose samples are those of policy.Decider.Encode.
func NewRollouts(p *policy.Decider, cases []envs.Decision, samples []*rl.Sample, rewards *Rewards, c RolloutConfig) *Rollouts {
	c.Samples = max(1, c.Samples)
	return &Rollouts{config: c, policy: p, cases: cases, samples: samples, rows: Rows(cases), rewards: rewards}
}

// Rows are the indices of the cases of each state.
func Rows(cases []envs.Decision) (rows [][]int) {
	for i, d := range cases {
		if i == 0 || d.Row != cases[i-1].Row {
			rows = append(rows, nil)
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], i)
	}
	return rows
}

// BestReward is the highest mean reward of a step so far.
func (r *Rollouts) BestReward() float64 { return r.state.BestReward }

// State implements rl.Stateful.
func (r *Rollouts) State() any { return r.state }

// Restore implements rl.Stateful.
func (r *Rollouts) Restore(state json.RawMessage) error { return json.Unmarshal(state, &r.state) }

// Next implements train.Source.
func (r *Rollouts) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	c := r.config
	var asked []*rl.Sample
	for _, row := range rl.Stream(c.Seed, rl.StreamRollout, uint64(at.Step)).Perm(len(r.rows)) {
		if len(asked) > 0 && (len(asked)+len(r.rows[row]))*c.Samples > c.BufferSize {
			break
		}
		for _, i := range r.rows[row] {
			asked = append(asked, r.samples[i])
		}
	}
	logProbs, err := r.policy.LogProbs(ctx, asked)
	if err != nil {
		return nil, fmt.Errorf("rollout of step %d: %w", at.Step+1, err)
	}
	step := &rl.Step{Figures: rl.Meter{}}
	sum := 0.0
	for n, x := range asked {
		probs := exps(logProbs[n])
		var group []*rl.Sample
		for i := range c.Samples {
			y := *x
			y.Index, y.Version, y.Episode = i, at.Version, n*c.Samples+i
			option := rollout.Choose(probs, rl.Stream(c.Seed, rl.StreamAction, uint64(at.Step), uint64(x.Prompt), uint64(i)))
			y.Actions, y.BehaviorLogProbs = []int32{int32(option)}, []float32{logProbs[n][option]}
			reward := r.reward(x.Prompt, option, probs)
			y.Rewards = []float64{reward}
			sum += reward
			group = append(group, &y)
		}
		step.Samples, step.Groups = append(step.Samples, group...), append(step.Groups, group)
	}
	return step, r.finish(step, sum/float64(len(step.Samples)), at)
}

// reward is the reward of a sampled option, or the expected one where the reward reads probabilities or only that of another
// option is known.
func (r *Rollouts) reward(i, option int, probs []float32) float64 {
	if d := &r.cases[i]; d.Target != nil && !r.rewards.ReadsProbs() {
		return r.rewards.Of(i, option)
	}
	value, _ := r.rewards.Objective(i, r.rewards.seen(i, nil, probs), probs)
	return value
}

func (r *Rollouts) finish(step *rl.Step, mean float64, at rl.At) error {
	if !r.state.Met || mean > r.state.BestReward {
		r.state.Met, r.state.BestReward = true, mean
	}
	n := float64(len(step.Samples))
	step.Figures.Mean("reward", mean*n, n)
	step.Figures.Mean("reward_stderr", rl.StatsOf(step.Rewards()).StdErr, 1)
	step.Line = func(m rl.Meter) string {
		line := fmt.Sprintf("%s %d/%d: reward=%.4f", strings.ToUpper(r.config.Algorithm), at.Step+1, r.config.Steps, mean)
		for _, name := range []string{"policy_loss", "entropy", "grad_norm"} {
			if _, has := m[name]; has {
				line += fmt.Sprintf(", %s=%.4f", name, m.Get(name))
			}
		}
		return line
	}
	return nil
}
