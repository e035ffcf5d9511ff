package torch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
)

// smallDecoder is a decoder with two blocks and a rope for each.
func smallDecoder() torch.ModelConfig {
	return torch.ModelConfig{
		VocabSize: 23, HiddenSize: 16, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 4, IntermediateSize: 24, MaxPositions: 32,
		RotaryDim: 4, Norm: torch.NormRMS, Activation: torch.SiLU, QKV: torch.QKVSplit, Residual: torch.ResidualSequential,
		Gated: true, NormEps: 1e-5, AttentionScale: 0.5, EmbeddingScale: 1, Windows: []int{0, 0}, RopeOf: []int{0, 1},
		Ropes: []torch.Rope{
			{InvFreq: []float64{1, 0.1}, LongInvFreq: []float64{0.5, 0.02}, Factor: 1, LongFactor: 1.2, SwitchLength: 20},
			{InvFreq: []float64{1, 0.01}, Factor: 1},
		},
	}
}

// decoderWeights samples the weights of a decoder with layers q, k, v, o, gate, up and down and a tied head.
func decoderWeights(t testing.TB, c torch.ModelConfig, rng *rand.Rand) map[string]*torch.Var {
	t.Helper()
	weights := map[string]*torch.Var{}
	add := func(name string, centre, spread float64, dims ...int64) {
		n := int64(1)
		for _, d := range dims {
			n *= d
		}
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(centre + spread*(rng.Float64()-0.5))
		}
		weights[name+".weight"] = must.Open(torch.Constant(data, dims...))(t)
	}
	h, inner := int64(c.HiddenSize), int64(c.IntermediateSize)
	q, kv := int64(c.Heads*c.HeadDim), int64(c.KVHeads*c.HeadDim)
	add("embed", 0, 2, int64(c.VocabSize), h)
	for n := range c.Layers {
		at := fmt.Sprintf("layers.%d.", n)
		add(at+"attn_norm", 1, 0.2, h)
		add(at+"q", 0, 1, q, h)
		add(at+"k", 0, 1, kv, h)
		add(at+"v", 0, 1, kv, h)
		add(at+"o", 0, 1, h, q)
		add(at+"mlp_norm", 1, 0.2, h)
		add(at+"gate", 0, 1, inner, h)
		add(at+"up", 0, 1, inner, h)
		add(at+"down", 0, 1, h, inner)
	}
	add("norm", 1, 0.2, h)
	return weights
}

func newDecoder(t testing.TB, c torch.ModelConfig, weights map[string]*torch.Var) *torch.Model {
	t.Helper()
	return must.Open(torch.NewModel(c, weights))(t)
}

func sequences(rng *rand.Rand, vocab int, lengths ...int) [][]int32 {
	var all [][]int32
	for _, n := range lengths {
		ids := make([]int32, n)
		for i := range ids {
			ids[i] = int32(rng.IntN(vocab))
		}
		all = append(all, ids)
	}
	return all
}

func TestNewDecoderErrors(t *testing.T) {
	for _, tc := range map[string]struct {
		change func(c *torch.ModelConfig)
		want   string
	}{
		"no weights":  {func(*torch.ModelConfig) {}, "embed.weight is missing"},
		"layers":      {func(c *torch.ModelConfig) { c.Layers = -1 }, "-1 layers"},
		"windows":     {func(c *torch.ModelConfig) { c.Windows = []int{1} }, "1 windows for 2 layers"},
		"rope of":     {func(c *torch.ModelConfig) { c.RopeOf = nil }, "RopeOf has 0 entries for 2 layers"},
		"frequencies": {func(c *torch.ModelConfig) { c.Ropes[1].InvFreq = []float64{1} }, "rope 1 has 1 and 0 frequencies"},
		"long":        {func(c *torch.ModelConfig) { c.Ropes[1].SwitchLength = 4 }, "needs long_inv_freq"},
		"shapes":      {func(c *torch.ModelConfig) { c.Shapes = make([]torch.LayerShape, 3) }, "3 shapes for 2 layers"},
		"own heads":   {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 0, 0}, {3, 4, 24, 1, 0}} }, "layer 1: 4 heads of 4, 3 key heads"},
		"sparsity":    {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 0, 0}, {2, 4, 24, 1, 1}} }, "layer 1: sparsity 1 is not from 0 to below 1"},
		"later keys":  {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 1, 0}, {2, 4, 24, 1, 0}} }, "layer 0: keys of layer 1"},
		"other keys":  {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 0, 0}, {2, 6, 24, 0, 0}} }, "layer 1: keys of layer 0, which makes none of 2 heads of 6"},
		"narrow head": {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 0, 0}, {2, 2, 24, 1, 0}} }, "layer 1: heads of 2 with a rope of 4 features"},
	} {
		c := smallDecoder()
		tc.change(&c)
		expect.Failure(torch.NewModel(c, nil))(t, tc.want)
	}
}
