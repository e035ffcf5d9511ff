package algo_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rltrain/envs/intent"
	"rltrain/rl/algo"
	"rltrain/rl/report"
	"rltrain/torch/torchtest"
	"rltrain/torch/transformers"
)

const classes = 3

// tinyPolicy is a random encoder of 2 layers and 32 features, with adapters on all its linear layers.
func tinyPolicy(t testing.TB, dropout float64) *algo.LabelPolicy {
	t.Helper()
	torchtest.NoLeaks(t)
	p, err := algo.RandomLabelPolicy(&transformers.Config{
		ModelType: "bert", VocabSize: 50, HiddenSize: 32, NumHiddenLayers: 2, NumAttentionHeads: 4,
		IntermediateSize: 64, HiddenAct: "gelu", LayerNormEps: 1e-12, MaxPositionEmbeddings: 32, TypeVocabSize: 1,
	}, algo.PolicyConfig{
		Labels: []string{"a", "b", "c"}, Pooling: transformers.PoolMean, R: 4, Alpha: 8, Dropout: dropout, Seed: 1, BaseModel: "random",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// tinyExamples are sequences of 3 to 12 noise tokens around two tokens that tell the label.
func tinyExamples(n int, seed uint64) algo.Examples {
	rng := rand.New(rand.NewPCG(seed, 0))
	var e algo.Examples
	for range n {
		label := rng.IntN(classes)
		ids := make([]int32, 3+rng.IntN(10))
		for i := range ids {
			ids[i] = int32(10 + rng.IntN(40))
		}
		ids[rng.IntN(len(ids))] = int32(1 + label)
		ids[rng.IntN(len(ids))] = int32(4 + label)
		e.IDs, e.Labels = append(e.IDs, ids), append(e.Labels, label)
	}
	return e
}

func sftConfig() algo.SFTConfig {
	return algo.SFTConfig{Epochs: 4, BatchSize: 8, LearningRate: 1e-2, HeadLearningRate: 1e-2, WeightDecay: 0.01,
		Schedule: "cosine", Warmup: 0.06, MaxGradNorm: 1, Metric: algo.MetricAccuracy, Seed: 3}
}

func ppoConfig() algo.PPOConfig {
	return algo.PPOConfig{Episodes: 8, RolloutSize: 256, BatchSize: 16, UpdateEpochs: 4, LearningRate: 1e-2, ValueRate: 1e-2, Gamma: 0.99,
		Lambda: 0.95, ClipLow: 0.2, ClipHigh: 0.2, ValueClip: 0.2, ValueCoef: 0.5, EntropyCoef: 0.01, Whiten: true,
		MaxGradNorm: 1, Metric: algo.MetricAccuracy, Seed: 3}
}

func rewards(t testing.TB, spec string) *intent.Rewards {
	t.Helper()
	r, err := intent.ParseRewards(spec, []string{"a", "b", "c"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSFTLearns(t *testing.T) {
	p := tinyPolicy(t, 0.1)
	result, err := algo.SFT(t.Context(), p, tinyExamples(256, 1), tinyExamples(128, 2), sftConfig(), algo.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	if result.Best.Accuracy < 0.9 {
		t.Errorf("validation accuracy %.3f after supervised training, want at least 0.9", result.Best.Accuracy)
	}
}

func TestPPOLearns(t *testing.T) {
	for _, spec := range []string{"accuracy", "f1", "calibration", "expr:'correct - confidence*(1-correct)'"} {
		t.Run(spec, func(t *testing.T) {
			p := tinyPolicy(t, 0.1)
			result, err := algo.PPO(t.Context(), p, tinyExamples(256, 1), tinyExamples(128, 2), rewards(t, spec), ppoConfig(), algo.Hooks{})
			if err != nil {
				t.Fatal(err)
			}
			if result.Best.Accuracy < 0.85 || result.Before.Accuracy > 0.6 {
				t.Errorf("validation accuracy from %.3f to %.3f, want from chance to at least 0.85", result.Before.Accuracy, result.Best.Accuracy)
			}
		})
	}
}

// TestCalibrationRewardFindsTheFrequency: one text whose label is "b" in 7 of 10 rows.
func TestCalibrationRewardFindsTheFrequency(t *testing.T) {
	p := tinyPolicy(t, 0)
	var e algo.Examples
	for i := range 100 {
		label := 0
		if i%10 < 7 {
			label = 1
		}
		e.IDs, e.Labels = append(e.IDs, []int32{7, 8, 9}), append(e.Labels, label)
	}
	c := ppoConfig()
	c.Metric, c.Episodes, c.BatchSize, c.UpdateEpochs, c.EntropyCoef, c.LearningRate = algo.MetricBrier, 20, 100, 8, 0, 5e-3
	if _, err := algo.PPO(t.Context(), p, e, e, rewards(t, "calibration"), c, algo.Hooks{}); err != nil {
		t.Fatal(err)
	}
	probs, err := p.Probs(t.Context(), e.IDs[:1])
	if err != nil {
		t.Fatal(err)
	}
	if got := probs[0][1]; got < 0.68 || got > 0.72 {
		t.Errorf("P(b) = %.3f, want 0.70±0.02", got)
	}
}

func TestFirstRatioIsExactlyOne(t *testing.T) {
	p := tinyPolicy(t, 0.1)
	var rows []report.Row
	c := ppoConfig()
	c.Episodes = 1
	if _, err := algo.PPO(t.Context(), p, tinyExamples(64, 1), tinyExamples(16, 2), rewards(t, "accuracy"), c,
		algo.Hooks{Row: func(row report.Row) error { rows = append(rows, row); return nil }}); err != nil {
		t.Fatal(err)
	}
	if first := rows[1]; first["approx_kl"] != 0.0 || first["clip_fraction"] != 0.0 {
		t.Errorf("the first update has approx_kl %v and clip_fraction %v, want exactly 0", first["approx_kl"], first["clip_fraction"])
	}
}

func TestPPONeverHandsOverSomethingWorse(t *testing.T) {
	p := tinyPolicy(t, 0)
	if _, err := algo.SFT(t.Context(), p, tinyExamples(256, 1), tinyExamples(128, 2), sftConfig(), algo.Hooks{}); err != nil {
		t.Fatal(err)
	}
	validation := tinyExamples(128, 2)
	before, err := p.Probs(t.Context(), validation.IDs)
	if err != nil {
		t.Fatal(err)
	}
	c := ppoConfig()
	c.LearningRate, c.Episodes = 3, 2
	result, err := algo.PPO(t.Context(), p, tinyExamples(64, 1), validation, rewards(t, "accuracy"), c, algo.Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	after, err := p.Probs(t.Context(), validation.IDs)
	if err != nil {
		t.Fatal(err)
	}
	if result.BestEpisode != 0 {
		t.Skip("this learning rate should have broken the policy")
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the policy that came back is not the one that was given:\n%s", diff)
	}
}

func TestTargetKLStopsARollout(t *testing.T) {
	p := tinyPolicy(t, 0)
	var lines []string
	c := ppoConfig()
	c.TargetKL, c.Episodes, c.LearningRate = 1e-6, 1, 1e-2
	result, err := algo.PPO(t.Context(), p, tinyExamples(64, 1), tinyExamples(16, 2), rewards(t, "accuracy"), c,
		algo.Hooks{Log: func(format string, args ...any) error {
			lines = append(lines, fmt.Sprintf(format, args...))
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	if result.Updates != 1 || !strings.Contains(strings.Join(lines, "\n"), "stopped after 1 updates: KL past") {
		t.Errorf("%d updates, lines %q; want one update and a line that says why", result.Updates, lines)
	}
}

func TestEqualRewardsAreSaid(t *testing.T) {
	p := tinyPolicy(t, 0)
	var lines []string
	c := ppoConfig()
	c.Episodes, c.EntropyCoef, c.ValueCoef = 1, 0, 0
	if _, err := algo.PPO(t.Context(), p, tinyExamples(32, 1), tinyExamples(16, 2), rewards(t, "expr:'0.1'"), c,
		algo.Hooks{Log: func(format string, args ...any) error {
			lines = append(lines, fmt.Sprintf(format, args...))
			return nil
		}}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(lines, "\n"), "warning: every reward of the rollout is 0.1") {
		t.Errorf("no warning in %q", lines)
	}
}

// TestMicroBatchesDoNotChangeTheUpdate compares the policies after one update.
func TestMicroBatchesDoNotChangeTheUpdate(t *testing.T) {
	outcome := func(t *testing.T, train func(p *algo.LabelPolicy, micro int) error, micro int) []float32 {
		p := tinyPolicy(t, 0.1)
		if err := train(p, micro); err != nil {
			t.Fatal(err)
		}
		probs, err := p.Probs(t.Context(), tinyExamples(32, 5).IDs)
		if err != nil {
			t.Fatal(err)
		}
		var flat []float32
		for _, row := range probs {
			flat = append(flat, row...)
		}
		return flat
	}
	for name, train := range map[string]func(p *algo.LabelPolicy, micro int) error{
		"sft": func(p *algo.LabelPolicy, micro int) error {
			c := sftConfig()
			c.Epochs, c.BatchSize, c.MicroTokens, c.Warmup = 1, 32, micro, 0
			_, err := algo.SFT(t.Context(), p, tinyExamples(32, 1), tinyExamples(16, 2), c, algo.Hooks{})
			return err
		},
		"ppo": func(p *algo.LabelPolicy, micro int) error {
			c := ppoConfig()
			c.Episodes, c.BatchSize, c.UpdateEpochs, c.MicroTokens, c.Metric = 1, 32, 1, micro, algo.MetricReward
			_, err := algo.PPO(t.Context(), p, tinyExamples(32, 1), tinyExamples(16, 2), rewards(t, "accuracy"), c, algo.Hooks{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := outcome(t, train, 0)
			for _, micro := range []int{1, 30, 100} {
				if d := torchtest.MaxDiff(outcome(t, train, micro), want); d > 1e-5 {
					t.Errorf("micro-batches of %d tokens change a probability by %g", micro, d)
				}
			}
		})
	}
}

// TestResumedRunEqualsUninterruptedRun stops each algorithm after every few updates and goes on from the
// checkpoint with a new policy: rows and weights must come out the same, bit by bit.
func TestResumedRunEqualsUninterruptedRun(t *testing.T) {
	train, validation := tinyExamples(60, 1), tinyExamples(20, 2)
	for name, run := range map[string]func(ctx context.Context, p *algo.LabelPolicy, h algo.Hooks) error{
		"sft": func(ctx context.Context, p *algo.LabelPolicy, h algo.Hooks) error {
			c := sftConfig()
			c.Epochs, c.FeatureAlignment = 3, 0.01
			_, err := algo.SFT(ctx, p, train, validation, c, h)
			return err
		},
		"ppo": func(ctx context.Context, p *algo.LabelPolicy, h algo.Hooks) error {
			c := ppoConfig()
			c.Episodes, c.UpdateEpochs = 3, 2
			_, err := algo.PPO(ctx, p, train, validation, rewards(t, "accuracy,f1=0.5"), c, h)
			return err
		},
		"ppo enumerated": func(ctx context.Context, p *algo.LabelPolicy, h algo.Hooks) error {
			c := ppoConfig()
			c.Episodes, c.UpdateEpochs, c.TargetKL = 3, 2, 0.01
			_, err := algo.PPO(ctx, p, train, validation, rewards(t, "calibration,f1=0.1"), c, h)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var want []report.Row
			whole := tinyPolicy(t, 0.1)
			if err := run(t.Context(), whole, algo.Hooks{LogEvery: 2, Row: func(row report.Row) error { want = append(want, row); return nil }}); err != nil {
				t.Fatal(err)
			}
			wantProbs, err := whole.Probs(t.Context(), validation.IDs)
			if err != nil {
				t.Fatal(err)
			}

			dir := t.TempDir()
			var rows []report.Row
			resume, kept := "", 0
			for attempt := 0; ; attempt++ {
				if attempt > 50 {
					t.Fatal("the run does not come to its end")
				}
				p := tinyPolicy(t, 0.1)
				ctx, cancel := context.WithCancel(t.Context())
				rows = rows[:kept]
				updates := 0
				err := run(ctx, p, algo.Hooks{
					LogEvery: 2, Resume: resume, SaveEvery: 3,
					Row: func(row report.Row) error { rows = append(rows, maps.Clone(row)); return nil },
					Progress: func(int, int, string) {
						if updates++; updates == 5 { // past a checkpoint, so that work is lost and done again
							cancel()
						}
					},
					Save: func(step int, write func(dir string) error) error {
						if ctx.Err() != nil {
							return nil // as if killed: the last checkpoint stays
						}
						resume, kept = filepath.Join(dir, fmt.Sprint(attempt, "-", step)), len(rows)
						if err := os.MkdirAll(resume, 0o755); err != nil {
							return err
						}
						return write(resume)
					},
				})
				cancel()
				if err == nil {
					probs, err := p.Probs(t.Context(), validation.IDs)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(wantProbs, probs); diff != "" {
						t.Errorf("weights differ (-uninterrupted +resumed):\n%s", diff)
					}
					break
				}
			}
			if diff := cmp.Diff(want, rows); diff != "" {
				t.Errorf("rows differ (-uninterrupted +resumed):\n%s", diff)
			}
		})
	}
}
