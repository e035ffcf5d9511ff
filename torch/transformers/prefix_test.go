package transformers_test

import (
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// switches reports whether a model's positions depend on the length of the text.
func (c causalCase) switches() bool {
	return slices.ContainsFunc(c.Config.Core().Ropes, func(r torch.Rope) bool { return r.SwitchLength > 0 })
}

// families are texts of the fixture after common prompts, and alone.
func (c causalCase) families() (all [][]int32, limits []int) {
	long, short := c.sequences[3], c.sequences[4]
	thrice := slices.Concat(long, long, long) // longer than a chunk of a delta rule with what follows
	for _, ids := range [][]int32{
		slices.Concat(long, short), slices.Concat(long, short[4:]), long, c.sequences[1], slices.Concat(short, long[:2]), slices.Concat(short, long),
		slices.Concat(thrice, short), slices.Concat(thrice, long),
	} {
		all, limits = append(all, ids), append(limits, len(ids)-1)
	}
	limits[2] = len(long)
	return all, limits
}

// gradients returns the logits of packed texts and the gradients of all weights.
func (c causalCase) gradients(t *testing.T, p torch.Packed, place []int64) (logits []float32, grads map[string][]float32) {
	t.Helper()
	grads = map[string][]float32{}
	torchtest.Do(t, torch.Train, func(s *torch.Scope) {
		hidden, _ := s.Hidden(c.Model, p, torch.Pass{Checkpoint: true})
		all := c.head(s, s.Rows(hidden, s.Ints(place, int64(len(place)))))
		logits = s.Read(all)
		s.Backward(s.Scale(s.Sum(s.Mul(all, all)), 1e-2))
		for name, v := range c.Weights {
			if grad, ok := s.Grad(v); ok {
				grads[name] = s.Read(grad)
			}
		}
	})
	must.Do(t, torch.ZeroGrad(slices.Collect(func(yield func(*torch.Var) bool) {
		for _, v := range c.Weights {
			if !yield(v) {
				return
			}
		}
	})))
	return logits, grads
}

// TestPackedPromptsChangeNothing: logits and gradients are those of each text alone, in batches of texts and in batches that
// compute a common prompt once. No state passes from one text to the next.
func TestPackedPromptsChangeNothing(t *testing.T) {
	eachCausal(t, transformers.CausalOptions{Trainable: true}, func(t *testing.T, name string, c causalCase) {
		if c.switches() {
			return
		}
		texts, limits := c.families()
		var want []float32
		sums := map[string][]float32{}
		for _, ids := range texts {
			p, place := torch.PackShared([][]int32{ids}, []int{0})
			logits, grads := c.gradients(t, p, place)
			want = append(want, logits...)
			for name, grad := range grads {
				if sums[name] == nil {
					sums[name] = make([]float32, len(grad))
				}
				for i, g := range grad {
					sums[name][i] += g
				}
			}
		}
		for _, most := range [][]int{limits, make([]int, len(texts))} {
			p, place := torch.PackShared(texts, most)
			logits, grads := c.gradients(t, p, place)
			torchtest.Near(t, logits, want, logitsLimit(name), "logits")
			expect.Equal(t, len(grads), len(sums))
			for name, sum := range sums {
				largest := torchtest.MaxDiff(sum, make([]float32, len(sum)))
				torchtest.Near(t, grads[name], sum, tolerance*max(1, largest), name)
			}
		}
	})
}

// TestEngineStepsEqualTraining: two samples each of a prompt without an adapter, and of another with each of two adapters, have the
// log-probabilities of training in one batch, and the same tokens however many a step takes.
func TestEngineStepsEqualTraining(t *testing.T) {
	eachCausal(t, transformers.CausalOptions{DType: "fp32"}, func(t *testing.T, name string, c causalCase) {
		if c.switches() {
			t.Skip("the engine rotates all tokens for the sequence's full length")
		}
		c.adapt(t)
		other := causalCase{Causal: must.Open(c.Share(nil))(t), expected: c.expected}
		other.adaptThese(t, append(c.Config.ExpertLinears(), c.Config.Linears()...)[:1])
		models := []causalCase{c, c, other}
		var first [][]int32
		for _, tokens := range []int{4, 7, 64} {
			engine := must.Open(torch.NewEngine(c.Model, torch.EngineConfig{Slots: 3}))(t)
			must.Do(t, engine.SetAdapter(2, other.Model))
			var texts [][]int32
			for adapter, prompt := range [][]int32{c.sequences[3], c.sequences[1], c.sequences[1]} {
				must.Get(engine.Submit(torch.Request{Prompt: prompt, Samples: 2, MaxNew: 12, Seed: 5, Sampling: torch.Sampling{Temperature: 1}, Adapter: adapter}))(t)
				texts = append(texts, prompt, prompt)
			}
			raw := make([][]float32, len(texts))
			for engine.Unfinished() > 0 {
				for _, e := range must.Get(engine.Step(tokens))(t) {
					i := int(e.Request-1)*2 + e.Sample
					texts[i], raw[i] = append(slices.Clip(texts[i]), e.Token), append(raw[i], e.Raw)
				}
			}
			for i, ids := range texts {
				prompt := len(ids) - len(raw[i])
				torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
					logProbs := s.Read(s.LogSoftmax(models[i/2].logits(s, [][]int32{ids}, i > 1)))
					for j, got := range raw[i] {
						want := logProbs[(prompt+j-1)*c.Config.VocabSize+int(ids[prompt+j])]
						torchtest.Near(t, []float32{got}, []float32{want}, logitsLimit(name), "log-probability")
					}
				})
			}
			if first == nil {
				first = texts
			}
			expect.Equal(t, first, texts)
		}
	})
}
