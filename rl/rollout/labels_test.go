package rollout

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

var labelNames = []string{"a", "b", "c"}

// classifier is a random encoder with adapters and a non-zero value head.
func classifier(t *testing.T) *policy.Classifier {
	t.Helper()
	torchtest.NoLeaks(t)
	p := must.Open(policy.RandomClassifier(&transformers.Config{
		ModelType: "bert", VocabSize: 50, HiddenSize: 32, NumHiddenLayers: 2, NumAttentionHeads: 4,
		IntermediateSize: 64, HiddenAct: "gelu", LayerNormEps: 1e-12, MaxPositionEmbeddings: 32, TypeVocabSize: 1,
	}, policy.Config{Labels: labelNames, Pooling: transformers.PoolMean, R: 4, Alpha: 8, Dropout: 0.1, Seed: 1, BaseModel: "random"}))(t)
	must.Do(t, p.AddValueHead())
	snapshot := must.Get(run.TakeSnapshot(p))(t)
	rng := rand.New(rand.NewPCG(4, 0))
	for _, weights := range snapshot {
		for i := range weights {
			weights[i] += float32(0.1 * rng.NormFloat64())
		}
	}
	must.Do(t, snapshot.PutBack(p))
	return p
}

// examples are labelled texts, 3 to 12 tokens long.
func examples(n int) policy.Examples {
	rng := rand.New(rand.NewPCG(1, 0))
	var e policy.Examples
	for range n {
		ids := make([]int32, 3+rng.IntN(10))
		for i := range ids {
			ids[i] = int32(rng.IntN(50))
		}
		e.IDs, e.Labels = append(e.IDs, ids), append(e.Labels, rng.IntN(3))
	}
	return e
}

func labelRewards(t *testing.T, list string) *reward.Labels {
	t.Helper()
	return must.Open(reward.ParseLabels(list, labelNames, reward.Options{}))(t)
}

func labelsConfig() LabelsConfig {
	return LabelsConfig{LabelOptions: LabelOptions{BufferSize: 40, BatchSize: 16}, Algorithm: "ppo", Steps: 3, Values: true, Seed: 3}
}

func labels(t *testing.T, p *policy.Classifier, rewards *reward.Labels, c LabelsConfig) *Labels {
	t.Helper()
	return must.Get(NewLabels(p, nil, examples(60), rewards, c))(t)
}

// TestLabelsAreReproduced scores a step's samples again in the minibatches of a first pass. Log-probabilities and
// values are bit-identical, so the first ratio of an update is exactly 1.
func TestLabelsAreReproduced(t *testing.T) {
	p := classifier(t)
	for _, micro := range []int{0, 60, -60} {
		c := labelsConfig()
		size := c.BatchSize
		if c.MicroTokens = micro; micro < 0 {
			c.MicroTokens, c.Whole, size = -micro, true, c.BufferSize
		}
		micro = c.MicroTokens
		src := labels(t, p, labelRewards(t, "accuracy"), c)
		for i := range 2 {
			step := next(t, src, i)
			expect.Require(t, len(step.Samples) == 40 && len(step.Groups) == 40 && !step.Prefetched, "%d samples", len(step.Samples))
			for _, part := range rl.Minibatches(c.Seed, i, 0, 40, 0, size) {
				for _, bounds := range rl.MicroBatches(len(part), micro, func(k int) int { return len(step.Samples[part[k]].Tokens) }) {
					var batch []*rl.Sample
					for _, n := range part[bounds[0]:bounds[1]] {
						batch = append(batch, step.Samples[n])
					}
					torchtest.Do(t, torch.Train, func(s *torch.Scope) {
						out := p.Forward(s, rl.NewBatch(batch), policy.Pass{Values: true})
						logProbs, values := s.Read(out.LogProbs), s.Read(out.Values)
						for k, x := range batch {
							expect.True(t, x.Old[0] == logProbs[k] && x.BehaviorLogProbs[0] == logProbs[k] && x.Value[0] == values[k] && x.Value[0] != 0,
								"step %d, text %d: %v and %v, then %v and %v", i+1, x.Prompt, x.Old[0], x.Value[0], logProbs[k], values[k])
						}
					})
				}
			}
		}
	}
}

