package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rltrain/cmd/rltrain/config"
	"rltrain/rl"
	"rltrain/rl/algo"
	"rltrain/torch"
)

// TestOptionsReachTheAlgorithm compares what the options make of an algorithm with what they make of none.
func TestOptionsReachTheAlgorithm(t *testing.T) {
	setNames()
	settings := func(args string) algo.TokenRLConfig {
		c, err := config.Load(strings.Fields("--task sum_digits "+args), nil)
		if err != nil {
			t.Fatal(err)
		}
		settings := (&trainer{config: c}).tokenRL()
		if err := settings.Check(); err != nil {
			t.Errorf("%s: %v", args, err)
		}
		return settings
	}
	for _, test := range []struct {
		algorithm, options string
		change             func(c *algo.TokenRLConfig)
	}{
		{"reinforce", "--baseline none", func(c *algo.TokenRLConfig) { c.Baseline = rl.BaselineNone }},
		{"reinforce", "--baseline batch --advantage-scale batch", func(c *algo.TokenRLConfig) { c.Baseline, c.Scale = rl.BaselineBatch, rl.ScaleBatch }},
		{"reinforce", "--baseline greedy", func(c *algo.TokenRLConfig) { c.Baseline = rl.BaselineGreedy }},
		{"reinforce", "--baseline moving --baseline-start -1 --baseline-decay 0.5", func(c *algo.TokenRLConfig) {
			c.Baseline, c.MovingStart, c.MovingDecay = rl.BaselineMoving, -1, 0.5
		}},
		{"reinforce", "--reduction token", func(c *algo.TokenRLConfig) { c.Reduction = algo.ReduceToken }},
		{"grpo", "--reduction dr_grpo --advantage-scale none", func(c *algo.TokenRLConfig) { c.Reduction, c.Scale = algo.ReduceDrGRPO, rl.ScaleNone }},
		{"grpo", "--epsilon 0.1 --epsilon-high 0.28", func(c *algo.TokenRLConfig) { c.ClipLow, c.ClipHigh = 0.1, 0.28 }},
		{"grpo", "--update-epochs 2 --minibatches 4 --target-kl 0.02", func(c *algo.TokenRLConfig) { c.UpdateEpochs, c.Minibatches, c.TargetKL = 2, 4, 0.02 }},
		{"rloo", "--kl-coef 0.05 --kl-type k1 --kl-in-reward", func(c *algo.TokenRLConfig) { c.KLCoef, c.KLKind, c.KLInReward = 0.05, rl.K1, true }},
		{"rloo", "--kl-coef 0.05 --kl-type k2 --kl-target 6 --kl-horizon 500", func(c *algo.TokenRLConfig) {
			c.KLCoef, c.KLKind, c.KLTarget, c.KLHorizon = 0.05, rl.K2, 6, 500
		}},
		{"rloo", "--mask-overlong --overlong-buffer 32", func(c *algo.TokenRLConfig) { c.MaskOverlong, c.OverlongBuffer = true, 32 }},
		{"grpo", "--dynamic-sampling --entropy-coef 0.01", func(c *algo.TokenRLConfig) { c.DynamicSampling, c.EntropyCoef = true, 0.01 }},
		{"ppo", "--gamma 0.9 --gae-lambda 0.8 --value-clip 0.1 --value-coef 0.3 --value-learning-rate 0.5", func(c *algo.TokenRLConfig) {
			c.Gamma, c.Lambda, c.ValueClip, c.ValueCoef, c.ValueRate = 0.9, 0.8, 0.1, 0.3, 0.5
		}},
		{"ppo", "--prompts-per-step 3 --num-generations 5 --verbose", func(c *algo.TokenRLConfig) { c.PromptsPerStep, c.SamplesPerPrompt, c.Verbose = 3, 5, true }},
		{"reinforce", "--rl-lr-scheduler-type cosine --rl-warmup-ratio 0.5", func(c *algo.TokenRLConfig) { c.Schedule, c.Warmup = "cosine", 0.5 }},
		{"reinforce", "--step-timeout 1.5", func(c *algo.TokenRLConfig) { c.Timeout = 1500 * time.Millisecond }},
		{"grpo", "--async --max-staleness 2", func(c *algo.TokenRLConfig) { c.Async, c.MaxStaleness = true, 2 }},
	} {
		want := settings("--algorithm " + test.algorithm)
		test.change(&want)
		if diff := cmp.Diff(want, settings("--algorithm "+test.algorithm+" "+test.options)); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", test.algorithm, test.options, diff)
		}
	}
}

