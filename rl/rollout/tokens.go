package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/remote"
	"github.com/rltrain/rltrain/torch"
)

// Sampling says how rollouts sample tokens.
type Sampling struct {
	Temperature       float64 `option:"temperature" default:"1" range:"(0,)" help:"sampling temperature of rollouts"`
	TopK              int     `option:"top_k" default:"0" range:"[0,)" help:"sample from the top k tokens (0 = all)"`
	TopP              float64 `option:"top_p" default:"1" range:"(0,1]" help:"sample from the most likely tokens with this total probability"`
	MinP              float64 `option:"min_p" default:"0" range:"[0,1]" help:"sample from tokens at least this fraction as likely as the most likely"`
	RepetitionPenalty float64 `option:"repetition_penalty" default:"1" range:"(0,)" help:"divide the logits of tokens already in the text by this (1 = off)"`
}

// Torch is the sampling as the native core takes it.
func (s Sampling) Torch() torch.Sampling {
	return torch.Sampling{Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP, MinP: s.MinP, RepetitionPenalty: s.RepetitionPenalty}
}

// Filtered says whether tokens are sampled from a part of the distribution.
func (s Sampling) Filtered() bool {
	return s.TopK > 0 || s.TopP > 0 && s.TopP < 1 || s.MinP > 0 || s.RepetitionPenalty > 0 && s.RepetitionPenalty != 1
}

// Options say what a step of a language model's rollouts is.
type Options struct {
	PromptsPerStep   int `option:"prompts_per_step" default:"32" range:"[1,1048576]" common:"true" help:"prompts per step"`
	SamplesPerPrompt int `option:"samples_per_prompt" default:"8" range:"[1,65536]" common:"true" help:"completions per prompt"`
	NumGenerators    int `option:"num_generators" default:"2" range:"[1,4096]" help:"prompts completed at the same time; results do not depend on it"`
	Sampling
	MaskOverlong    bool `option:"mask_overlong" help:"do not train on completions that the token limit cut off; means over completions count them, as in TRL"`
	OverlongBuffer  int  `option:"overlong_buffer" default:"0" range:"[0,1048576]" help:"tokens before the limit over which a length penalty grows from 0 to 1 (0 = no penalty)"`
	DynamicSampling bool `option:"dynamic_sampling" help:"replace prompts whose completions all have the same reward"`
	Pools
	StepTimeout  float64 `option:"step_timeout" default:"0" range:"0|[0.001,1e6]" help:"time limit of an environment step, in seconds; slower samples are dropped and counted (0 = no limit)"`
	Async        bool    `option:"async" help:"asynchronous rollouts: sample for the next steps while environments run, with importance weights for older policies"`
	MaxStaleness int     `option:"max_staleness" default:"1" range:"[1,64]" needs:"async" help:"largest number of updates between sampling a completion and training on it"`
}

// TokensConfig configures a Tokens.
type TokensConfig struct {
	Options
	Steps       int // of the run: no rollouts for later steps begin
	MaxNew      int // tokens of an action at most
	MaxThinking int // tokens of a thought at most; 0 = no limit
	MaxTotal    int // tokens of all actions of an episode at most; 0 = MaxNew
	Greedy      bool
	Rewards     *reward.Text // nil = the task's own
	// Teacher sets Teacher of trajectories, at temperature 1; nil = there is none.
	Teacher func(ctx context.Context, all []*rl.Trajectory) error
	Context algo.TeacherContext // of Sample.Context
	Seed    uint64
	Verbose bool // note every sample
	Now     func() time.Time
	Group   *dist.Group // the ranks that play together; nil = this process only
}

// maxOversampling bounds the prompts of a step with dynamic sampling, in multiples of PromptsPerStep.
const maxOversampling = 4

// Tokens is a source of rollouts of a language model: a step plays SamplesPerPrompt samples of PromptsPerStep episodes of a
// task's training part. Samples whose reward or episode failed are dropped and counted. With Async the source begins the
// episodes of later steps before it finishes those of this one.
type Tokens struct {
	config  TokensConfig
	sampler Generator
	servers *remote.Servers // sampler, if servers generate
	task    envs.Task
	state   tokensState
	flights []*flight // of state.Flights; fewer after a resume

	recorded []rl.Group // sessions that take the place of rollouts; nil = none
}

// tokensState is all that changes from step to step.
type tokensState struct {
	Cursor      int           `json:"cursor"`            // episodes begun; the next one, without Pools
	Settled     []int         `json:"settled,omitempty"` // of Pools, in ascending order
	Generations int           `json:"generations"`
	Tokens      int64         `json:"tokens"`
	Flights     []flightState `json:"flights,omitempty"` // of later steps
	Centre      reward.Centre `json:"centre"`            // of reward models
	Rewards     *reward.State `json:"rewards,omitempty"` // what rewards remember
}

