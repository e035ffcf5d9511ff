package torch_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// Logits 0, ln 2, ln 5 have probabilities 1/8, 2/8, 5/8; at temperature ½ (squared) 1/30, 4/30, 25/30.
func TestTokenLogProbs(t *testing.T) {
	torchtest.NoLeaks(t)
	ln := func(x float64) float32 { return float32(math.Log(x)) }
	entropy := func(ps ...float64) float32 {
		var h float64
		for _, p := range ps {
			h -= p * math.Log(p)
		}
		return float32(h)
	}
	weight := []float32{0, ln(2), ln(5)}
	for _, tc := range []struct {
		name          string
		weight        []float32
		bias          []float32
		options       torch.HeadOptions
		want, entropy []float32
	}{
		{"plain", weight, nil, torch.HeadOptions{}, []float32{ln(5.0 / 8), ln(1.0 / 8)}, []float32{entropy(1./8, 2./8, 5./8), entropy(1./8, 2./8, 5./8)}},
		{"all bias", []float32{0, 0, 0}, weight, torch.HeadOptions{}, []float32{ln(5.0 / 8), ln(1.0 / 8)}, []float32{entropy(1./8, 2./8, 5./8), entropy(1./8, 2./8, 5./8)}},
		{"temperature", weight, nil, torch.HeadOptions{Temperature: 0.5}, []float32{ln(25.0 / 30), ln(1.0 / 30)}, []float32{entropy(1./30, 4./30, 25./30), entropy(1./30, 4./30, 25./30)}},
		{"tight softcap", weight, nil, torch.HeadOptions{Softcap: 1e-6}, []float32{ln(1.0 / 3), ln(1.0 / 3)}, []float32{ln(3), ln(3)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hidden := must.Open(torch.Parameter([]float32{1, 1}, 2, 1))(t)
			err := torch.Do(torch.Train, func(s *torch.Scope) error {
				var bias *torch.Tensor
				if tc.bias != nil {
					b := s.Floats(tc.bias, 3)
					bias = &b
				}
				logprobs, entropy, rank := s.TokenLogProbs(hidden.T(), s.Floats(tc.weight, 3, 1), bias, []int64{2, 0}, tc.options)
				expect.True(t, torchtest.MaxDiff(s.Read(logprobs), tc.want) <= 1e-5, "logprobs %v, want %v", s.Read(logprobs), tc.want)
				expect.True(t, torchtest.MaxDiff(s.Read(entropy), tc.entropy) <= 1e-5, "entropy %v, want %v", s.Read(entropy), tc.entropy)
				expect.Equal(t, []float32{0, 2}, s.Read(rank), "rank")
				s.Backward(s.Sum(logprobs))
				if tc.name == "plain" {
					// The target's weight minus its mean: ln 5 - (2 ln 2 + 5 ln 5)/8, and the same for 0.
					grad, _ := s.Grad(hidden)
					mean := (2*ln(2) + 5*ln(5)) / 8
					expect.True(t, torchtest.MaxDiff(s.Read(grad), []float32{ln(5) - mean, -mean}) <= 1e-5, "gradient %v", s.Read(grad))
				}
				return nil
			})
			must.Do(t, err)
		})
	}
}

func TestTokenLogProbsOfStoredWeights(t *testing.T) {
	torchtest.NoLeaks(t)
	exact, err := torch.Constant([]float32{1, -2, 0.5, 3, -0.25, 4}, 3, 2) // in every type, like the hidden state
	must.Do(t, err)
	defer exact.Close()
	judge := func(weight *torch.Var) (values []float32) {
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			logprobs, entropy, _ := s.TokenLogProbs(s.Floats([]float32{0.25, -0.75}, 1, 2), weight.T(), nil, []int64{1}, torch.HeadOptions{})
			values = append(s.Read(logprobs), s.Read(entropy)...)
		})
		return values
	}
	want := judge(exact)
	for _, dtype := range []torch.DType{torch.BF16, torch.F16} {
		stored := must.Get(exact.To(dtype))(t)
		expect.Equal(t, want, judge(stored), fmt.Sprintf("type %d", dtype))
		stored.Close()
	}
}

func TestTokenLogProbsNamesABadTarget(t *testing.T) {
	torchtest.NoLeaks(t)
	err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		s.TokenLogProbs(s.Floats([]float32{1, 1}, 2, 1), s.Floats([]float32{1, 1, 1}, 3, 1), nil, []int64{2, 3}, torch.HeadOptions{})
		return nil
	})
	var native *torch.Error
	expect.True(t, errors.As(err, &native) && strings.Contains(native.Text, "target 3 at position 1"), "error %v", err)
}

