package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// LabelOptions say how a step of a classifier's rollouts is sampled.
type LabelOptions struct {
	BufferSize int `option:"buffer_size" default:"2000" range:"[1,)" help:"samples per rollout"`
	BatchSize  int `option:"rl_batch_size" default:"16" range:"[1,1048576]" help:"batch size"`
	Samples    int `option:"samples_per_prompt" default:"1" range:"[1,65536]" common:"true" help:"labels sampled per text; algorithms that compare samples need at least 2"`
}

// LabelsConfig configures a Labels.
type LabelsConfig struct {
	LabelOptions
	// Whole says that an update uses the entire rollout. Then the rollout is computed as one batch, and a text of several
	// samples once. Otherwise it is computed in the minibatches of the first pass, so that the first ratio is exactly 1.
	Whole       bool
	Algorithm   string // for log lines
	Steps       int    // of the run, for log lines
	Values      bool
	Epsilon     bool // act by Explore
	MicroTokens int  // tokens of a forward pass at most; 0 = a full minibatch
	Seed        uint64
	Log         func(format string, args ...any) error // nil = no log
}

// Labels is a source of a classifier's choices: a step samples BufferSize/Samples training texts and Samples labels
// a ~ π(·|x) for each, and rewards them. An episode is one text. Log-probabilities, and values if wanted, are computed in the
// minibatches of the step's first pass, so that the first update reproduces them bit by bit. Texts whose reward failed are
// dropped; the trainer then computes the log-probabilities of the others again.
type Labels struct {
	config  LabelsConfig
	policy  *policy.Classifier
	texts   []string
	train   policy.Examples
	rewards *reward.Labels
	epsilon float64
	state   labelsState
}

type labelsState struct {
	Rewards    reward.State   `json:"rewards"`
	Scores     []reward.Score `json:"scores"`      // of the last step
	BestReturn float64        `json:"best_return"` // highest mean reward of a step
	Centre     reward.Centre  `json:"centre"`      // of reward models
}

// NewLabels makes a source of the training examples. texts are the examples' texts, for rewards that are programs.
func NewLabels(p *policy.Classifier, texts []string, train policy.Examples, rewards *reward.Labels, c LabelsConfig) (*Labels, error) {
	c.Samples = max(1, c.Samples)
	if train.Len() == 0 || c.BufferSize < c.Samples || c.BatchSize < 1 {
		return nil, fmt.Errorf("%d training rows, buffer_size %d, rl_batch_size %d: each must be at least 1, and buffer_size at least samples_per_prompt %d", train.Len(), c.BufferSize, c.BatchSize, c.Samples)
	}
	if c.Log == nil {
		c.Log = func(string, ...any) error { return nil }
	}
	return &Labels{config: c, policy: p, texts: texts, train: train, rewards: rewards}, nil
}

// Explore sets the fraction of actions sampled uniformly from all labels; the others are the most likely labels.
func (l *Labels) Explore(epsilon float64) { l.epsilon = epsilon }

// BestReturn is the highest mean reward of a step so far.
func (l *Labels) BestReturn() float64 { return l.state.BestReturn }

// Scores are those of each reward in the last step.
func (l *Labels) Scores() []reward.Score { return l.state.Scores }

// State implements rl.Stateful.
func (l *Labels) State() any {
	l.state.Rewards = l.rewards.State()
	return l.state
}

// Restore implements rl.Stateful.
func (l *Labels) Restore(state json.RawMessage) error {
	if err := json.Unmarshal(state, &l.state); err != nil {
		return err
	}
	return l.rewards.Restore(l.state.Rewards)
}

