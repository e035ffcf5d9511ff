package torch_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
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
func decoderWeights(t testing.TB, c torch.ModelConfig, rng *rand.Rand, newVar func([]float32, ...int64) (*torch.Var, error)) map[string]*torch.Var {
	t.Helper()
	weights := map[string]*torch.Var{}
	add := func(name string, centre, spread float64, dims ...int64) {
		n := int64(1)
		for _, d := range dims {
			n *= d
		}
		data := drawn(n, func() float32 { return float32(centre + spread*(rng.Float64()-0.5)) })
		v := must.Get(newVar(data, dims...))(t)
		t.Cleanup(v.Close)
		weights[name+".weight"] = v
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

func drawn(n int64, draw func() float32) []float32 {
	data := make([]float32, n)
	for i := range data {
		data[i] = draw()
	}
	return data
}

func newDecoder(t testing.TB, c torch.ModelConfig, weights map[string]*torch.Var) *torch.Model {
	t.Helper()
	m := must.Get(torch.NewModel(c, weights))(t)
	t.Cleanup(m.Close)
	return m
}

func hidden(t testing.TB, m *torch.Model, p torch.Packed, pass torch.Pass) (data []float32) {
	t.Helper()
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		h, _ := s.Hidden(m, p, pass)
		data = s.Read(h)
	})
	return data
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

// TestEveryChoiceReachesTheCore changes one field at a time; each must change the result.
func TestEveryChoiceReachesTheCore(t *testing.T) {
	torchtest.NoLeaks(t)
	rng := rand.New(rand.NewPCG(2, 1))
	weights := decoderWeights(t, smallDecoder(), rng, torch.Constant)
	batch := torch.Pack(sequences(rng, smallDecoder().VocabSize, 9, 25))
	base := hidden(t, newDecoder(t, smallDecoder(), weights), batch, torch.Pass{})
	for name, change := range map[string]func(c *torch.ModelConfig){
		"Norm":             func(c *torch.ModelConfig) { c.Norm = torch.NormRMSPlusOne },
		"NormEps":          func(c *torch.ModelConfig) { c.NormEps = 0.1 },
		"Activation":       func(c *torch.ModelConfig) { c.Activation = torch.GELUTanh },
		"Residual":         func(c *torch.ModelConfig) { c.Residual = torch.ResidualParallel },
		"AttentionScale":   func(c *torch.ModelConfig) { c.AttentionScale = 0.1 },
		"AttentionSoftcap": func(c *torch.ModelConfig) { c.AttentionSoftcap = 0.5 },
		"EmbeddingScale":   func(c *torch.ModelConfig) { c.EmbeddingScale = 3 },
		"Windows":          func(c *torch.ModelConfig) { c.Windows = []int{0, 3} },
		"RopeOf":           func(c *torch.ModelConfig) { c.RopeOf = []int{0, 0} },
		"RotaryDim": func(c *torch.ModelConfig) {
			c.RotaryDim = 2
			c.Ropes = []torch.Rope{{InvFreq: []float64{1}, Factor: 1}, {InvFreq: []float64{1}, Factor: 1}}
		},
		"Factor":       func(c *torch.ModelConfig) { c.Ropes[1].Factor = 1.5 },
		"LongFactor":   func(c *torch.ModelConfig) { c.Ropes[0].LongFactor = 1.5 },
		"LongInvFreq":  func(c *torch.ModelConfig) { c.Ropes[0].LongInvFreq = []float64{0.4, 0.02} },
		"SwitchLength": func(c *torch.ModelConfig) { c.Ropes[0].SwitchLength = 30 },
	} {
		c := smallDecoder()
		change(&c)
		expect.True(t, torchtest.MaxDiff(hidden(t, newDecoder(t, c, weights), batch, torch.Pass{}), base) >= 1e-4, "%s changed nothing", name)
	}
}

func TestNewDecoderErrors(t *testing.T) {
	torchtest.NoLeaks(t)
	weights := decoderWeights(t, smallDecoder(), rand.New(rand.NewPCG(3, 1)), torch.Constant)
	for _, tc := range map[string]struct {
		change func(c *torch.ModelConfig)
		want   string
	}{
		"layers":      {func(c *torch.ModelConfig) { c.Layers = -1 }, "-1 layers"},
		"more layers": {func(c *torch.ModelConfig) { c.Layers, c.Windows, c.RopeOf = 3, nil, []int{0, 0, 0} }, "weight layers.2.attn_norm.weight is missing"},
		"less layers": {func(c *torch.ModelConfig) { c.Layers, c.Windows, c.RopeOf = 1, nil, []int{0} }, "no place for weight layers.1"},
		"windows":     {func(c *torch.ModelConfig) { c.Windows = []int{1} }, "1 windows for 2 layers"},
		"rope of":     {func(c *torch.ModelConfig) { c.RopeOf = nil }, "RopeOf has 0 entries for 2 layers"},
		"rope":        {func(c *torch.ModelConfig) { c.RopeOf = []int{0, 2} }, "rope 2 of 2"},
		"frequencies": {func(c *torch.ModelConfig) { c.Ropes[1].InvFreq = []float64{1} }, "rope 1 has 1 and 0 frequencies"},
		"long":        {func(c *torch.ModelConfig) { c.Ropes[1].SwitchLength = 4 }, "needs long_inv_freq"},
		"heads":       {func(c *torch.ModelConfig) { c.KVHeads = 3 }, "4 heads do not divide"},
		"shape":       {func(c *torch.ModelConfig) { c.IntermediateSize = 25 }, "weight layers.0.gate.weight has shape [24, 16], want [25, 16]"},
		"shapes":      {func(c *torch.ModelConfig) { c.Shapes = make([]torch.LayerShape, 3) }, "3 shapes for 2 layers"},
		"own heads":   {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 0, 0}, {3, 4, 24, 1, 0}} }, "layer 1: 4 heads of 4, 3 key heads"},
		"sparsity":    {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 0, 0}, {2, 4, 24, 1, 1}} }, "layer 1: sparsity 1 is not from 0 to below 1"},
		"later keys":  {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 1, 0}, {2, 4, 24, 1, 0}} }, "layer 0: keys of layer 1"},
		"other keys":  {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 0, 0}, {2, 6, 24, 0, 0}} }, "layer 1: keys of layer 0, which makes none of 2 heads of 6"},
		"narrow head": {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 0, 0}, {2, 2, 24, 1, 0}} }, "layer 1: heads of 2 with a rope of 4 features"},
		"borrowed":    {func(c *torch.ModelConfig) { c.Shapes = []torch.LayerShape{{2, 4, 24, 0, 0}, {2, 4, 24, 0, 0}} }, "no place for weight layers.1.k.weight"},
		"learned":     {func(c *torch.ModelConfig) { c.RotaryDim, c.RopeOf, c.Ropes = 0, nil, nil }, "weight positions.weight is missing"},
	} {
		c := smallDecoder()
		tc.change(&c)
		m, err := torch.NewModel(c, weights)
		if err == nil {
			m.Close()
		}
		expect.Error(t, err, tc.want)
	}
}

