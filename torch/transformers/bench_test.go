package transformers_test

import (
	"fmt"
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// BenchmarkHidden is a forward pass, without gradients, of an encoder with MiniLM's shape.
func BenchmarkHidden(b *testing.B) {
	model := must.Get(transformers.Random(&transformers.Config{
		ModelType: "bert", VocabSize: 30522, HiddenSize: 384, NumHiddenLayers: 6, NumAttentionHeads: 12, IntermediateSize: 1536,
		HiddenAct: "gelu", LayerNormEps: 1e-12, MaxPositionEmbeddings: 512, TypeVocabSize: 2,
	}, "", 1))(b)
	defer model.Close()
	for _, size := range []int{1, 32} {
		sequences := make([][]int32, size)
		for i := range sequences {
			sequences[i] = make([]int32, 32)
			for j := range sequences[i] {
				sequences[i][j] = int32(1000 + 32*i + j)
			}
		}
		packed := torch.Pack(sequences)
		b.Run(fmt.Sprintf("%dx32", size), func(b *testing.B) {
			for b.Loop() {
				torchtest.Do(b, torch.NoGrad, func(s *torch.Scope) {
					s.Hidden(model.Encoder, packed, torch.Pass{})
				})
			}
		})
	}
}
