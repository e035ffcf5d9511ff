package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// LabelEpisodesConfig says how a classifier plays.
type LabelEpisodesConfig struct {
	Episodes    int // different episodes a step
	Samples     int // times that each is played; 0 = 1
	MaxTurns    int // classifications of an episode at most; one that goes on is refused. 0 = 1000
	Values      bool
	Epsilon     bool // act by Explore
	MicroTokens int  // tokens a forward pass may hold; 0 = no limit
	Seed        uint64
}

// LabelEpisodes is a source of episodes of several classifications, which share what they earn: a step plays Episodes of
// a task's training part, Samples times each. The classifier reads what the episode shows first, answers with a label,
// reads what the step appends, and so on: each text by itself, so that an episode has to say in its text what of its
// past matters.
//
// The samples of an episode lie side by side, a classification each, with the reward of its step; values and
// log-probabilities are the trainer's to take. Without Values the reward of a classification is what its episode earns
// from there on, and a group is the classifications at the same turn of the same episode. An episode of which a step
// earns NaN is left out and counted.
type LabelEpisodes struct {
	config  LabelEpisodesConfig
	policy  policy.Policy
	labels  []string
	encode  func(text string) ([]int32, error)
	task    envs.Task
	epsilon float64
	cursor  int
}

// NewLabelEpisodes makes a source. labels are the policy's, and the texts of actions; encode makes the policy's tokens of
// a text.
func NewLabelEpisodes(p policy.Policy, labels []string, encode func(text string) ([]int32, error), task envs.Task, c LabelEpisodesConfig) (*LabelEpisodes, error) {
	c.Samples = max(1, c.Samples)
	if c.MaxTurns == 0 {
		c.MaxTurns = 1000
	}
	if c.Episodes < 1 || c.MaxTurns < 1 || len(labels) < 2 {
		return nil, fmt.Errorf("%d episodes a step of at most %d turns with %d labels: at least 1, 1 and 2 are needed", c.Episodes, c.MaxTurns, len(labels))
	}
	return &LabelEpisodes{config: c, policy: p, labels: labels, encode: encode, task: task}, nil
}

// Explore sets the share of actions that are drawn from all labels alike; the others are the likeliest labels.
func (l *LabelEpisodes) Explore(epsilon float64) { l.epsilon = epsilon }

// State implements rl.Stateful: the next episode.
func (l *LabelEpisodes) State() any { return l.cursor }

// Restore implements rl.Stateful.
func (l *LabelEpisodes) Restore(state json.RawMessage) error {
	return json.Unmarshal(state, &l.cursor)
}

// labelEpisode is one under way.
type labelEpisode struct {
	env     envs.Env
	text    string // to be classified
	samples []*rl.Sample
	done    bool
	info    *envs.Info
}

// Next implements algo.Source.
func (l *LabelEpisodes) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	c := l.config
	var all []*labelEpisode
	for i := range c.Episodes * c.Samples {
		env, err := l.task.Episode(envs.Train, l.cursor+i/c.Samples)
		if err != nil {
			return nil, fmt.Errorf("episode %d: %w", l.cursor+i/c.Samples, err)
		}
		shown, err := env.Reset(ctx)
		if err != nil {
			return nil, fmt.Errorf("episode %d: %w", l.cursor+i/c.Samples, err)
		}
		if len(shown.Messages) > 0 {
			return nil, errors.New("the task shows messages: a classifier reads texts")
		}
		all = append(all, &labelEpisode{env: env, text: shown.Text})
	}
	for turn := 0; ; turn++ {
		var running []*labelEpisode
		for _, e := range all {
			if !e.done {
				running = append(running, e)
			}
		}
		if len(running) == 0 {
			break
		}
		if turn == c.MaxTurns {
			return nil, fmt.Errorf("an episode goes on after %d classifications", turn)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := l.turn(ctx, all, running, at); err != nil {
			return nil, err
		}
	}
	l.cursor += c.Episodes
	return l.step(all), nil
}

