package policy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// tinyToken is a policy on a small language model; it trains all weights, or an adapter if r > 0.
func tinyToken(t *testing.T, r int) *policy.CausalLM {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(dir, 1, 32, 7))
	return must.Open(policy.NewCausalLM(policy.Config{Dir: dir, Full: r == 0, R: r, Alpha: 2 * float64(r), Seed: 5}))(t)
}

// kind is a kind of policy, with a batch for it.
type kind struct {
	name  string
	batch *rl.Batch
	make  func(t *testing.T) policy.Policy
	load  func(t *testing.T, dir string, trainable bool) policy.Policy
}

var kinds = []kind{
	{
		name: "token",
		batch: rl.NewBatch([]*rl.Sample{
			{Tokens: []int32{5, 6, 7, 8}, Rows: []int{1, 2}, Actions: []int32{7, 8}}, {Tokens: []int32{9, 4}, Rows: []int{0}, Actions: []int32{4}},
		}),
		make: func(t *testing.T) policy.Policy { return tinyToken(t, 2) },
		load: func(t *testing.T, dir string, trainable bool) policy.Policy {
			return must.Open(policy.LoadCausalLM(t.Context(), &hub.Client{}, dir, "", "", trainable))(t)
		},
	},
	{
		name: "label",
		batch: rl.NewBatch([]*rl.Sample{
			{Tokens: []int32{2, 5, 3}, Actions: []int32{1}}, {Tokens: []int32{2, 7, 8, 3}, Actions: []int32{0}},
		}),
		make: func(t *testing.T) policy.Policy {
			return must.Open(policy.NewClassifier(policy.Config{
				Dir: policytest.Encoder(t), Labels: []string{"law", "physics"}, Pooling: transformers.PoolMean, R: 2, Alpha: 4, Seed: 1,
			}))(t)
		},
		load: func(t *testing.T, dir string, trainable bool) policy.Policy {
			return must.Open(policy.LoadClassifier(t.Context(), &hub.Client{}, dir, "", trainable))(t)
		},
	},
}

// valuesOf returns V of a batch.
func valuesOf(t *testing.T, p policy.Policy, b *rl.Batch) (values []float32) {
	t.Helper()
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		values = s.Read(p.Forward(s, b, policy.Pass{Values: true, Temperature: 1}).Values)
	})
	return values
}

// parametersOf counts a policy's weights.
func parametersOf(p policy.Policy) (total, trainable int64) {
	return p.(interface {
		Parameters() (total, trainable int64)
	}).Parameters()
}

func hasValueFile(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "value_head.safetensors"))
	return err == nil
}

// TestValueHeads: value heads exist only on request and start at 0.
func TestValueHeads(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			torchtest.NoLeaks(t)
			p, dir := kind.make(t), t.TempDir()
			must.Do(t, p.SaveWeights(dir))
			isValue := func(g policy.Group) bool { return g.Role == policy.Value }
			without := len(p.Params())
			total, trainable := parametersOf(p)
			expect.True(t, !hasValueFile(dir) && !slices.ContainsFunc(must.Get(p.Groups())(t), isValue), "a policy that needs no values has a value head")
			for range 2 { // the second call does nothing
				must.Do(t, p.AddValueHead())
			}
			n := len(p.Params())
			expect.True(t, n == without+2 && slices.ContainsFunc(must.Get(p.Groups())(t), isValue), "%d weights with a value head, %d without", n, without)
			shape := must.Get(p.Params()[without].Shape())(t)
			a, b := parametersOf(p)
			expect.True(t, a == total+shape[1]+1 && b == trainable+shape[1]+1, "%d of %d weights are trainable, %d of %d without the head", b, a, trainable, total)
			for _, v := range valuesOf(t, p, kind.batch) {
				expect.Same(t, 0, v, "a new value head")
			}
		})
	}
}

// TestValueHeadsTravelWithTheWeights saves value heads, loads them with a policy, and restores them from a checkpoint.
func TestValueHeadsTravelWithTheWeights(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			torchtest.NoLeaks(t)
			p, headless := kind.make(t), t.TempDir()
			must.Do(t, p.SaveWeights(headless))
			without := len(p.Params())
			must.Do(t, p.AddValueHead())
			fill := func(scale float32) {
				t.Helper()
				weights := must.Get(run.TakeSnapshot(p))(t)
				for i := range weights[without] {
					weights[without][i] = scale * float32(i%5-2)
				}
				weights[without+1][0] = scale
				must.Do(t, weights.PutBack(p))
			}
			fill(0.1)
			want := valuesOf(t, p, kind.batch)

			saved := t.TempDir()
			must.Do(t, p.(interface{ Save(dir string) error }).Save(saved))
			loaded := kind.load(t, saved, true)
			expect.Same(t, without, len(loaded.Params()), "a policy that is loaded has a value head before it is asked for one")
			must.Do(t, loaded.AddValueHead())
			expect.Equal(t, want, valuesOf(t, loaded, kind.batch), "values")

			// A checkpoint restores the value head.
			fill(0.3)
			must.Do(t, p.LoadWeights(saved))
			expect.Equal(t, want, valuesOf(t, p, kind.batch), "values")
			// Weights without a value head reset it to zeros.
			must.Do(t, p.LoadWeights(headless))
			for _, v := range valuesOf(t, p, kind.batch) {
				expect.Same(t, 0, v, "a new value head")
			}
			// The head of a wider model is refused.
			name := filepath.Join(saved, "value_head.safetensors")
			must.Do(t, safetensors.Write(name, []safetensors.Tensor{safetensors.FromFloat32s("v_head.summary.weight", []int64{1, 99}, make([]float32, 99))}, nil))
			expect.Error(t, p.LoadWeights(saved), name)
		})
	}
}