// Next implements train.Source.
func (l *Labels) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	c := l.config
	rows := rl.Stream(c.Seed, rl.StreamRollout, uint64(at.Step)).Perm(l.train.Len())
	rows = rows[:min(len(rows), c.BufferSize/c.Samples)]
	samples := make([]*rl.Sample, 0, len(rows)*c.Samples)
	for _, row := range rows {
		for i := range c.Samples {
			samples = append(samples, &rl.Sample{
				Tokens: l.train.IDs[row], Actions: []int32{0}, Truth: int32(l.train.Labels[row]), Prompt: row, Index: i, Version: at.Version,
			})
		}
	}
	probs := make([]float32, len(samples)*len(l.policy.Labels))
	size := c.BatchSize
	if c.Whole {
		size = len(samples)
	}
	for _, batch := range rl.Minibatches(c.Seed, at.Step, 0, len(samples), 0, size) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := l.act(batch, samples, probs, at); err != nil {
			return nil, fmt.Errorf("rollout of step %d: %w", at.Step+1, err)
		}
	}
	scores, err := l.reward(ctx, samples, probs)
	if err != nil {
		return nil, err
	}
	return l.step(samples, scores, at)
}

// act runs the policy on the texts of one batch and chooses a label for each.
func (l *Labels) act(batch []int, samples []*rl.Sample, probs []float32, at rl.At) error {
	classes := len(l.policy.Labels)
	return torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		for _, part := range rl.MicroBatches(len(batch), l.config.MicroTokens, func(i int) int { return len(samples[batch[i]].Tokens) }) {
			indices := batch[part[0]:part[1]]
			texts := make([]*rl.Sample, len(indices))
			for i, n := range indices {
				texts[i] = samples[n]
			}
			out := l.policy.Forward(s, rl.NewBatch(texts), policy.Pass{Values: l.config.Values})
			logProbs := s.Read(out.Labels)
			var values []float32
			if l.config.Values {
				values = s.Read(out.Values)
			}
			for i, n := range indices {
				row := logProbs[i*classes : (i+1)*classes]
				x := samples[n]
				pi := probs[n*classes : (n+1)*classes]
				for k, lp := range row {
					pi[k] = float32(math.Exp(float64(lp)))
				}
				rng := rl.Stream(l.config.Seed, l.streamOf(x, at)...)
				if l.config.Epsilon {
					x.Actions[0] = int32(explore(pi, rng, l.epsilon))
					continue
				}
				action := Choose(pi, rng)
				x.Actions[0] = int32(action)
				x.BehaviorLogProbs = []float32{row[action]}
				x.Old = x.BehaviorLogProbs
				if values != nil {
					x.Value = values[i : i+1 : i+1]
				}
			}
		}
		return nil
	})
}

// streamOf names the random stream of a choice.
func (l *Labels) streamOf(x *rl.Sample, at rl.At) []uint64 {
	ids := []uint64{rl.StreamAction, uint64(at.Step), uint64(x.Prompt)}
	if x.Index > 0 {
		ids = append(ids, uint64(x.Index))
	}
	return ids
}

// explore is a uniformly sampled index with probability epsilon, else the index of the largest of pi, the first of equals.
func explore(pi []float32, rng *rand.Rand, epsilon float64) int {
	if rng.Float64() < epsilon {
		return rng.IntN(len(pi))
	}
	return slices.Index(pi, slices.Max(pi))
}

// Choose samples an index with the probabilities pi, which need not sum to exactly 1.
func Choose(pi []float32, rng *rand.Rand) int {
	total := 0.0
	for _, p := range pi {
		total += float64(p)
	}
	u := rng.Float64() * total
	last := 0
	for k, p := range pi {
		if p > 0 {
			last = k
		}
		if u -= float64(p); u < 0 {
			return k
		}
	}
	return last
}

// reward scores each choice. Rewards that read the policy's probabilities give the expected reward over its choice.
func (l *Labels) reward(ctx context.Context, samples []*rl.Sample, probs []float32) (scores reward.Scores, err error) {
	truths := make([]int, len(samples))
	choices := make([]reward.Choice, len(samples))
	for i, x := range samples {
		truths[i] = int(x.Truth)
		choices[i] = reward.Choice{Action: int(x.Actions[0]), Truth: truths[i]}
		if l.texts != nil {
			choices[i].Text = l.texts[x.Prompt]
		}
	}
	if l.rewards.ReadsProbs() {
		scores, _ = l.rewards.Expected(truths, probs)
	} else if scores, err = l.rewards.Score(ctx, choices); err != nil {
		return scores, err
	}
	l.state.Centre.Apply(&scores)
	l.rewards.Observe(choices, scores)
	l.state.Scores = scores.Rewards
	return scores, scores.AllFailed()
}

