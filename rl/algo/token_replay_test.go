package algo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/rl/report"
	"rltrain/torch"
)

func TestStableLoss(t *testing.T) {
	c := newLossCase(5)
	share := normal(rand.New(rand.NewPCG(5, 1)), 16, 0.3)
	const k = 0.25
	value, grad := lossAndGrad(t, c.logProb, []int64{16}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
		return stableLoss(s, x, s.Floats(c.old, 16), s.Floats(c.advantage, 16), s.Floats(c.weight, 16), s.Floats(share, 16), k)
	})
	checkGrad(t, c.logProb, grad, value, func(x []float64) float64 {
		sum := 0.0
		for i := range x {
			g := float64(c.advantage[i]) - k*float64(share[i])*(x[i]-float64(c.old[i])) // x counts here too: not detached
			sum -= float64(c.weight[i]) * x[i] * g
		}
		return sum
	})
}

func TestDistillerLoss(t *testing.T) {
	c := newLossCase(6)
	const k = 0.7
	value, grad := lossAndGrad(t, c.logProb, []int64{16}, func(s *torch.Scope, x torch.Tensor) torch.Tensor {
		return distillerLoss(s, x, s.Floats(c.old, 16), s.Floats(c.advantage, 16), s.Floats(c.weight, 16), k)
	})
	checkGrad(t, c.logProb, grad, value, func(x []float64) float64 {
		sum := 0.0
		for i := range x {
			sum -= float64(c.weight[i]) * (x[i]*float64(c.advantage[i]) + k*float64(c.old[i]))
		}
		return sum
	})
}

// spelling pays 1 for each action that begins with a small letter, and ends after three.
type spelling struct{}

func (spelling) Len(envs.Part) int { return 0 }
func (spelling) Episode(part envs.Part, index int) (envs.Env, error) {
	return &spellingEpisode{shown: fmt.Sprintf("%s %d:", part, index%5)}, nil
}

type spellingEpisode struct {
	shown string
	turns int
	right int
}

func (e *spellingEpisode) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: e.shown}, nil
}

func (e *spellingEpisode) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	step := envs.Step{Keep: len(a.Text), Append: ";"}
	if a.Text != "" && a.Text[0] >= 'a' && a.Text[0] <= 'z' {
		step.Reward = 1
		e.right++
	}
	e.turns++
	if step.Done = e.turns == 3; step.Done {
		step.Info = &envs.Info{Correct: e.right == 3, Formatted: true, Tier: "letters"}
	}
	return step, nil
}

// replayConfig is a small run.
func replayConfig(loss string) TokenReplayConfig {
	return TokenReplayConfig{
		Loss: loss, Steps: 12, Episodes: 8, Draws: 32, BatchSize: 8, Capacity: 48, Slots: 4, LearningRate: 0.01, MaxGradNorm: 1,
		Schedule: "linear", Temperature: 1, MaxNew: 2, Gamma: 0.5, ReturnMax: 10, KLCoef: 0.25, NLLCoef: 0.25, ReferenceEvery: 2,
		MicroTokens: 100, EvalEvery: 4, EvalSamples: 5, EvalMaxNew: 2, Seed: 1,
	}
}

func TestReplayLearns(t *testing.T) {
	for _, loss := range []string{ReplayReinforce, ReplayStable, ReplayDistiller} {
		t.Run(loss, func(t *testing.T) {
			c := replayConfig(loss)
			c.Steps = 20
			var r recorded
			result, err := TokenReplay(t.Context(), tiny(t, 0), spelling{}, c, r.hooks())
			if err != nil {
				t.Fatal(err)
			}
			rows := r.steps()
			first, last := rows[0]["reward"].(float64), rows[len(rows)-1]["reward"].(float64)
			if first > 1.5 || last < 2 || result.Best.Accuracy < 0.9 || result.Steps != 20 {
				t.Errorf("reward went from %.3f to %.3f; %+v", first, last, result)
			}
			for i, row := range rows {
				if d, ok := row["sampling/sampling_logp_difference/max"].(float64); ok && d > 1e-4 {
					t.Errorf("step %d: sampler and trainer differ by %v", i+1, d)
				}
				if _, ok := row["kl/k1"]; ok != (loss != ReplayReinforce) || row["buffer/size"] != min(48, 24*(i+1)) {
					t.Errorf("row %v", row)
				}
			}
		})
	}
}