// turn classifies the texts of the running episodes and hands them the labels.
func (l *LabelEpisodes) turn(ctx context.Context, all, running []*labelEpisode, at rl.At) error {
	samples := make([]*rl.Sample, len(running))
	for i, e := range running {
		ids, err := l.encode(e.text)
		if err != nil {
			return err
		}
		samples[i] = &rl.Sample{Tokens: ids, Actions: []int32{0}, Version: at.Version}
		e.samples = append(e.samples, samples[i])
	}
	for n, e := range all {
		x := e.samples[len(e.samples)-1]
		x.Episode, x.Prompt, x.Index = n, l.cursor+n/l.config.Samples, n%l.config.Samples
	}
	if err := l.act(samples, at, len(running[0].samples)); err != nil {
		return err
	}
	for i, e := range running {
		x := samples[i]
		label := l.labels[x.Actions[0]]
		answer, err := e.env.Step(ctx, envs.Action{Text: label, Stop: envs.StopEnd})
		if err != nil {
			return fmt.Errorf("episode %d: %w", x.Prompt, err)
		}
		x.Rewards = []float64{answer.Reward}
		e.text, e.done, e.info = answer.Append, answer.Done, answer.Info
		if !e.done && e.text == "" {
			return fmt.Errorf("episode %d goes on after %q and shows no text to classify", x.Prompt, label)
		}
	}
	return nil
}

// act chooses a label for each text of a turn.
func (l *LabelEpisodes) act(samples []*rl.Sample, at rl.At, turn int) error {
	return torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		for _, bounds := range rl.MicroBatches(len(samples), l.config.MicroTokens, func(i int) int { return len(samples[i].Tokens) }) {
			part := samples[bounds[0]:bounds[1]]
			logProbs := s.Read(l.policy.Forward(s, rl.NewBatch(part), policy.Pass{Temperature: 1}).Labels)
			for i, x := range part {
				row := logProbs[i*len(l.labels) : (i+1)*len(l.labels)]
				rng := rl.Stream(l.config.Seed, rl.StreamAction, uint64(at.Step), uint64(x.Episode), uint64(turn))
				if l.config.Epsilon {
					x.Actions[0] = int32(explore(row, rng, l.epsilon))
					continue
				}
				pi := make([]float32, len(row))
				for k, lp := range row {
					pi[k] = float32(math.Exp(float64(lp)))
				}
				action := draw(pi, rng)
				x.Actions[0], x.BehaviorLogProbs = int32(action), []float32{row[action]}
			}
		}
		return nil
	})
}

// step makes the episodes a step.
func (l *LabelEpisodes) step(all []*labelEpisode) *rl.Step {
	step := &rl.Step{Figures: rl.Meter{}}
	m := step.Figures
	groups := map[[2]int][]*rl.Sample{} // by prompt and turn
	var order [][2]int
	sum, turns, judged, right, failed := 0.0, 0.0, 0.0, 0.0, 0.0
	for _, e := range all {
		earned := 0.0
		for _, x := range e.samples {
			earned += x.Reward()
		}
		turns += float64(len(e.samples))
		if e.info != nil && e.info.Correct {
			right++
		}
		if math.IsNaN(earned) {
			failed++
			continue
		}
		sum, judged = sum+earned, judged+1
		for t, x := range e.samples {
			key := [2]int{x.Prompt, t}
			if groups[key] == nil {
				order = append(order, key)
			}
			groups[key] = append(groups[key], x)
			if !l.config.Values && !l.config.Epsilon {
				reward := x.Reward()
				x.Rewards[0] = earned
				earned -= reward
			}
		}
		step.Samples = append(step.Samples, e.samples...)
	}
	for _, key := range order {
		step.Groups = append(step.Groups, groups[key])
	}
	n := float64(len(all))
	m.Mean("reward", sum, judged)
	m.Mean("episode_length", turns, n)
	m.Mean("accuracy", right, n)
	m.Total("failed_rewards", failed)
	if failed > 0 {
		step.Notes = append(step.Notes, fmt.Sprintf("warning: the reward of %.0f of %d episodes failed; they are left out", failed, len(all)))
	}
	return step
}
