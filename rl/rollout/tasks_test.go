package rollout

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout/rollouttest"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

func TestMain(m *testing.M) { torchtest.Main(m) }

// tiny is a policy on a random model of 2 layers and 2,048 positions.
func tiny(t *testing.T) *policy.CausalLM {
	t.Helper()
	torchtest.NoLeaks(t)
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(dir, 2, 32, 3))
	return must.Open(policy.NewCausalLM(policy.Config{Dir: dir, Full: true, Seed: 5}))(t)
}

func sampler(t *testing.T, p *policy.CausalLM, slots int) *policy.Sampler {
	t.Helper()
	return must.Open(p.NewSampler(slots))(t)
}

var sampled = Config{Samples: 3, MaxNew: 4, Sampling: torch.Sampling{Temperature: 1}, Seed: 9, Step: 2}

// played is Play's result; it fails the test on an error.
func played(t *testing.T, m *policy.Sampler, task envs.Task, indices []int, c Config) Played {
	t.Helper()
	return must.Get(Play(t.Context(), m, task, envs.Train, indices, c))(t)
}

// learn changes the weights like a training step would, as a function of the step number.
func learn(t *testing.T, p *policy.CausalLM, step int) {
	t.Helper()
	snapshot := must.Get(run.TakeSnapshot(p))(t)
	for _, weights := range snapshot {
		for i := range weights {
			weights[i] += 1e-3 * float32((i+step)%7-3)
		}
	}
	must.Do(t, snapshot.PutBack(p))
}

// next returns a source's step; it fails the test on an error.
func next(t *testing.T, src interface {
	Next(ctx context.Context, at rl.At) (*rl.Step, error)
}, step int) *rl.Step {
	t.Helper()
	return must.Get(src.Next(t.Context(), rl.At{Step: step, Version: uint64(step)}))(t)
}

type endless = rollouttest.Endless

var letters, spelling, small = rollouttest.Spelling(7, 1), rollouttest.Spelling(5, 3), rollouttest.Small

// lines is spelling with actions that end at stop strings.
var lines = rollouttest.Spelling(5, 3, strings.Split("abcdefghijklmnopqrstuvwxyz", "")...)

// dialogues has the given number of actions per episode, keeps two bytes of each and replies with a mark; the first of
// two actions is half a turn.
func dialogues(turns int) endless {
	return func(envs.Part, int) envs.Env { return &dialogue{turns: turns} }
}

type dialogue struct{ turns, step int }

func (d *dialogue) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: "go"}, nil
}

func (d *dialogue) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	d.step++
	return envs.Step{
		Keep: min(2, len(a.Text)), Append: "<>", Continues: d.step%2 == 1 && d.step < d.turns, Reward: float64(d.step), Done: d.step == d.turns,
	}, nil
}

// wordy has prompts longer than the context for the indices that long selects.
func wordy(long func(index int) bool) endless {
	return func(part envs.Part, index int) envs.Env {
		shown := fmt.Sprintf("%s %d:", part, index)
		if long(index) {
			shown = strings.Repeat("x", 3000)
		}
		return &rollouttest.Word{Shown: shown, Last: 1}
	}
}

// scripted is an episode that replies with steps, in order.
type scripted struct {
	steps []envs.Step
	whole bool // every action is kept in full
}

// script is a task of scripted episodes.
func script(s scripted) endless {
	return func(envs.Part, int) envs.Env { return &scripted{steps: s.steps, whole: s.whole} }
}

func (s *scripted) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: "go"}, nil
}

func (s *scripted) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	if len(s.steps) == 0 {
		return envs.Step{}, errors.New("the episode is done")
	}
	step := s.steps[0]
	if s.steps = s.steps[1:]; s.whole {
		step.Keep = len(a.Text)
	}
	return step, nil
}

// silent ends after three actions and says nothing between them.
type silent struct{ actions int }

func (s *silent) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: "go"}, nil
}

func (s *silent) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	s.actions++
	return envs.Step{Keep: len(a.Text), Done: s.actions == 3}, nil
}