// BenchmarkOperator measures the overhead of an operator, in ns/operator: a product of 4×4 matrices is almost no work. A
// scope of a thousand operators amortises its cost.
func BenchmarkOperator(b *testing.B) {
	const operators = 1000
	data := make([]float32, 16)
	for b.Loop() {
		torchtest.Do(b, torch.NoGrad, func(s *torch.Scope) {
			x := s.Floats(data, 4, 4)
			for range operators {
				s.Mul(x, x)
			}
		})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*operators), "ns/operator")
}

// stepModel is six layers of a decoder with 135 million parameters, with adapters of rank 8 on all of them.
func stepModel(b *testing.B) (*torch.Model, *torch.Var, []*torch.Var) {
	c := torch.ModelConfig{
		VocabSize: 8192, HiddenSize: 576, Layers: 6, Heads: 9, KVHeads: 3, HeadDim: 64, IntermediateSize: 1536, MaxPositions: 2048,
		RotaryDim: 64, Gated: true, NormEps: 1e-5, AttentionScale: 0.125, EmbeddingScale: 1,
		RopeOf: make([]int, 6), Ropes: []torch.Rope{{InvFreq: make([]float64, 32), Factor: 1}},
	}
	rng := rand.New(rand.NewPCG(5, 1))
	weights := decoderWeights(b, c, rng, torch.Constant)
	m := newDecoder(b, c, weights)
	return m, weights["embed.weight"], adaptAll(b, m, c, 8, rng)
}

// learn is a step's forward and backward pass: the mean log-probability of each next token.
func learn(b *testing.B, m *torch.Model, head *torch.Var, batch torch.Packed, params []*torch.Var) {
	torchtest.Do(b, torch.Train, func(s *torch.Scope) {
		h, _ := s.Hidden(m, batch, torch.Pass{Adapter: true})
		targets := append(append([]int64{}, batch.Tokens[1:]...), 0)
		logprobs, _, _ := s.TokenLogProbs(h, head.T(), nil, targets, torch.HeadOptions{})
		s.Backward(s.Sum(logprobs))
	})
	must.Do(b, torch.ZeroGrad(params))
}

// bestOf runs step as often as b asks and reports the fastest run, which other programs disturb least.
func bestOf(b *testing.B, step func()) {
	best := time.Duration(1 << 62)
	for b.Loop() {
		start := time.Now()
		step()
		best = min(best, time.Since(start))
	}
	b.ReportMetric(best.Seconds()*1000, "best-ms")
}

func BenchmarkLoraStep(b *testing.B) {
	m, head, params := stepModel(b)
	rng := rand.New(rand.NewPCG(6, 1))
	for name, lengths := range map[string][]int{"equal": {256, 256, 256, 256}, "mixed": {31, 400, 77, 256, 12, 190}} {
		batch := torch.Pack(sequences(rng, 8192, lengths...))
		b.Run(name, func(b *testing.B) { bestOf(b, func() { learn(b, m, head, batch, params) }) })
	}
}

// BenchmarkGRPOStep samples 8 completions of 32 tokens for each of 2 prompts of 32 tokens, and trains on them.
func BenchmarkGRPOStep(b *testing.B) {
	m, head, params := stepModel(b)
	rng := rand.New(rand.NewPCG(7, 1))
	prompts := sequences(rng, 8192, 32, 32)
	e := newEngine(b, m, torch.EngineConfig{Slots: 16})
	bestOf(b, func() {
		must.Do(b, e.Refresh())
		for i, p := range prompts {
			submit(b, e, torch.Request{Prompt: p, Samples: 8, MaxNew: 32, Sampling: torch.Sampling{Temperature: 1}, Seed: 1, Stream: uint64(i), Adapter: 1})
		}
		rows := make([][]int32, 16)
		for e.Unfinished() > 0 {
			for _, event := range must.Get(e.Step(256))(b) {
				row := 8*int((event.Request-1)%2) + event.Sample
				if rows[row] == nil {
					rows[row] = append(rows[row], prompts[row/8]...)
				}
				rows[row] = append(rows[row], event.Token)
			}
		}
		learn(b, m, head, torch.Pack(rows), params)
	})
}
