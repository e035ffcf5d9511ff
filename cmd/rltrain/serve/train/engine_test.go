package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote/tinker"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	rltrun "github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch"
)

// engineService is a server under test: another one at TINKER_BASE_URL, which has the model of the folder TINKER_MODEL, or one
// of a tiny model whose runs are in dir.
func engineService(t *testing.T, model, dir string) *service {
	if address := os.Getenv("TINKER_BASE_URL"); address != "" {
		return &service{t: t, url: address + "/api/v1/", model: os.Getenv("TINKER_MODEL"), stop: func() {}}
	}
	return start(t, model, dir, 8)
}

// closeness is how much losses, and norms of gradients relative to each other, may differ from those of this process.
func closeness() (loss, norm float64) {
	if os.Getenv("TINKER_BASE_URL") != "" {
		return 1e-3, 1e-2
	}
	return 1e-5, 1e-3
}

// alike compares losses: our server repeats them exactly.
func alike(t *testing.T, want, got float64, what string) {
	t.Helper()
	limit := 0.0
	if os.Getenv("TINKER_BASE_URL") != "" {
		limit, _ = closeness()
	}
	expect.True(t, math.Abs(got-want) <= limit, "%s: %v, want %v", what, got, want)
}

// engine is a policy that is trained by a server under test.
func (s *service) engine(seed uint64, from string) *tinker.Policy {
	s.t.Helper()
	words := must.Get(policy.ReadCausalLM(s.model))(s.t)
	s.t.Cleanup(words.Close)
	p := must.Get(tinker.New(s.t.Context(), words, tinker.Config{URL: s.root(), Key: "tml-key", Rank: 4, Seed: seed, From: from}))(s.t)
	s.t.Cleanup(p.Close)
	return p
}

func (s *service) root() string { return s.url[:len(s.url)-len("/api/v1/")] }

// recorded gives the same samples in each step.
type recorded struct {
	samples func() *rl.Step
}

func (r recorded) Next(context.Context, rl.At) (*rl.Step, error) { return r.samples(), nil }
func (recorded) State() any                                      { return nil }
func (recorded) Restore(json.RawMessage) error                   { return nil }

// lessons of all kinds, made of texts: the first token is the prompt.
func recordedTexts(rewards bool) *rl.Step {
	step := &rl.Step{Figures: rl.Meter{}}
	for i, ids := range texts {
		for k := range 2 {
			x := &rl.Sample{Prompt: i, Index: k, Truth: 1}
			for j, id := range ids[:len(ids)-k] {
				x.Tokens = append(x.Tokens, int32(id+k))
				if j > 0 {
					x.Rows, x.Actions = append(x.Rows, j-1), append(x.Actions, int32(id+k))
				}
			}
			if rewards {
				x.Rewards = make([]float64, len(x.Actions))
				x.Rewards[len(x.Actions)-1] = float64(k*(i+1)) - 0.3
			}
			step.Samples = append(step.Samples, x)
		}
	}
	for i := range texts {
		step.Groups = append(step.Groups, step.Samples[2*i:2*i+2])
	}
	return step
}

var objectives = map[string]func(c *train.Config) algo.Algorithm{
	"sft": func(*train.Config) algo.Algorithm { return algo.New[algo.SFT]() },
	"grpo": func(c *train.Config) algo.Algorithm {
		c.KLCoef, c.Samples, c.Epochs, c.Minibatches = 0.1, 2, 2, 2
		return algo.New[algo.GRPO]()
	},
	"cispo": func(c *train.Config) algo.Algorithm {
		c.Samples, c.Epochs = 2, 2
		return algo.New[algo.CISPO]()
	},
	"gspo": func(c *train.Config) algo.Algorithm {
		c.Samples, c.Epochs = 2, 3
		return algo.New[algo.GSPO]()
	},
	"dpo": func(*train.Config) algo.Algorithm { return algo.New[algo.DPO]() },
	"simpo": func(*train.Config) algo.Algorithm {
		a := algo.New[algo.DPO]()
		a.Losses = []string{"simpo"}
		return a
	},
}