// TestCombinationsAreRefusedBeforeTraining gives what no single option shows to be wrong.
func TestCombinationsAreRefusedBeforeTraining(t *testing.T) {
	setNames()
	for args, want := range map[string]string{
		"--baseline none --advantage-scale group":    "baseline none cannot be divided",
		"--algorithm rloo --samples-per-prompt 1":    "at least 2 samples",
		"--algorithm ppo --value-coef 0":             "value coefficient 0",
		"--async --baseline greedy":                  "greedy cannot go with async",
		"--async --dynamic-sampling":                 "dynamic sampling cannot go with async",
		"--algorithm grpo --advantage-scale batch":   "",
		"--baseline moving --advantage-scale batch":  "baseline moving cannot be divided",
		"--algorithm grpo --samples-per-prompt 1":    "at least 2 samples",
		"--algorithm ppo --samples-per-prompt 1":     "",
		"--algorithm reinforce --baseline greedy":    "",
		"--algorithm ppo --kl-coef 1 --kl-in-reward": "",
	} {
		c, err := config.Load(strings.Fields("--task sum_digits "+args), nil)
		if err != nil {
			t.Fatal(err)
		}
		err = (&trainer{config: c}).tokenRL().Check()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestOwnAlgorithm registers an algorithm as a program of one's own does and chooses it by its name.
func TestOwnAlgorithm(t *testing.T) {
	algo.Register(algo.Algorithm{
		Name: "own", Ratio: algo.SequenceRatio, Advantages: func(algo.TokenRLConfig, *algo.Step) {},
		Loss: func(s *torch.Scope, b *algo.LossBatch, _ algo.TokenRLConfig) torch.Tensor { return s.Sum(b.LogProb) },
	})
	setNames()
	c, err := config.Load(strings.Fields("--task sum_digits --algorithm own --clip-low 0.1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if settings := (&trainer{config: c}).tokenRL(); settings.Algorithm != "own" || settings.ClipLow != 0.1 || settings.Check() != nil {
		t.Errorf("settings %+v, %v", settings, settings.Check())
	}
	if _, err := config.Load(strings.Fields("--task sum_digits --algorithm own --gamma 0.9"), nil); err == nil || !strings.Contains(err.Error(), "applies only with --algorithm ppo") {
		t.Errorf("error %v", err)
	}
}

// TestWarmUpOfDigits has a policy that is right often enough from the start, which is handed on as it is, beside one
// of another size in the same folder; reinforcement goes on in the form of prompt that the policy reads.
func TestWarmUpOfDigits(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	options := strings.Fields(`train --task reverse_digits --tiny-layers 1 --tiny-hidden 32 --eval-samples 2 --max-new-tokens 8 --output-dir TMP`)
	f.must(t, "", with(options, "--mode", "supervised", "--warmup-until", "0", "--max-steps", "2")...)
	dir := filepath.Join(f.tmp, "reverse_digits_supervised")
	if got := string(readFile(t, filepath.Join(dir, "logs", "training_log.txt"))); !strings.Contains(got, "Supervised training complete after 0 updates") {
		t.Errorf("log:\n%s", got)
	}
	f.must(t, "", append(drop(options, "--tiny-layers", "--tiny-hidden"), "--mode", "rl_only", "--pretrained-model", dir,
		"--num-steps", "1", "--prompts-per-step", "2", "--samples-per-prompt", "2")...)
	f.must(t, "", with(options, "--mode", "supervised", "--warmup-until", "0", "--max-steps", "2", "--tiny-hidden", "64")...)
	var config struct {
		Hidden int `json:"hidden_size"`
	}
	if err := json.Unmarshal(readFile(t, filepath.Join(dir, "config.json")), &config); err != nil {
		t.Fatal(err)
	}
	if config.Hidden != 64 {
		t.Errorf("a model of width %d, want 64", config.Hidden)
	}
}