// TestReplayFollowsItsReference reads the divergence from a policy that is copied every few steps.
func TestReplayFollowsItsReference(t *testing.T) {
	kl := func(change func(c *TokenReplayConfig)) []bool {
		c := replayConfig(ReplayStable)
		c.Steps, c.EvalSamples, c.BatchSize = 5, 0, c.Draws // one update a step: the figure is of the weights before it
		change(&c)
		var r recorded
		if _, err := TokenReplay(t.Context(), tiny(t, 4), spelling{}, c, r.hooks()); err != nil {
			t.Fatal(err)
		}
		var zero []bool
		for _, row := range r.steps() {
			zero = append(zero, math.Abs(row["kl/k1"].(float64)) < 1e-5)
		}
		return zero
	}
	if diff := cmp.Diff([]bool{true, false, true, false, true}, kl(func(c *TokenReplayConfig) { c.ReferenceEvery = 2 })); diff != "" {
		t.Errorf("copied every 2 steps (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]bool{true, false, false, false, false}, kl(func(c *TokenReplayConfig) { c.ReferenceEvery = 0 })); diff != "" {
		t.Errorf("never copied (-want +got):\n%s", diff)
	}
	other := tiny(t, 0)
	if err := other.params()[0].Write(make([]float32, len(mustRead(t, other.params()[0])))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]bool{false, false, false, false, false}, kl(func(c *TokenReplayConfig) { c.Reference, c.ReferenceEvery = other, 0 })); diff != "" {
		t.Errorf("another model (-want +got):\n%s", diff)
	}
}

func mustRead(t *testing.T, v *torch.Var) []float32 {
	t.Helper()
	values, err := v.Read()
	if err != nil {
		t.Fatal(err)
	}
	return values
}