// TestRecordsOfLabels: a choice has its number among those of its text, and the first texts are recorded with all of theirs.
func TestRecordsOfLabels(t *testing.T) {
	c := labelsConfig()
	c.Samples, c.Values = 4, false
	step := next(t, labels(t, classifier(t), labelRewards(t, "accuracy"), c), 0)
	for g, group := range step.Groups {
		expect.Equal(t, step.Samples[4*g:4*g+4], group, "group")
	}
	for prompts, want := range map[int]int{-1: 40, 0: 0, 3: 12, 99: 40} {
		all := must.Get(step.Records(prompts))(t)
		expect.Same(t, want, len(all), "records of %d texts", prompts)
		for i, r := range all {
			x := step.Samples[i]
			expect.True(t, r.Sample == i%4 && r.Prompt == x.Prompt && r.Prompt == all[i-i%4].Prompt && r.Written == labelNames[x.Actions[0]], "record %d: %+v of %+v", i, r, x)
		}
	}
}

// TestLabelsAreSampledFromThePolicy counts how often each label of a text is chosen over many steps.
func TestLabelsAreSampledFromThePolicy(t *testing.T) {
	p := classifier(t)
	c := labelsConfig()
	c.Values = false
	e := examples(60)
	probs := must.Get(p.Probs(t.Context(), e.IDs))(t)
	src := labels(t, p, labelRewards(t, "accuracy"), c)
	var counts, expected, variance [3]float64
	seen := map[int]bool{}
	for i := range 30 {
		step := next(t, src, i)
		texts := map[int]bool{}
		for _, x := range step.Samples {
			expect.True(t, !texts[x.Prompt], "text %d is sampled twice in a step", x.Prompt)
			texts[x.Prompt], seen[x.Prompt] = true, true
			counts[x.Actions[0]]++
			for k, pi := range probs[x.Prompt] {
				expected[k] += float64(pi)
				variance[k] += float64(pi * (1 - pi))
			}
			paid := 0.0
			if int(x.Actions[0]) == e.Labels[x.Prompt] {
				paid = 1
			}
			expect.True(t, x.Reward() == paid && int(x.Truth) == e.Labels[x.Prompt] && slices.Equal(x.Tokens, e.IDs[x.Prompt]) && x.Version == uint64(i), "step %d: sample %+v", i+1, x)
			want := math.Log(float64(probs[x.Prompt][x.Actions[0]]))
			expect.True(t, math.Abs(float64(x.BehaviorLogProbs[0])-want) <= 1e-4 && x.Value == nil, "step %d: log π is %v, want %v; value %v", i+1, x.BehaviorLogProbs[0], want, x.Value)
		}
	}
	for k := range counts {
		expect.True(t, math.Abs(counts[k]-expected[k]) <= 4*math.Sqrt(variance[k]), "label %d is chosen %v times, the policy means %.1f", k, counts[k], expected[k])
	}
	expect.Same(t, 60, len(seen), "%d of 60 texts are ever sampled", len(seen))
}

// TestF1CountsARolloutOnce: after each step, the f1 reward's running counts equal those of a list that observed the
// step's choices once.
func TestF1CountsARolloutOnce(t *testing.T) {
	rewards, told := labelRewards(t, "f1"), labelRewards(t, "f1")
	src := labels(t, classifier(t), rewards, labelsConfig())
	for i := range 3 {
		var choices []reward.Choice
		for _, x := range next(t, src, i).Samples {
			choices = append(choices, reward.Choice{Action: int(x.Actions[0]), Truth: int(x.Truth)})
		}
		told.Observe(choices, reward.Scores{Rewards: make([]reward.Score, 1)})
		expect.Equal(t, told.State(), rewards.State(), fmt.Sprintf("step %d", i+1))
	}
}

// TestFailedRewardsOfLabels skips texts whose reward failed; the trainer scores the others itself.
func TestFailedRewardsOfLabels(t *testing.T) {
	p := classifier(t)
	step := next(t, labels(t, p, labelRewards(t, "expr:'1/correct'=0.5,accuracy"), labelsConfig()), 0)
	failed := step.Figures.Get("failed_rewards")
	expect.Require(t, failed != 0 && failed != 40 && len(step.Samples) == 40-int(failed) && len(step.Groups) == 40, "%v of 40 failed, %d samples", failed, len(step.Samples))
	for _, x := range step.Samples {
		expect.True(t, x.Actions[0] == x.Truth && x.Reward() == 1.5 && x.Old == nil && x.Value == nil && x.BehaviorLogProbs != nil, "sample %+v", x)
	}
	notes := strings.Join(step.Notes, "\n")
	expect.True(t, strings.Contains(notes, fmt.Sprintf("warning: the reward of %v of 40 texts failed; they are dropped", failed)), "notes %q", notes)
	f := step.Figures
	expect.True(t, f.Get("reward") == 1.5 && f.Get("rewards/expr:1/correct/failures") == failed && f.Get("rewards/accuracy/failures") == 0 && f.Get("rewards/accuracy/mean") == (40-failed)/40, "figures %v", f)
	src := labels(t, p, labelRewards(t, "expr:'1/(correct-correct)'"), labelsConfig())
	expect.Failure(src.Next(t.Context(), rl.At{}))(t, "rewards failed for all 40 samples")
}