// NewTokens makes a source. The caller keeps owning the sampler.
func NewTokens(sampler Generator, task envs.Task, c TokensConfig) (*Tokens, error) {
	if c.MaxTotal == 0 {
		c.MaxTotal = c.MaxNew
	}
	if c.Now == nil {
		c.Now = func() time.Time { return time.Time{} }
	}
	servers, _ := sampler.(*remote.Servers)
	if servers != nil && c.Filtered() {
		return nil, fmt.Errorf("rollout_url %w", ErrFiltered)
	}
	return &Tokens{config: c, sampler: sampler, servers: servers, task: task}, errors.Join(c.Check(), c.checkPools(task), c.checkContext(task))
}

// ErrFiltered refuses sampling filters with importance weights.
var ErrFiltered = errors.New("needs importance weights over the unfiltered distribution: leave out top_k, top_p, min_p and repetition_penalty")

// Check returns what is wrong with the configuration.
func (c TokensConfig) Check() error {
	switch {
	case c.PromptsPerStep < 1 || c.SamplesPerPrompt < 1 || c.MaxNew < 1:
		return fmt.Errorf("%d prompts per step, %d samples per prompt, %d new tokens: each must be at least 1", c.PromptsPerStep, c.SamplesPerPrompt, c.MaxNew)
	case !(c.Temperature > 0):
		return fmt.Errorf("temperature %v: rollouts need one above 0", c.Temperature)
	case c.StepTimeout != 0 && !(c.StepTimeout >= 1e-3 && c.StepTimeout <= 1e6):
		return fmt.Errorf("step_timeout %v: want 0 for no limit, or 0.001 to 1000000 seconds", c.StepTimeout)
	case c.Async && c.DynamicSampling:
		return errors.New("dynamic_sampling does not work with async: the next prompts depend on rewards that are not known yet")
	case c.Async && c.Greedy:
		return errors.New("baseline greedy does not work with async: the greedy completions would be of another policy; choose baseline group or batch")
	case c.Async && c.Filtered():
		return fmt.Errorf("async %w", ErrFiltered)
	case c.OverlongBuffer < 0 || c.MaxTotal > 0 && c.OverlongBuffer > c.MaxTotal:
		return fmt.Errorf("overlong_buffer %d: want 0 to the %d tokens of a completion", c.OverlongBuffer, c.MaxTotal)
	}
	return nil
}

// State implements rl.Stateful.
func (t *Tokens) State() any {
	t.settleFlights()
	if t.config.Rewards != nil {
		rewards := t.config.Rewards.State()
		t.state.Rewards = &rewards
	}
	return t.state
}

// Restore implements rl.Stateful.
func (t *Tokens) Restore(state json.RawMessage) error {
	if err := json.Unmarshal(state, &t.state); err != nil {
		return err
	}
	for _, f := range t.state.Flights {
		if len(f.Indices) != t.config.PromptsPerStep {
			return fmt.Errorf("the rollouts in flight of step %d have %d prompts, want %d; another version of rltrain may have written the checkpoint", f.Step, len(f.Indices), t.config.PromptsPerStep)
		}
	}
	if t.config.Rewards == nil || t.state.Rewards == nil {
		return nil
	}
	return t.config.Rewards.Restore(*t.state.Rewards)
}

// Generations is the number of completions sampled so far.
func (t *Tokens) Generations() int { return t.state.Generations }