// learnt are the losses and the norms of the gradient of steps up to the n-th.
func learnt(t *testing.T, p policy.Policy, objective func(c *train.Config) algo.Algorithm, n int, h rltrun.Hooks) (losses, norms []float64) {
	t.Helper()
	c := train.Defaults(n)
	c.LearningRate, c.Schedule, c.MaxGradNorm = 1e-2, "constant", 0.5
	if os.Getenv("TINKER_BASE_URL") != "" {
		c.MaxGradNorm = 0 // SkyRL does not clip
		// At higher rates our trainer differs from itself by 0.3 in the third step if the start differs by one rounding.
		c.LearningRate = must.Get(strconv.ParseFloat(os.Getenv("TINKER_LEARNING_RATE"), 64))(t)
	}
	a := objective(&c)
	h.Row = func(row report.Row) error {
		if loss, ok := row["loss"].(float64); ok {
			losses, norms = append(losses, loss), append(norms, row["grad_norm"].(float64))
			if _, far := p.(*tinker.Policy); far {
				forward, backward := row["engine/forward_tokens"].(float64), row["engine/backward_tokens"].(float64)
				expect.True(t, forward >= backward && backward > 0, "%g tokens forward, %g backward", forward, backward)
			}
		}
		return nil
	}
	_, err := train.Run(t.Context(), p, recorded{func() *rl.Step { return recordedTexts(a.Needs().Rewards) }}, a, c, h)
	must.Do(t, err)
	return losses, norms
}

// TestEngineEqualsTrainer trains a policy on the service and one in this process, from the same adapter.
func TestEngineEqualsTrainer(t *testing.T) {
	closeLoss, closeNorm := closeness()
	for _, name := range slices.Sorted(maps.Keys(objectives)) {
		t.Run(name, func(t *testing.T) {
			s := engineService(t, filepath.Join(t.TempDir(), "model"), t.TempDir())
			p, begin := s.engine(7, ""), t.TempDir()
			must.Do(t, p.Save(begin))
			wantLosses, wantNorms := learnt(t, p, objectives[name], 5, rltrun.Hooks{})
			p.Close()
			s.stop()
			local := must.Get(policy.LoadCausalLM(t.Context(), nil, begin, "", "fp32", true))(t)
			defer local.Close()
			losses, norms := learnt(t, local, objectives[name], 5, rltrun.Hooks{})
			expect.Require(t, len(losses) == 5 && len(wantLosses) == 5, "%d and %d rows of 5 steps", len(losses), len(wantLosses))
			worstLoss, worstNorm := 0.0, 0.0
			for i := range losses {
				lossGap, normGap := math.Abs(losses[i]-wantLosses[i]), math.Abs(norms[i]/wantNorms[i]-1)
				expect.True(t, lossGap < closeLoss, "step %d: loss %g on the service, %g here", i+1, wantLosses[i], losses[i])
				expect.True(t, normGap < closeNorm, "step %d: gradient's norm %g on the service, %g here", i+1, wantNorms[i], norms[i])
				worstLoss, worstNorm = max(worstLoss, lossGap), max(worstNorm, normGap)
			}
			t.Logf("%s: losses differ by up to %.2g, norms by %.2g", name, worstLoss, worstNorm)
			expect.True(t, losses[4] != losses[0], "nothing was learned")
		})
	}
}