// TestResumedReplayEqualsUninterrupted stops after every few steps and goes on from the checkpoint, buffer and
// reference included, with a policy and a run made anew.
func TestResumedReplayEqualsUninterrupted(t *testing.T) {
	for _, test := range []struct {
		loss string
		lora int
	}{{ReplayReinforce, 0}, {ReplayStable, 4}, {ReplayStable, 0}, {ReplayDistiller, 4}} {
		t.Run(fmt.Sprintf("%s rank %d", test.loss, test.lora), func(t *testing.T) {
			c := replayConfig(test.loss)
			c.Steps, c.EvalEvery, c.ReferenceEvery = 6, 2, 3
			c.EvalSampling = torch.Sampling{Temperature: 0.6, TopP: 0.9}
			run := func(h Hooks) (snapshot, TokenRLResult, error) {
				p := tiny(t, test.lora)
				result, err := TokenReplay(t.Context(), p, spelling{}, c, h)
				if err != nil {
					return nil, result, err
				}
				weights, err := takeSnapshot(p)
				return weights, result, err
			}
			var whole recorded
			weights, want, err := run(whole.hooks())
			if err != nil {
				t.Fatal(err)
			}
			var parts recorded
			dir, resume, kept := t.TempDir(), "", 0
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
				after, got, err := run(h)
				if errors.Is(err, errPaused) {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("result (-uninterrupted +resumed):\n%s", diff)
				}
				if !slices.EqualFunc(weights, after, slices.Equal) {
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

// TestReplayOptions changes one option at a time and looks at the rows of two steps. The first difference must
// be where it belongs, and the weights must differ where the option is about learning.
func TestReplayOptions(t *testing.T) {
	run := func(t *testing.T, change func(c *TokenReplayConfig)) (rows []report.Row, weights snapshot) {
		t.Helper()
		p := tiny(t, 0)
		c := replayConfig(ReplayStable)
		c.Steps, c.Episodes, c.Draws, c.ReferenceEvery, c.Schedule, c.EvalSamples = 2, 4, 16, 1, "constant", 0
		if change != nil {
			change(&c)
		}
		var r recorded
		if _, err := TokenReplay(t.Context(), p, spelling{}, c, r.hooks()); err != nil {
			t.Fatal(err)
		}
		weights, err := takeSnapshot(p)
		if err != nil {
			t.Fatal(err)
		}
		return r.rows, weights
	}
	base, weights := run(t, nil)
	for _, test := range []struct {
		option, figure string
		same           bool // weights stay as they are
		change         func(c *TokenReplayConfig)
	}{
		{"loss", "loss", false, func(c *TokenReplayConfig) { c.Loss = ReplayReinforce }},
		{"episodes", "buffer/size", false, func(c *TokenReplayConfig) { c.Episodes = 2 }},
		{"draws", "updates", false, func(c *TokenReplayConfig) { c.Draws = 8 }},
		{"batch size", "updates", false, func(c *TokenReplayConfig) { c.BatchSize = 16 }},
		{"capacity", "buffer/size", false, func(c *TokenReplayConfig) { c.Capacity = 20 }},
		{"slots", "", true, func(c *TokenReplayConfig) { c.Slots = 1 }},
		{"checkpoint", "", true, func(c *TokenReplayConfig) { c.Checkpoint = true }},
		{"seed", "reward", false, func(c *TokenReplayConfig) { c.Seed = 2 }},
		{"learning rate", "learning_rate", false, func(c *TokenReplayConfig) { c.LearningRate = 0.005 }},
		{"weight decay", "loss", false, func(c *TokenReplayConfig) { c.WeightDecay = 0.5 }},
		{"max grad norm", "loss", false, func(c *TokenReplayConfig) { c.MaxGradNorm = 1e-9 }}, // of the order of AdamW's epsilon
		{"schedule", "learning_rate", false, func(c *TokenReplayConfig) { c.Schedule = "linear" }},
		{"temperature", "entropy", false, func(c *TokenReplayConfig) { c.Temperature = 0.5 }},
		{"max new", "completions/max_length", false, func(c *TokenReplayConfig) { c.MaxNew = 3 }},
		{"gamma", "loss", false, func(c *TokenReplayConfig) { c.Gamma = 1 }},
		{"return max", "loss", false, func(c *TokenReplayConfig) { c.ReturnMax = 0.25 }},
		{"return min", "loss", false, func(c *TokenReplayConfig) { c.ReturnMin = 0.25 }},
		{"kl", "loss", false, func(c *TokenReplayConfig) { c.KLCoef = 5 }},
		{"reference every", "kl/k1", false, func(c *TokenReplayConfig) { c.ReferenceEvery = 0 }},
	} {
		t.Run(test.option, func(t *testing.T) {
			rows, changed := run(t, test.change)
			differ := false
			for i := range rows {
				if test.figure == "" {
					differ = differ || !cmp.Equal(encoded(t, base[i:i+1]), encoded(t, rows[i:i+1]))
				} else {
					differ = differ || base[i][test.figure] != rows[i][test.figure]
				}
			}
			if differ == (test.figure == "") {
				t.Errorf("%s differs: %t", test.figure, differ)
			}
			if slices.EqualFunc(weights, changed, slices.Equal) != test.same {
				t.Errorf("the same weights: %t", !test.same)
			}
		})
	}
}

// TestReplayMicroBatches divides the forward passes: the weights stay the same up to rounding.
func TestReplayMicroBatches(t *testing.T) {
	var all []snapshot
	for _, tokens := range []int{0, 1, 40} {
		p := tiny(t, 0)
		c := replayConfig(ReplayStable)
		c.Steps, c.EvalSamples, c.MicroTokens, c.LearningRate = 1, 0, tokens, 1e-3
		if _, err := TokenReplay(t.Context(), p, spelling{}, c, Hooks{}); err != nil {
			t.Fatal(err)
		}
		s, err := takeSnapshot(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	for _, s := range all[1:] {
		for i := range s {
			for j := range s[i] {
				if d := math.Abs(float64(s[i][j] - all[0][i][j])); d > 1e-5 {
					t.Fatalf("weight %d of %d differs by %v", j, i, d)
				}
			}
		}
	}
}

// TestReplayBuffer starts a run with what another one has written.
func TestReplayBuffer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "buffer.jsonl")
	c := replayConfig(ReplayReinforce)
	c.Steps, c.EvalSamples, c.SaveBuffer = 2, 0, path
	if _, err := TokenReplay(t.Context(), tiny(t, 0), spelling{}, c, Hooks{}); err != nil {
		t.Fatal(err)
	}
	c.Steps, c.LoadBuffer, c.SaveBuffer, c.Capacity = 1, path, "", 1000
	var r recorded
	if _, err := TokenReplay(t.Context(), tiny(t, 0), spelling{}, c, r.hooks()); err != nil {
		t.Fatal(err)
	}
	if got := r.rows[0]["buffer/size"]; got != 48+24 || r.lines[0] != "The buffer starts with 48 turns of "+path {
		t.Errorf("%v turns; %q", got, r.lines)
	}
	foreign := filepath.Join(t.TempDir(), "foreign.jsonl")
	replay, err := rl.NewReplay(10)
	if err != nil {
		t.Fatal(err)
	}
	replay.Add(trajectory([]int32{5, 100_000}, 1), []float64{1})
	if err := replay.Save(foreign); err != nil {
		t.Fatal(err)
	}
	pickle := filepath.Join(t.TempDir(), "buffer.pkl")
	if err := os.WriteFile(pickle, []byte("\x80\x04]\x94."), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{foreign: "token 100000 is none of the model's", pickle: "Python pickle"} {
		c.LoadBuffer = path
		if _, err := TokenReplay(t.Context(), tiny(t, 0), spelling{}, c, Hooks{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestReplayRefuses(t *testing.T) {
	p := tiny(t, 0)
	for _, test := range []struct {
		want   string
		change func(c *TokenReplayConfig)
	}{
		{"loss \"sarsa\" is unknown", func(c *TokenReplayConfig) { c.Loss = "sarsa" }},
		{"each must be at least 1", func(c *TokenReplayConfig) { c.Draws = 0 }},
		{"temperature 0", func(c *TokenReplayConfig) { c.Temperature = 0 }},
		{"gamma 2", func(c *TokenReplayConfig) { c.Gamma = 2 }},
		{"which is empty", func(c *TokenReplayConfig) { c.ReturnMin = 11 }},
		{"must not be negative", func(c *TokenReplayConfig) { c.KLCoef = -1 }},
		{"another model for a reference", func(c *TokenReplayConfig) { c.Reference = p }},
		{"capacity 0", func(c *TokenReplayConfig) { c.Capacity = 0 }},
		{"evaluations with at most 0", func(c *TokenReplayConfig) { c.EvalMaxNew = 0 }},
	} {
		c := replayConfig(ReplayStable)
		test.change(&c)
		if _, err := TokenReplay(t.Context(), p, spelling{}, c, Hooks{}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("error %v, want %q", err, test.want)
		}
	}
}
