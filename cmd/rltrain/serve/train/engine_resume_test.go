package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	rltrun "github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// letters rewards completions that begin with a small letter.
type letters struct{ shown string }

func (letters) Len(envs.Part) int { return 0 }

func (letters) Episode(part envs.Part, index int) (envs.Env, error) {
	return letters{fmt.Sprintf("%s %d:", part, index%7)}, nil
}

func (l letters) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: l.shown}, nil
}

func (letters) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	step := envs.Step{Keep: len(a.Text), Done: true, Info: &envs.Info{Correct: a.Text != "" && a.Text[0] >= 'a' && a.Text[0] <= 'z'}}
	if step.Info.Correct {
		step.Reward = 1
	}
	return step, nil
}

// told is what a run says: its rows and lines, and at the end the weights.
type told struct{ rows, lines []string }

// rollouts has GRPO learn from the service's completions until ctx ends, with evaluations and checkpoints.
func (s *service) rollouts(ctx context.Context, all *told, h rltrun.Hooks) (weights []byte, err error) {
	t := s.t
	p := s.engine(7, "")
	defer p.Close()
	sampler, _, err := p.NewSampler(ctx)
	if err != nil {
		return nil, err
	}
	c := rollout.TokensConfig{Options: rollout.Options{PromptsPerStep: 3, SamplesPerPrompt: 4, NumGenerators: 2, Sampling: rollout.Sampling{Temperature: 1}}, Steps: 6, MaxNew: 3, Seed: 1}
	source := must.Get(rollout.NewTokens(sampler, letters{}, c))(t)
	o := train.Defaults(6)
	o.KLCoef, o.Samples, o.LearningRate, o.Minibatches = 0.1, 4, 1e-2, 2
	o.Evaluate = evaluate.Answers(sampler, letters{}, 5, 2, rollout.Config{MaxNew: 3, Seed: 1}.Greedy())
	h.SaveEvery, h.LogEvery = 2, 1
	h.Row = func(row report.Row) error {
		all.rows = append(all.rows, string(must.Get(json.Marshal(row))(t)))
		return nil
	}
	h.Log = func(format string, args ...any) error {
		all.lines = append(all.lines, fmt.Sprintf(format, args...))
		return nil
	}
	if _, err := train.Run(ctx, p, source, algo.New[algo.GRPO](), o, h); err != nil {
		return nil, err
	}
	dir := t.TempDir()
	must.Do(t, p.Save(dir))
	return os.ReadFile(filepath.Join(dir, lora.WeightsFile))
}

// TestEngineRunResumes kills a run after each of its checkpoints, and the server, and resumes: rows, lines and weights are those of an
// uninterrupted run.
func TestEngineRunResumes(t *testing.T) {
	model, runs, dir := filepath.Join(t.TempDir(), "model"), t.TempDir(), t.TempDir()
	s := start(t, model, runs, 8)
	var whole, parts, kept told
	want := must.Get(s.rollouts(t.Context(), &whole, rltrun.Hooks{}))(t)
	resume, attempts := "", 0
	for ; ; attempts++ {
		ctx, kill := context.WithCancel(t.Context())
		parts = told{slices.Clone(kept.rows), slices.Clone(kept.lines)}
		got, err := s.rollouts(ctx, &parts, rltrun.Hooks{Resume: resume, Save: func(step int, write func(dir string) error) error {
			if ctx.Err() != nil {
				return nil // as if killed
			}
			resume, kept = filepath.Join(dir, fmt.Sprint(step)), parts
			must.Do(t, os.Mkdir(resume, 0o755))
			defer kill()
			return write(resume)
		}})
		kill()
		if err == nil {
			expect.Equal(t, want, got, "weights")
			break
		}
		expect.Require(t, errors.Is(err, rltrun.ErrStopped) || errors.Is(err, context.Canceled), "%v", err)
		s.stop()
		s = start(t, model, runs, 8)
	}
	expect.True(t, attempts >= 2, "the run was resumed %d times", attempts)
	expect.Equal(t, whole.rows, parts.rows, "rows")
	expect.Equal(t, whole.lines, parts.lines, "lines")
}
