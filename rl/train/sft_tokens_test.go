package train_test

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// spellingPolicy is a policy on a small character-level model, closed at the end of the test.
func spellingPolicy(t *testing.T, c policy.Config) *policy.CausalLM {
	t.Helper()
	c.Dir = filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(c.Dir, 2, 32, 7))
	return must.Open(policy.NewCausalLM(c))(t)
}

// copies has examples that repeat a letter.
func copies(t *testing.T, p *policy.CausalLM) []*rl.Sample {
	t.Helper()
	encoded := must.Get(p.Encode(func(yield func(chat.Example, error) bool) {
		for letter := 'a'; letter <= 'z'; letter++ {
			e := chat.Example{Format: chat.PromptCompletion, Prompt: chat.Content{Text: string(letter) + ":"}, Completion: chat.Content{Text: string(letter)}}
			if !yield(e, nil) {
				return
			}
		}
	}, policy.EncodeOptions{CompletionOnly: true}))(t)
	return policy.Samples(encoded.Sequences)
}

// lessons is a small supervised run.
type lessons struct {
	epochs, batch, packing int
	checkpoint             bool
}

var quick = lessons{epochs: 40, batch: 26}

func (l lessons) train(ctx context.Context, p *policy.CausalLM, samples, validation []*rl.Sample, h run.Hooks) (train.Result, error) {
	source, err := epochs.New(samples, l.batch, l.packing, 3)
	if err != nil {
		return train.Result{}, err
	}
	return train.Run(ctx, p, source, &algo.SFT{}, train.Config{
		Steps: l.epochs * source.PerEpoch(), Optimisation: train.Optimisation{LearningRate: 1e-2, Schedule: "constant", MaxGradNorm: 1},
		Seed: 3, Checkpointing: train.Checkpointing{Checkpoint: l.checkpoint}, Evaluate: evaluate.Loss(p, validation, source.PerEpoch()),
	}, h)
}

func validate(t *testing.T, p *policy.CausalLM, samples []*rl.Sample) policy.Validation {
	t.Helper()
	return must.Get(p.Validate(t.Context(), samples))(t)
}

func TestTokenSFTLearnsAndGeneratesWhatItLearned(t *testing.T) {
	torchtest.NoLeaks(t)
	p := spellingPolicy(t, policy.Config{Full: true})
	samples := copies(t, p)
	result := must.Get(quick.train(t.Context(), p, samples, samples, run.Hooks{}))(t)
	v := validate(t, p, samples)
	expect.True(t, v.Loss <= 0.05 && v.Accuracy >= 0.99, "loss %.3f, accuracy %.3f after %d updates", v.Loss, v.Accuracy, result.Version)
	dir := t.TempDir()
	must.Do(t, p.Save(dir))
	loaded := must.Open(policy.LoadCausalLM(t.Context(), &hub.Client{}, dir, "", "", false))(t)
	sampler := must.Open(loaded.NewSampler(4))(t)
	var prompts, completions [][]int32
	for _, letter := range []string{"a", "q", "z"} {
		ids := must.Get(loaded.EncodeText(letter + ":"))(t)
		prompts = append(prompts, ids)
	}
	var texts []string
	var logProbs [][]float32
	must.Do(t, sampler.Generate(t.Context(), prompts, policy.GenerateOptions{Samples: 1, MaxNew: 4}, func(_ int, c []policy.Completion) error {
		texts, completions, logProbs = append(texts, c[0].Text+" "+string(c[0].Reason)), append(completions, c[0].IDs), append(logProbs, c[0].LogProbs)
		return nil
	}))
	expect.Equal(t, []string{"a stop", "q stop", "z stop"}, texts, "completions")
	scored := must.Get(loaded.Score(t.Context(), prompts, completions, 1))(t)
	for i := range scored {
		for j, got := range scored[i].LogProbs {
			expect.True(t, math.Abs(float64(got-logProbs[i][j])) <= 1e-4, "token %d of completion %d: scored %v, sampled with %v", j, i, got, logProbs[i][j])
			expect.Same(t, 0, scored[i].Rank[j], "token %d of completion %d has rank", j, i)
		}
	}
}

// TestRandomTokenLearns with weights of either dtype, with and without gradient checkpointing.
func TestRandomTokenLearns(t *testing.T) {
	torchtest.NoLeaks(t)
	shape := transformers.LlamaShape{Vocab: 40, Hidden: 32, Layers: 2, Heads: 4, KVHeads: 2, Intermediate: 48, RopeTheta: 1e4}
	for _, dtype := range []torch.DType{torch.F32, torch.BF16} {
		p := must.Open(policy.RandomCausalLM(shape, dtype, "", policy.Config{R: 4, Alpha: 8, Targets: []string{"q_proj", "down_proj"}, Seed: 3}))(t)
		samples := policy.Samples([]policy.Sequence{
			{IDs: []int32{3, 9, 27, 4}, Labels: []bool{false, true, true, true}},
			{IDs: []int32{5, 6}, Labels: []bool{false, true}},
		})
		_, trainable := p.Parameters()
		expect.Same(t, 2*4*(32+32+48+32), trainable, "trainable weights: q is 32 by 32, down 48 to 32")
		before := validate(t, p, samples)
		for _, checkpoint := range []bool{false, true} {
			must.Get((lessons{epochs: 5, batch: 2, checkpoint: checkpoint}).train(t.Context(), p, samples, nil, run.Hooks{}))(t)
		}
		after := validate(t, p, samples)
		expect.True(t, before.Labels == 4 && after.Loss < before.Loss, "%v: loss %g over %d labels, then %g", dtype, before.Loss, before.Labels, after.Loss)
	}
}

// TestOrthogonalStart: the adapter changes nothing at first, and its first update moves both of its matrices, unlike that of one with
// zeros.
func TestOrthogonalStart(t *testing.T) {
	torchtest.NoLeaks(t)
	for _, orthogonal := range []bool{true, false} {
		p := spellingPolicy(t, policy.Config{R: 4, Alpha: 8, Seed: 2, Init: map[bool]string{true: policy.InitOrthogonal}[orthogonal]})
		samples := copies(t, p)
		var gap float64
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			b := rl.NewBatch(samples)
			own, base := s.Read(p.Forward(s, b, policy.Pass{Temperature: 1}).LogProbs), s.Read(p.Forward(s, b, policy.Pass{Temperature: 1, Base: true}).LogProbs)
			for i := range own {
				gap = max(gap, math.Abs(float64(own[i])-float64(base[i])))
			}
		})
		expect.True(t, gap < 1e-4, "orthogonal %v: the adapter changes a log-probability by %g", orthogonal, gap)
		before := must.Get(run.TakeSnapshot(p))(t)
		source := must.Get(epochs.New(samples, len(samples), 0, 3))(t)
		must.Get(train.Run(t.Context(), p, source, &algo.SFT{}, train.Config{Steps: 1, Optimisation: train.Optimisation{LearningRate: 1e-2, Schedule: "constant"}}, run.Hooks{}))(t)
		moved := 0
		for i, values := range must.Get(run.TakeSnapshot(p))(t) {
			if !slices.Equal(values, before[i]) {
				moved++
			}
		}
		want := len(before)
		if !orthogonal {
			want /= 2
		}
		expect.Same(t, want, moved, "orthogonal %v: matrices that the first update moved", orthogonal)
	}
}