// adaptAll adds adapters to all linear layers and returns their matrices.
func adaptAll(t testing.TB, m *torch.Model, c torch.ModelConfig, rank int, rng *rand.Rand) []*torch.Var {
	t.Helper()
	var params []*torch.Var
	h, inner, q, kv := c.HiddenSize, c.IntermediateSize, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	for n := range c.Layers {
		for _, l := range []struct {
			name    string
			in, out int
		}{{"q", h, q}, {"k", h, kv}, {"v", h, kv}, {"o", q, h}, {"gate", h, inner}, {"up", h, inner}, {"down", inner, h}} {
			draw := func() float32 { return float32(rng.Float64()-0.5) / 4 }
			a := must.Get(torch.Parameter(drawn(int64(rank*l.in), draw), int64(rank), int64(l.in)))(t)
			t.Cleanup(a.Close)
			b := must.Get(torch.Parameter(drawn(int64(l.out*rank), draw), int64(l.out), int64(rank)))(t)
			t.Cleanup(b.Close)
			must.Do(t, m.Adapt(fmt.Sprintf("layers.%d.%s", n, l.name), a, b, nil, 2))
			params = append(params, a, b)
		}
	}
	return params
}

// gradients runs a step whose loss is a thousandth of the sum of squared hidden states, and returns the gradients.
func gradients(t testing.TB, m *torch.Model, p torch.Packed, pass torch.Pass, params []*torch.Var) (found [][]float32) {
	t.Helper()
	torchtest.Do(t, torch.Train, func(s *torch.Scope) {
		h, _ := s.Hidden(m, p, pass)
		s.Backward(s.Scale(s.Sum(s.Mul(h, h)), 1e-3))
		for i, v := range params {
			grad, ok := s.Grad(v)
			expect.Require(t, ok, "parameter %d has no gradient", i)
			found = append(found, s.Read(grad))
		}
	})
	must.Do(t, torch.ZeroGrad(params))
	return found
}

func TestCheckpointGivesTheSameGradients(t *testing.T) {
	torchtest.NoLeaks(t)
	c, rng := smallDecoder(), rand.New(rand.NewPCG(4, 1))
	adapted := newDecoder(t, c, decoderWeights(t, c, rng, torch.Constant))
	adapters := adaptAll(t, adapted, c, 2, rng)
	weights := decoderWeights(t, c, rng, torch.Parameter)
	var whole []*torch.Var
	for _, v := range weights {
		whole = append(whole, v)
	}
	batch := torch.Pack(sequences(rng, c.VocabSize, 3, 14))
	dropout := torch.Dropout{P: 0.2, Keys: []uint64{7, 8}}
	for name, tc := range map[string]struct {
		model  *torch.Model
		pass   torch.Pass
		params []*torch.Var
	}{
		"adapters":    {adapted, torch.Pass{Adapter: true, Dropout: dropout}, adapters},
		"all weights": {newDecoder(t, c, weights), torch.Pass{}, whole},
	} {
		want := gradients(t, tc.model, batch, tc.pass, tc.params)
		tc.pass.Checkpoint = true
		for i, got := range gradients(t, tc.model, batch, tc.pass, tc.params) {
			e := torchtest.RelativeError(got, want[i])
			expect.True(t, e <= 1e-6, "%s: parameter %d: relative error %g", name, i, e)
		}
	}
	d := torchtest.MaxDiff(hidden(t, adapted, batch, torch.Pass{}), hidden(t, adapted, batch, torch.Pass{Adapter: true}))
	expect.True(t, d >= 1e-3, "the adapter changed nothing")
}