// rollout configures the episodes of a step.
func (t *Tokens) rollout(at rl.At) Config {
	c := t.config
	return Config{
		Group: c.Group, Samples: c.SamplesPerPrompt, MaxNew: c.MaxNew, MaxThinking: c.MaxThinking, Sampling: c.Sampling.Torch(), Seed: c.Seed,
		Step: uint64(at.Step), Version: at.Version, Rewards: c.Rewards, Centre: &t.state.Centre, Teacher: c.Teacher, Timeout: seconds(c.StepTimeout),
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// collection is what was played in a step.
type collection struct {
	groups  []rl.Group // all that were played
	kept    []rl.Group // those to learn from
	greedy  []float64  // reward of each kept group's greedy completion
	scores  reward.Scores
	failed  failures
	dropped int // groups that dynamic sampling replaced

	generation, environment time.Duration
}

// Next implements train.Source. If ctx ends, a checkpoint made then continues as if the step had never begun.
func (t *Tokens) Next(ctx context.Context, at rl.At) (*rl.Step, error) {
	r, err := t.collect(ctx, at)
	if err != nil {
		return nil, err
	}
	return t.step(ctx, r, at)
}

// collect plays the episodes of a step. It is an error if all rewards failed.
func (t *Tokens) collect(ctx context.Context, at rl.At) (collection, error) {
	if err := ctx.Err(); err != nil {
		return collection{}, err
	}
	play := t.collectNow
	if t.config.Async {
		play = t.collectPrefetched
	}
	r, err := play(ctx, at)
	if err != nil {
		return r, err
	}
	t.settle(r.groups)
	return r, r.scores.AllFailed()
}

// collectNow plays the episodes of a step with the current policy.
func (t *Tokens) collectNow(ctx context.Context, at rl.At) (collection, error) {
	c := t.config
	began := c.Now()
	var r collection
	cursor, upcoming := t.state.Cursor, t.upcoming(at.Step)
	config := t.rollout(at)
	config.Failed = r.failed.add
	play := func(indices []int) (Played, error) {
		if t.recorded != nil {
			return t.replayed(ctx, indices)
		}
		p, err := play(ctx, t.sampler, t.task, envs.Train, indices, config, c.Now)
		r.environment += p.Environment
		return p, err
	}
	for len(r.kept) < c.PromptsPerStep && len(r.groups) < maxOversampling*c.PromptsPerStep {
		indices := upcoming(cursor, c.PromptsPerStep-len(r.kept))
		if len(indices) == 0 {
			break
		}
		cursor += len(indices)
		p, err := play(indices)
		if err != nil {
			return r, err
		}
		r.scores = joinScores(r.scores, p.Scores)
		r.groups = append(r.groups, p.Groups...)
		for _, g := range p.Groups {
			if c.DynamicSampling && !rl.Differ(g.Rewards()) {
				r.dropped++
				continue
			}
			r.kept = append(r.kept, g)
		}
	}
	if c.Greedy {
		indices := make([]int, len(r.kept))
		for i, g := range r.kept {
			indices[i] = g[0].Prompt
		}
		config = config.Greedy()
		config.Samples = 1
		p, err := play(indices)
		if err != nil {
			return r, err
		}
		for _, g := range p.Groups {
			r.greedy = append(r.greedy, g[0].Reward())
		}
	}
	t.state.Cursor = cursor
	r.generation = c.Now().Sub(began) - r.environment
	return r, nil
}

func upFrom(first, n int) []int {
	indices := make([]int, n)
	for i := range indices {
		indices[i] = first + i
	}
	return indices
}

// step makes a step of a collection.
func (t *Tokens) step(ctx context.Context, r collection, at rl.At) (*rl.Step, error) {
	c := t.config
	step := &rl.Step{Greedy: r.greedy, Prefetched: c.Async || t.servers != nil || t.recorded != nil, Figures: rl.Meter{}}
	episode := 0
	for _, group := range r.kept {
		var samples []*rl.Sample
		for _, trajectory := range group {
			if len(trajectory.Turns) > 0 {
				if err := trajectory.Validate(); err != nil {
					return nil, fmt.Errorf("episode %d, sample %d: %w", trajectory.Prompt, trajectory.Index, err)
				}
			}
			x := trajectory.Sample(c.Temperature)
			for _, part := range rl.WithEarlier([]*rl.Sample{x}) {
				if c.Filtered() && c.Temperature != 1 {
					part.BehaviorLogProbs = nil // of a filtered distribution, which the trainer cannot compute
				}
				part.Episode = episode
			}
			episode++
			if x.Len() == 0 {
				x.Rewards = []float64{trajectory.Reward()} // compared with the others, but not learnt from
			}
			if c.OverlongBuffer > 0 {
				x.Overlong = rl.OverlongPenalty(trajectory.Len(), c.MaxTotal, c.OverlongBuffer)
			}
			samples = append(samples, x)
			switch {
			case !x.HasReward() || x.Len() == 0:
			case c.MaskOverlong && x.Truncated:
				step.Masked++
			default:
				step.Samples = append(step.Samples, x)
			}
		}
		step.Groups = append(step.Groups, samples)
	}
	if err := t.contexts(ctx, step, r.kept, at); err != nil {
		return nil, err
	}
	t.state.Generations += len(r.groups) * c.SamplesPerPrompt
	step.Records = func(prompts int) ([]rl.Record, error) {
		if len(r.kept) == 0 {
			return records(t.sampler.Policy(), at, r.groups, nil, nil, prompts)
		}
		return records(t.sampler.Policy(), at, r.kept, step.Groups, r.greedy, prompts)
	}
	if err := t.measure(step, r, at); err != nil {
		return nil, err
	}
	return step, t.notes(step, r, at)
}

// notes adds the samples of a verbose run, and warnings.
func (t *Tokens) notes(step *rl.Step, r collection, at rl.At) error {
	note := func(format string, args ...any) { step.Notes = append(step.Notes, fmt.Sprintf(format, args...)) }
	if t.config.Verbose {
		for _, g := range r.groups {
			for _, x := range g {
				text, err := t.written(x)
				if err != nil {
					return err
				}
				note("  episode %d, sample %d: reward %g, %s: %q", x.Prompt, x.Index, x.Reward(), x.Stop, text)
			}
		}
	}
	if err := r.failed.report(step, at.Step, r.groups); err != nil {
		return err
	}
	for _, score := range r.scores.Rewards {
		if score.Failures > 0 {
			note("warning: fix reward %[3]s: it failed for %[1]d of %[2]d completions, which are dropped; the first failure: %[4]s", score.Failures, len(score.Values), score.Name, score.Failure)
		}
	}
	return nil
}

// written is the text after the prompt, with the environment's and special tokens.
func (t *Tokens) written(x *rl.Trajectory) (string, error) {
	return t.sampler.Policy().Tokenizer.Decode(completed(x), false)
}

// completed are the tokens from the first that was sampled on.
func completed(x *rl.Trajectory) []int32 {
	first := slices.Index(x.Source, rl.Sampled)
	if first < 0 {
		return nil
	}
	return x.Tokens[first:]
}