// TestExpectedRewardsOfLabels uses the expectation over all choices if rewards read the probabilities.
func TestExpectedRewardsOfLabels(t *testing.T) {
	p := classifier(t)
	e := examples(60)
	probs := must.Get(p.Probs(t.Context(), e.IDs))(t)
	for _, x := range next(t, labels(t, p, labelRewards(t, "calibration"), labelsConfig()), 0).Samples {
		want := 1.0
		for k, pi := range probs[x.Prompt] {
			d := float64(pi)
			if k == e.Labels[x.Prompt] {
				d--
			}
			want -= d * d / 2
		}
		expect.True(t, math.Abs(x.Reward()-want) <= 1e-5, "text %d: reward %v, want %v", x.Prompt, x.Reward(), want)
	}
}

// TestProgramsReadTheTexts has a program as reward; it receives the classified text.
func TestProgramsReadTheTexts(t *testing.T) {
	dir := t.TempDir()
	path, heard := filepath.Join(dir, "judge"), filepath.Join(dir, "heard")
	script := "#!/bin/sh\nwhile read -r line; do echo \"$line\" >> " + heard + "; id=${line#*'\"id\":'}; id=${id%%,*}; echo \"{\\\"id\\\":$id,\\\"reward\\\":2}\"; done\n"
	must.Do(t, os.WriteFile(path, []byte(script), 0o755))
	e := examples(6)
	var texts []string
	for i := range 6 {
		texts = append(texts, fmt.Sprintf("text-%d-", i))
	}
	src := must.Get(NewLabels(classifier(t), texts, e, labelRewards(t, "cmd:"+path), labelsConfig()))(t)
	step := next(t, src, 0)
	data := must.Get(os.ReadFile(heard))(t)
	for _, x := range step.Samples {
		want := fmt.Sprintf(`"text":"text-%d-","predicted":"%s","label":"%s"`, x.Prompt, labelNames[x.Actions[0]], labelNames[x.Truth])
		expect.True(t, strings.Contains(string(data), want) && x.Reward() == 2, "a reward of %v, and no %q in\n%s", x.Reward(), want, data)
	}
}

func TestLabelsLog(t *testing.T) {
	c := labelsConfig()
	var lines []string
	c.Log = func(format string, args ...any) error {
		lines = append(lines, fmt.Sprintf(format, args...))
		return nil
	}
	src := labels(t, classifier(t), labelRewards(t, "expr:'0.1'"), c)
	step := next(t, src, 1)
	expect.Equal(t, []string{"PPO Episode 2/3", "Collected rollout: 40 steps, avg return=0.1000, reward_metric=expr:0.1"}, lines, "lines")
	m := rl.Meter{}
	m.Mean("policy_loss", 0.5, 1)
	m.Mean("grad_norm", 2, 1)
	expect.Same(t, "PPO Update: policy_loss=0.5000, grad_norm=2.000", step.Line(m), "line")
}

// TestBestReturn: the best mean reward may be negative.
func TestBestReturn(t *testing.T) {
	src := labels(t, classifier(t), labelRewards(t, "expr:'correct-2'"), labelsConfig())
	best := math.Inf(-1)
	for i := range 3 {
		best = max(best, next(t, src, i).Figures.Get("reward"))
		expect.Same(t, best, src.BestReturn(), "step %d: best return", i+1)
	}
}

