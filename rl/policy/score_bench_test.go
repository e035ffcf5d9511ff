package policy

import (
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// BenchmarkScore scores 14 labels after a prompt of 64 tokens: with the prompt computed once, and for each label.
func BenchmarkScore(b *testing.B) {
	lm := must.Get(RandomCausalLM(transformers.LlamaShape{Vocab: 8192, Hidden: 512, Layers: 8, Heads: 8, KVHeads: 4, Intermediate: 1408, RopeTheta: 10000}, torch.F32, Config{Seed: 1}))(b)
	p := &Classifier{Labels: make([]string, 14), Pooling: PoolScore, backbone: lm.backbone, lm: lm}
	defer lm.Close()
	prompt := make([]int32, 64)
	for i := range prompt {
		prompt[i] = int32(100 + 7*i)
	}
	for k := range p.Labels {
		p.words.tokens = append(p.words.tokens, []int32{int32(1000 + k), int32(2000 + k), 5})
	}
	b.Run("together", func(b *testing.B) {
		for b.Loop() {
			must.Get(p.Probs(b.Context(), [][]int32{prompt}))(b)
		}
	})
	b.Run("alone", func(b *testing.B) {
		for b.Loop() {
			torchtest.Do(b, torch.NoGrad, func(s *torch.Scope) {
				for _, row := range oneByOne(s, p, [][]int32{prompt}, false) {
					for _, l := range row {
						s.Item(l)
					}
				}
			})
		}
	})
}