// TestEngineResumes trains on after a checkpoint, in a new session of a server that was stopped meanwhile.
func TestEngineResumes(t *testing.T) {
	model, runs := filepath.Join(t.TempDir(), "model"), t.TempDir()
	s := engineService(t, model, runs)
	first, second := s.engine(3, ""), s.engine(3, "")
	want, _ := learnt(t, first, objectives["grpo"], 5, rltrun.Hooks{})
	first.Close()
	dir := t.TempDir()
	got, _ := learnt(t, second, objectives["grpo"], 3, rltrun.Hooks{Save: func(_ int, write func(dir string) error) error { return write(dir) }})
	second.Close()
	s.stop()
	s = engineService(t, model, runs)
	p := s.engine(4, "")
	rest, _ := learnt(t, p, objectives["grpo"], 5, rltrun.Hooks{Resume: dir})
	for i, loss := range append(got, rest...) {
		alike(t, want[i], loss, fmt.Sprintf("loss of step %d", i+1))
	}

	// Weights come back by their number, in another process too.
	kept := must.Get(rltrun.TakeSnapshot(p))(t)
	validate := func(p *tinker.Policy) float64 {
		return must.Get(p.Validate(t.Context(), recordedTexts(false).Samples))(t).Loss
	}
	before := validate(p)
	learnt(t, p, objectives["sft"], 2, rltrun.Hooks{})
	after := validate(p)
	must.Do(t, p.SaveWeights(dir))
	other := s.engine(5, "")
	must.Do(t, other.LoadWeights(dir))
	alike(t, after, validate(other), "loss of the loaded weights")
	must.Do(t, kept.PutBack(other))
	alike(t, before, validate(other), "loss of the weights that were put back")
	expect.True(t, before != after, "nothing was learned")
}

// TestEngineSaves compares the downloaded adapter with the service's, and starts another run from it.
func TestEngineSaves(t *testing.T) {
	s := engineService(t, filepath.Join(t.TempDir(), "model"), t.TempDir())
	p := s.engine(3, "")
	learnt(t, p, objectives["sft"], 3, rltrun.Hooks{})
	dir := t.TempDir()
	must.Do(t, p.Save(dir))
	samples := recordedTexts(false).Samples
	want := must.Get(p.Validate(t.Context(), samples))(t).Loss
	alike(t, want, must.Get(s.engine(9, dir).Validate(t.Context(), samples))(t).Loss, "loss of a run that starts from the folder")
	s.stop()
	local := must.Open(policy.LoadCausalLM(t.Context(), nil, dir, "", "", false))(t)
	got := must.Get(local.Validate(t.Context(), samples))(t).Loss
	closeLoss, _ := closeness()
	expect.True(t, math.Abs(got-want) < closeLoss, "the downloaded adapter has loss %g, the service's %g", got, want)
}

// TestEngineSamples compares completions with a forward pass of the same weights.
func TestEngineSamples(t *testing.T) {
	s := engineService(t, filepath.Join(t.TempDir(), "model"), t.TempDir())
	p := s.engine(3, "")
	learnt(t, p, objectives["sft"], 3, rltrun.Hooks{})
	sampler, gap, err := p.NewSampler(t.Context())
	must.Do(t, err)
	closeLoss, _ := closeness()
	expect.True(t, gap <= closeLoss, "sampler and training differ by %g", gap)
	prompts := [][]int32{{5, 6}, {7}, {9, 10, 11}}
	sample := func(o policy.GenerateOptions) (all []policy.Completion) {
		o.Samples, o.MaxNew = 3, 8
		must.Do(t, sampler.Generate(t.Context(), prompts, o, func(i int, some []policy.Completion) error {
			expect.Require(t, len(all) == 3*i && len(some) == 3, "prompt %d comes after %d completions", i, len(all))
			all = append(all, some...)
			return nil
		}))
		return all
	}
	hot := policy.GenerateOptions{Seed: 4, Sampling: torch.Sampling{Temperature: 1}}
	first := sample(hot)
	expect.Equal(t, first, sample(hot), "the same seed")
	hot.Streams = []uint64{7, 8, 9}
	expect.True(t, !cmp.Equal(first, sample(hot)), "other streams give the same completions")
	greedy := sample(policy.GenerateOptions{})
	expect.Equal(t, greedy[0], greedy[1], "greedy completions")
	learnt(t, p, objectives["sft"], 3, rltrun.Hooks{})
	hot.Streams = nil
	expect.True(t, !cmp.Equal(first, sample(hot)), "training changed no completion")
	m := rl.Meter{}
	p.Measure(m)
	expect.Same(t, 6, m.Get("engine/prompt_tokens"), "tokens of prompts since the last step")
	expect.True(t, m.Get("engine/sampled_tokens") >= 9, "costs %v", m)
}

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