// TestInferencePolicies: policies loaded for training and for inference agree, and only the former have gradients,
// which slow down short passes.
func TestInferencePolicies(t *testing.T) {
	torchtest.NoLeaks(t)
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			saved := t.TempDir()
			must.Do(t, kind.make(t).(interface{ Save(dir string) error }).Save(saved))
			logProbs := map[bool][]float32{}
			for _, trainable := range []bool{false, true} {
				p := kind.load(t, saved, trainable)
				adapter := p.Params()[1] // b of the first layer
				torchtest.Do(t, torch.Train, func(s *torch.Scope) {
					out := p.Forward(s, kind.batch, policy.Pass{Temperature: 1})
					logProbs[trainable] = s.Read(out.LogProbs)
					if kind.name == "label" || trainable {
						s.Backward(s.Sum(out.LogProbs))
					}
					_, has := s.Grad(adapter)
					expect.True(t, has == trainable, "loaded with trainable %v: the adapter has a gradient: %v", trainable, has)
				})
			}
			expect.Equal(t, logProbs[true], logProbs[false], cmpopts.EquateApprox(0, 1e-5), "log-probabilities")
		})
	}
}

func TestValuesSendNoGradientToTheBody(t *testing.T) {
	for _, kind := range kinds {
		p := kind.make(t)
		must.Do(t, p.AddValueHead())
		torchtest.Do(t, torch.Train, func(s *torch.Scope) {
			s.Backward(s.Sum(p.Forward(s, kind.batch, policy.Pass{Values: true, Temperature: 1}).Values))
			for _, g := range must.Get(p.Groups())(t) {
				for _, v := range g.Params {
					_, has := s.Grad(v)
					expect.Same(t, g.Role == policy.Value, has, "%s: weights of the %s have a gradient", kind.name, g.Role)
				}
			}
		})
		must.Do(t, torch.ZeroGrad(p.Params()))
	}
}

// TestDecaySparesVectors: matrices decay; norms, biases and value heads do not.
func TestDecaySparesVectors(t *testing.T) {
	for _, kind := range kinds {
		for _, p := range []policy.Policy{kind.make(t), tinyToken(t, 0)} {
			must.Do(t, p.AddValueHead())
			n := 0
			for _, g := range must.Get(p.Groups())(t) {
				for _, v := range g.Params {
					shape := must.Get(v.Shape())(t)
					n++
					expect.Same(t, (len(shape) > 1 && g.Role != policy.Value), g.Decay, "%s: weights of shape %v of the %s decay", kind.name, shape, g.Role)
				}
			}
			expect.Same(t, len(p.Params()), n, "%s: the groups have %d of %d weights", kind.name, n, len(p.Params()))
		}
	}
}

// TestUntrainedAdapter distinguishes an untrained adapter from others.
func TestUntrainedAdapter(t *testing.T) {
	adapted := tinyToken(t, 2)
	check := func(p policy.Policy, want bool, what string) {
		t.Helper()
		expect.Result(p.Fresh())(t, want, "%s: fresh", what)
	}
	check(tinyToken(t, 0), false, "a policy trained whole")
	check(adapted, true, "a new adapter")
	snapshot := must.Get(run.TakeSnapshot(adapted))(t)
	last := len(snapshot) - 1 // a B
	snapshot[last][3] = 1e-6
	must.Do(t, snapshot.PutBack(adapted))
	check(adapted, false, "an adapter of which one weight was trained")
	dir := t.TempDir()
	must.Do(t, adapted.Save(dir))
	loaded := must.Open(policy.LoadCausalLM(t.Context(), &hub.Client{}, dir, "", "", true))(t)
	check(loaded, false, "a trained adapter that was loaded")
	check(kinds[1].make(t), false, "a classifier, whose head is part of it")
}

// TestSamplersUseChangedWeights samples with two samplers of a policy before and after its weights change.
func TestSamplersUseChangedWeights(t *testing.T) {
	for _, r := range []int{0, 4} {
		p := tinyToken(t, r)
		old := must.Open(p.NewSampler(2))(t)
		type written struct {
			IDs      []int32
			LogProbs []float32
		}
		write := func(m *policy.Sampler) (w written) {
			t.Helper()
			o := policy.GenerateOptions{Samples: 1, MaxNew: 6, Sampling: torch.Sampling{Temperature: 1}, Seed: 3}
			must.Do(t, m.Generate(t.Context(), [][]int32{{5, 6, 7}}, o, func(_ int, c []policy.Completion) error {
				w = written{c[0].IDs, c[0].LogProbs}
				return nil
			}))
			return w
		}
		before := write(old)
		snapshot := must.Get(run.TakeSnapshot(p))(t)
		for _, weights := range snapshot {
			for i := range weights {
				weights[i] += 0.05 * float32(i%7-3)
			}
		}
		must.Do(t, snapshot.PutBack(p)) // this calls Changed

		after := write(old)
		expect.Equal(t, write(must.Open(p.NewSampler(2))(t)), after, fmt.Sprintf("rank %d: a sampler from before and a new one differ", r))
		expect.True(t, !cmp.Equal(before, after), "rank %d: other weights write the same: the test shows nothing", r)
	}
}
