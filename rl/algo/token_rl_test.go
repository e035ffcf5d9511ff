package algo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/rl/report"
	"rltrain/torch"
	"rltrain/torch/torchtest"
)

// letters pays 1 for an action that begins with a small letter and 0 for others. It is a bandit with many
// arms, of which a quarter pay.
type letters struct{}

func (letters) Len(envs.Part) int { return 0 }
func (letters) Episode(part envs.Part, index int) (envs.Env, error) {
	return &letterEpisode{fmt.Sprintf("%s %d:", part, index%7)}, nil
}

type letterEpisode struct{ shown string }

func (e *letterEpisode) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: e.shown}, nil
}

func (e *letterEpisode) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	info := &envs.Info{Correct: a.Text != "" && a.Text[0] >= 'a' && a.Text[0] <= 'z', Formatted: a.Stop == envs.StopEnd, Tier: "letter"}
	reward := 0.0
	if info.Correct {
		reward = 1
	}
	return envs.Step{Keep: len(a.Text), Reward: reward, Done: true, Info: info}, nil
}

// tiny is a policy on a model of 2 layers: all of its weights, or with r an adapter.
func tiny(t *testing.T, r int) *TokenPolicy {
	t.Helper()
	torchtest.NoLeaks(t)
	dir := t.TempDir()
	if err := TinyModel(dir+"/tiny", 2, 32, 3); err != nil {
		t.Fatal(err)
	}
	p, err := NewTokenPolicy(TokenPolicyConfig{Dir: dir + "/tiny", Full: r == 0, R: r, Alpha: 2 * float64(r), Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// rlConfig is a small run of an algorithm.
func rlConfig(algorithm string) TokenRLConfig {
	return TokenRLConfig{
		Algorithm: algorithm, Steps: 25, PromptsPerStep: 4, SamplesPerPrompt: 8, Generators: 2, LearningRate: 0.02, ValueRate: 0.02,
		MaxGradNorm: 1, Schedule: "constant", Temperature: 1, MaxNew: 3, ClipLow: 0.2, ClipHigh: 0.2, ValueClip: 0.2, ValueCoef: 0.5,
		Gamma: 1, Lambda: 0.95, MicroTokens: 200, EvalSamples: 7, Seed: 1,
	}
}

type recorded struct {
	rows  []report.Row
	lines []string
}

func (r *recorded) hooks() Hooks {
	return Hooks{
		Row: func(row report.Row) error { r.rows = append(r.rows, row); return nil },
		Log: func(format string, args ...any) error {
			r.lines = append(r.lines, fmt.Sprintf(format, args...))
			return nil
		},
	}
}

// steps are the rows of steps, without those of evaluations.
func (r *recorded) steps() []report.Row {
	var rows []report.Row
	for _, row := range r.rows {
		if _, ok := row["reward"]; ok {
			rows = append(rows, row)
		}
	}
	return rows
}

// TestEachAlgorithmLearns along the curve that it learnt along when the test was written: the mean reward of each
// five steps. Rounding alone moves it by less than the tolerance.
func TestEachAlgorithmLearns(t *testing.T) {
	const tolerance = 0.1
	for _, test := range []struct {
		name   string
		curve  []float64
		change func(c *TokenRLConfig)
	}{
		{Reinforce, []float64{0.356, 0.588, 0.856, 0.988, 1}, nil},
		{Reinforce + " greedy", []float64{0.369, 0.5, 0.85, 0.981, 0.994}, func(c *TokenRLConfig) { c.Baseline = rl.BaselineGreedy }},
		{Reinforce + " async", []float64{0.319, 0.475, 0.75, 0.95, 0.994}, func(c *TokenRLConfig) { c.Async = true }},
		{RLOO, []float64{0.356, 0.619, 0.869, 0.988, 1}, nil},
		{GRPO, []float64{0.356, 0.569, 0.844, 0.981, 0.994}, nil},
		{TokenPPO, []float64{0.363, 0.606, 0.856, 0.988, 0.994}, nil},
		{TokenPPO + " twice", []float64{0.381, 0.681, 0.931, 0.994, 0.994}, func(c *TokenRLConfig) { c.UpdateEpochs, c.EntropyCoef = 2, 1e-3 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := tiny(t, 0)
			algorithm, _, _ := strings.Cut(test.name, " ")
			c := rlConfig(algorithm)
			if test.change != nil {
				test.change(&c)
			}
			var r recorded
			result, err := TokenRL(t.Context(), p, letters{}, c, r.hooks())
			if err != nil {
				t.Fatal(err)
			}
			rows := r.steps()
			first, last := rows[0]["reward"].(float64), rows[len(rows)-1]["reward"].(float64)
			if first > 0.5 || last < 0.9 {
				t.Errorf("reward went from %.3f to %.3f", first, last)
			}
			if result.Best.Accuracy < result.Before.Accuracy || result.Best.Accuracy < 0.9 {
				t.Errorf("evaluation went from %+v to %+v", result.Before, result.Best)
			}
			curve := make([]float64, len(test.curve))
			off := false
			for i, row := range rows {
				curve[i/5] += row["reward"].(float64) / 5
			}
			for i := range curve {
				off = off || math.Abs(curve[i]-test.curve[i]) > tolerance
			}
			if off {
				t.Errorf("learnt along %.3f, not %.3f", curve, test.curve)
			}
			for i, row := range rows {
				if d := row["sampling/sampling_logp_difference/max"].(float64); d > 1e-4 && !c.Async {
					t.Errorf("step %d: sampler and trainer differ by %v", i+1, d)
				}
				if row["policy_version"] != uint64(i+1) {
					t.Errorf("step %d ends with version %v", i+1, row["policy_version"])
				}
			}
			if !strings.HasPrefix(strings.Join(r.lines, "\n"), "Evaluation: ") || !strings.Contains(strings.Join(r.lines, "\n"), "[SYNC 25] ") {
				t.Errorf("lines:\n%s", strings.Join(r.lines, "\n"))
			}
		})
	}
}

// TestAlarmsTellOfACollapse lets a trained policy learn from a loss with the wrong sign.
func TestAlarmsTellOfACollapse(t *testing.T) {
	wrong, err := findAlgorithm(GRPO)
	if err != nil {
		t.Fatal(err)
	}
	right := wrong.Loss
	wrong.Name = "wrong_sign"
	wrong.Loss = func(s *torch.Scope, b *LossBatch, c TokenRLConfig) torch.Tensor { return s.Neg(right(s, b, c)) }
	Register(wrong)
	defer delete(algorithms, wrong.Name)

	p := tiny(t, 0)
	c := rlConfig(GRPO)
	c.Steps, c.EvalSamples = 12, 0
	if _, err := TokenRL(t.Context(), p, letters{}, c, Hooks{}); err != nil {
		t.Fatal(err)
	}
	c.Algorithm, c.Steps, c.LearningRate, c.Seed = wrong.Name, 15, 0.01, 2
	var r recorded
	if _, err := TokenRL(t.Context(), p, letters{}, c, r.hooks()); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Join(r.lines, "\n"); !strings.Contains(lines, "warning: collapse: right answers fell from ") {
		t.Errorf("no alarm in\n%s", lines)
	}
}

// collected is a run that has played its first step.
func collected(t *testing.T, p *TokenPolicy, c TokenRLConfig) (*tokenRL, collection) {
	t.Helper()
	tr, err := newTokenRL(p, letters{}, c, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.close)
	tr.config.EvalSamples = 0
	if err := tr.start(); err != nil {
		t.Fatal(err)
	}
	r, err := tr.collect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tr, r
}

// TestReference compares the two ways to a reference policy: at the start each is the policy itself, and an
// adapter that has been trained leaves its base alone.
func TestReference(t *testing.T) {
	p, base := tiny(t, 4), tiny(t, 0)
	c := rlConfig(GRPO)
	c.Steps, c.KLCoef, c.KLKind, c.EvalSamples, c.LearningRate = 2, 0.1, rl.K2, 0, 0.05
	var r recorded
	if _, err := TokenRL(t.Context(), p, letters{}, c, r.hooks()); err != nil {
		t.Fatal(err)
	}
	if first, second := r.rows[0]["kl/k2"].(float64), r.rows[1]["kl/k2"].(float64); first != 0 || second == 0 {
		t.Errorf("KL from the reference: %v, then %v", first, second)
	}
	b, err := rl.NewBatch([]*rl.Trajectory{trajectory([]int32{9, 8, 7, 6}, 2)})
	if err != nil {
		t.Fatal(err)
	}
	read := func(p *TokenPolicy, adapter bool) (logProbs []float32) {
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			logProbs = s.Read(p.scoreBatch(s, b, torch.Pass{Adapter: adapter}, 1).logProbs)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return logProbs
	}
	if diff := cmp.Diff(read(base, true), read(p, false)); diff != "" {
		t.Errorf("adapter off is not the base (-base +off):\n%s", diff)
	}
	if cmp.Equal(read(p, true), read(p, false)) {
		t.Error("training has not changed the adapter")
	}

	c.Reference = base
	var full recorded
	if _, err := TokenRL(t.Context(), tiny(t, 0), letters{}, c, full.hooks()); err != nil {
		t.Fatal(err)
	}
	if first, second := full.rows[0]["kl/k2"].(float64), full.rows[1]["kl/k2"].(float64); first != 0 || second == 0 {
		t.Errorf("KL from the reference of a policy without an adapter: %v, then %v", first, second)
	}
}

// trajectory is one turn of which the tokens from given on are sampled.
func trajectory(tokens []int32, given int) *rl.Trajectory {
	x := &rl.Trajectory{}
	x.Give(tokens[:given]...)
	for _, token := range tokens[given:] {
		x.Draw(token, -1, -1)
	}
	x.EndTurn(1)
	return x
}

// TestResumedTokenRLEqualsUninterrupted stops after every few steps and goes on from the checkpoint with a
// policy and a run made anew.
func TestResumedTokenRLEqualsUninterrupted(t *testing.T) {
	for _, test := range []struct {
		name   string
		lora   int
		change func(c *TokenRLConfig)
	}{
		{Reinforce, 0, func(c *TokenRLConfig) { c.MovingStart = 0.5 }},
		{GRPO, 4, func(c *TokenRLConfig) {
			c.UpdateEpochs, c.Minibatches, c.DynamicSampling = 2, 2, true
			c.KLCoef, c.KLKind, c.KLTarget, c.KLHorizon = 0.1, rl.K3, 0.01, 100
		}},
		{TokenPPO, 0, func(c *TokenRLConfig) { c.UpdateEpochs, c.Minibatches = 2, 2 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := rlConfig(test.name)
			c.Steps, c.EvalEvery, c.Schedule, c.LearningRate = 6, 2, "linear", 0.003
			test.change(&c)
			run := func(h Hooks) (*TokenPolicy, TokenRLResult, error) {
				p := tiny(t, test.lora)
				result, err := TokenRL(t.Context(), p, letters{}, c, h)
				return p, result, err
			}
			var whole recorded
			p, want, err := run(whole.hooks())
			if err != nil {
				t.Fatal(err)
			}
			weights, err := takeSnapshot(p)
			if err != nil {
				t.Fatal(err)
			}

			dir, resume, kept := t.TempDir(), "", 0
			var parts recorded
			errPaused := errors.New("paused")
			for {
				h := parts.hooks()
				parts.rows = parts.rows[:kept]
				h.Resume, h.SaveEvery = resume, 2
				h.Save = func(step int, write func(dir string) error) error {
					resume, kept = filepath.Join(dir, fmt.Sprint(step)), len(parts.rows)
					if err := os.MkdirAll(resume, 0o755); err != nil {
						return err
					}
					if err := write(resume); err != nil || step == c.Steps {
						return err
					}
					return errPaused
				}
				resumed, got, err := run(h)
				if errors.Is(err, errPaused) {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("result (-uninterrupted +resumed):\n%s", diff)
				}
				after, err := takeSnapshot(resumed)
				if err != nil {
					t.Fatal(err)
				}
				if !cmp.Equal(weights, after) {
					t.Error("the weights differ")
				}
				break
			}
			if diff := cmp.Diff(encoded(t, whole.rows), encoded(t, parts.rows)); diff != "" {
				t.Errorf("rows (-uninterrupted +resumed):\n%s", diff)
			}
		})
	}
}

func encoded(t *testing.T, rows []report.Row) []string {
	t.Helper()
	lines := make([]string, len(rows))
	for i, row := range rows {
		line, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		lines[i] = string(line)
	}
	return lines
}

func TestNonFiniteGradientStops(t *testing.T) {
	p := tiny(t, 0)
	tr, r := collected(t, p, rlConfig(GRPO))
	for _, g := range r.groups {
		for i, x := range g {
			x.Turns[0].Reward = 1e38 * float64(i) * 10 // finite, until advantages are float32
		}
	}
	tr.config.Scale = rl.ScaleNone
	_, err := tr.learn(r)
	if err == nil || !strings.Contains(err.Error(), "training rows [") {
		t.Errorf("error %v", err)
	}
}

func TestTokenRLRefuses(t *testing.T) {
	p := tiny(t, 0)
	for _, test := range []struct {
		algorithm, want string
		change          func(c *TokenRLConfig)
	}{
		{"gprpo", "unknown (did you mean grpo?)", nil},
		{Reinforce, "no ratio", func(c *TokenRLConfig) { c.UpdateEpochs = 2 }},
		{RLOO, "rloo leaves no scale of advantages", func(c *TokenRLConfig) { c.Scale = rl.ScaleBatch }},
		{RLOO, "at least 2", func(c *TokenRLConfig) { c.SamplesPerPrompt = 1 }},
		{RLOO, "no reduction", func(c *TokenRLConfig) { c.Reduction = ReduceToken }},
		{GRPO, "reduction", func(c *TokenRLConfig) { c.Reduction = "bnpo" }},
		{GRPO, "clip range", func(c *TokenRLConfig) { c.ClipLow = 0 }},
		{GRPO, "reference", func(c *TokenRLConfig) { c.KLCoef, c.KLKind = 1, rl.K1 }},
		{GRPO, "temperature", func(c *TokenRLConfig) { c.Temperature = 0 }},
		{TokenPPO, "baseline", func(c *TokenRLConfig) { c.Baseline = rl.BaselineGroup }},
		{TokenPPO, "gamma", func(c *TokenRLConfig) { c.Gamma = 2 }},
	} {
		c := rlConfig(test.algorithm)
		if test.change != nil {
			test.change(&c)
		}
		if _, err := TokenRL(t.Context(), p, letters{}, c, Hooks{}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.algorithm, err, test.want)
		}
	}
}

func TestStopIsNotAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var saved []int
	h := Hooks{
		Row: func(row report.Row) error {
			if row["step"] == 2 {
				cancel()
			}
			return nil
		},
		Save: func(step int, write func(string) error) error { saved = append(saved, step); return write(t.TempDir()) },
	}
	_, err := TokenRL(ctx, tiny(t, 0), letters{}, rlConfig(Reinforce), h)
	if !errors.Is(err, ErrStopped) || !cmp.Equal(saved, []int{2}) {
		t.Errorf("error %v, saved %v", err, saved)
	}
}

func TestTargetKLStopsTheUpdatesOfAStep(t *testing.T) {
	c := rlConfig(GRPO)
	c.Steps, c.UpdateEpochs, c.TargetKL, c.LearningRate, c.EvalSamples = 1, 20, 1e-3, 0.05, 0
	var r recorded
	if _, err := TokenRL(t.Context(), tiny(t, 0), letters{}, c, r.hooks()); err != nil {
		t.Fatal(err)
	}
	if n := r.rows[0]["updates"].(int); n == 0 || n > 5 || !strings.Contains(strings.Join(r.lines, "\n"), "KL past 1.5 × 0.001") {
		t.Errorf("%d updates:\n%s", n, strings.Join(r.lines, "\n"))
	}
}