// step makes a step of the samples whose reward did not fail.
func (l *Labels) step(samples []*rl.Sample, scores reward.Scores, at rl.At) (*rl.Step, error) {
	step := &rl.Step{Figures: rl.Meter{}}
	rewardFigures(step.Figures, scores)
	rewards := scores.Total
	sum, failed := 0.0, 0
	for i, x := range samples {
		x.Rewards, x.Episode = rewards[i:i+1:i+1], i
		if x.Index == 0 {
			step.Groups = append(step.Groups, samples[i:i+l.config.Samples:i+l.config.Samples])
		}
		if !x.HasReward() {
			failed++
			continue
		}
		sum += rewards[i]
		step.Samples = append(step.Samples, x)
	}
	n := len(step.Samples)
	mean := sum / float64(max(1, n))
	if at.Step == 0 || mean > l.state.BestReturn {
		l.state.BestReturn = mean
	}
	step.Figures.Mean("reward", sum, float64(n))
	step.Figures.Mean("reward_stderr", rl.StatsOf(step.Rewards()).StdErr, 1)
	step.Figures.Total("failed_rewards", float64(failed))
	// Not earlier: a step that is interrupted is logged only when the resumed run plays it.
	if err := l.config.Log("%s Episode %d/%d", strings.ToUpper(l.config.Algorithm), at.Step+1, l.config.Steps); err != nil {
		return nil, err
	}
	if err := l.config.Log("Collected rollout: %d steps, avg return=%.4f, reward_metric=%s", n, mean, strings.Join(l.rewards.Names(), ",")); err != nil {
		return nil, err
	}
	if failed > 0 {
		// Fewer samples make other minibatches, whose passes round differently: the trainer computes these again.
		for _, x := range step.Samples {
			x.Old, x.Value = nil, nil
		}
		step.Notes = append(step.Notes, fmt.Sprintf("warning: the reward of %d of %d texts failed; they are dropped", failed, n+failed))
	}
	step.Records = func(prompts int) ([]rl.Record, error) { return l.records(samples, scores, at, prompts), nil }
	step.Line = func(m rl.Meter) string {
		var figures []string
		for _, f := range []struct{ called, name, format string }{
			{"policy_loss", "policy_loss", "%.4f"}, {"value_loss", "value_loss", "%.4f"}, {"entropy", "entropy", "%.4f"},
			{"clip_fraction", "clip_ratio/region_mean", "%.3f"}, {"approx_kl", "approx_kl", "%.5f"},
			{"explained_variance", "explained_variance", "%.3f"}, {"grad_norm", "grad_norm", "%.3f"},
		} {
			if _, has := m[f.name]; has {
				figures = append(figures, fmt.Sprintf("%s="+f.format, f.called, m.Get(f.name)))
			}
		}
		return strings.ToUpper(l.config.Algorithm) + " Update: " + strings.Join(figures, ", ")
	}
	return step, nil
}

// records are the choices for the first texts of a step, all of them if prompts is negative.
func (l *Labels) records(samples []*rl.Sample, scores reward.Scores, at rl.At, prompts int) []rl.Record {
	if n := prompts * l.config.Samples; prompts >= 0 && n < len(samples) {
		samples = samples[:n]
	}
	all := make([]rl.Record, len(samples))
	for i, x := range samples {
		r := rl.Record{
			Step: at.Step + 1, Version: x.Version, Prompt: x.Prompt, Sample: x.Index, Written: l.policy.Labels[x.Actions[0]], Truth: l.policy.Labels[x.Truth],
			Correct: x.Actions[0] == x.Truth, Form: true,
		}
		if l.texts != nil {
			r.Shown = l.texts[x.Prompt]
		}
		r.Learnt(x)
		for _, one := range scores.Rewards {
			r.Each = append(r.Each, rl.RecordedValue{Name: one.Name, Value: rl.Number(one.Values[i])})
		}
		all[i] = r
	}
	return all
}