func TestLabelsRefuse(t *testing.T) {
	for want, change := range map[string]func(c *LabelsConfig, e *policy.Examples){
		"0 training rows": func(_ *LabelsConfig, e *policy.Examples) { *e = policy.Examples{} },
		"buffer_size 0":   func(c *LabelsConfig, _ *policy.Examples) { c.BufferSize = 0 },
		"rl_batch_size 0": func(c *LabelsConfig, _ *policy.Examples) { c.BatchSize = 0 },
	} {
		c, e := labelsConfig(), examples(3)
		change(&c, &e)
		expect.Failure(NewLabels(nil, nil, e, nil, c))(t, want)
	}
	c := labelsConfig()
	c.BufferSize = 1
	unreadable := must.Get(NewLabels(classifier(t), nil, policy.Examples{IDs: [][]int32{{50}}, Labels: []int{0}}, labelRewards(t, "accuracy"), c))(t)
	expect.Failure(unreadable.Next(t.Context(), rl.At{Step: 2}))(t, "rollout of step 3")
}

func TestLabelReplay(t *testing.T) {
	c := labelsConfig()
	c.BufferSize, c.Samples, c.Values, c.Epsilon = 5, 1, false, true
	player := labels(t, classifier(t), labelRewards(t, "accuracy"), c)
	o := LabelReplayOptions{Capacity: 20, Updates: 3, EpsilonStart: 0.9, EpsilonEnd: 0.1, EpsilonDecay: 0.5}
	src := must.Get(NewLabelReplay(player, LabelReplayConfig{LabelReplayOptions: o, BatchSize: 4, Steps: 8, Seed: 1}))(t)
	for at, epsilon := range []float64{0.9, 0.7, 0.5, 0.3, 0.1, 0.1} {
		step := must.Get(src.Next(t.Context(), rl.At{Step: at, Version: uint64(at)}))(t)
		got := step.Figures.Get("epsilon")
		expect.True(t, math.Abs(got-epsilon) <= 1e-12 && len(step.Samples) == 12 && step.Figures.Get("buffer/size") == float64(min(20, 5*(at+1))), "step %d: epsilon %v, %d samples, a buffer of %v", at, got, len(step.Samples), step.Figures.Get("buffer/size"))
		expect.Contains(t, step.Line(step.Figures), fmt.Sprintf("epsilon=%.3f, buffer=%d", epsilon, min(20, 5*(at+1))))
		for _, x := range step.Samples {
			want := 0.0
			if x.Actions[0] == x.Truth {
				want = 1
			}
			expect.True(t, x.Reward() == want && x.Version <= uint64(at), "step %d: %+v", at, x)
		}
	}
	for _, change := range []func(o *LabelReplayOptions){
		func(o *LabelReplayOptions) { o.EpsilonEnd = 0.95 }, func(o *LabelReplayOptions) { o.Updates = 0 }, func(o *LabelReplayOptions) { o.EpsilonDecay = 0 },
		func(o *LabelReplayOptions) { o.EpsilonDecay = 1.5 }, func(o *LabelReplayOptions) { o.Capacity = 0 },
	} {
		bad := o
		change(&bad)
		expect.Fails(NewLabelReplay(player, LabelReplayConfig{LabelReplayOptions: bad, BatchSize: 4, Steps: 8}))(t, "%+v is accepted", bad)
	}
	must.Do(t, LabelReplayOptions{Capacity: 1, Updates: 1, EpsilonStart: 0.1, EpsilonEnd: 0.1, EpsilonDecay: 1}.Check())
	for _, bad := range []LabelReplayConfig{{LabelReplayOptions: o, Steps: 8}, {LabelReplayOptions: o, BatchSize: 4}} {
		expect.Failure(NewLabelReplay(player, bad))(t, "at least 1")
	}
}

func TestExplore(t *testing.T) {
	count := map[int]int{}
	for i := range 4000 {
		count[explore([]float32{0.2, 0.5, 0.3}, rl.Stream(1, uint64(i)), 0.3)]++
	}
	for k, want := range []float64{0.1, 0.8, 0.1} {
		got := float64(count[k]) / 4000
		expect.True(t, math.Abs(got-want) <= 0.025, "label %d in %.3f of the samples, want %.2f", k, got, want)
	}
}

// TestSample: probabilities need not add up to 1, as sums of float32 do not.
func TestSample(t *testing.T) {
	count := [3]int{}
	for i := range 4000 {
		count[Choose([]float32{0.1, 0, 0.3}, rl.Stream(2, uint64(i)))]++
	}
	expect.True(t, math.Abs(float64(count[0])/4000-0.25) <= 0.025 && count[1] <= 0, "%v of 4000 samples, want 1000, 0 and 3000", count)
}
