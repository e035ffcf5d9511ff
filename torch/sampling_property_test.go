package torch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// logitsOf returns the logits of each token of ids, by the forward pass of training.
func logitsOf(t *testing.T, m *torch.Model, head *torch.Var, c torch.ModelConfig, ids []int32) (rows [][]float64) {
	t.Helper()
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		h, _ := s.Hidden(m, torch.Pack([][]int32{ids}), torch.Pass{})
		flat := s.Read(s.Linear(h, head.T(), s.Floats(make([]float32, c.VocabSize), int64(c.VocabSize))))
		for row := range slices.Chunk(flat, c.VocabSize) {
			wide := make([]float64, len(row))
			for i, x := range row {
				wide[i] = float64(x)
			}
			rows = append(rows, wide)
		}
	})
	return rows
}

func softmax(x []float64) []float64 {
	p, sum := make([]float64, len(x)), 0.0
	for i, v := range x {
		p[i] = math.Exp(v - slices.Max(x))
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// enumerated is the distribution that o describes, by its definition: penalty, temperature, then the filters.
func enumerated(logits []float64, seen []int32, o torch.Sampling) []float64 {
	x := slices.Clone(logits)
	for i := range x {
		if o.RepetitionPenalty > 0 && slices.Contains(seen, int32(i)) {
			if x[i] > 0 {
				x[i] /= o.RepetitionPenalty
			} else {
				x[i] *= o.RepetitionPenalty
			}
		}
		x[i] /= o.Temperature
	}
	keep := func(of func(i int, p []float64) bool) {
		p := softmax(x)
		for i := range x {
			if !of(i, p) {
				x[i] = math.Inf(-1)
			}
		}
	}
	above := func(i int, p []float64) (rank int, mass float64) {
		for j := range p {
			if p[j] > p[i] {
				rank, mass = rank+1, mass+p[j]
			}
		}
		return rank, mass
	}
	if o.TopK > 0 {
		keep(func(i int, p []float64) bool { rank, _ := above(i, p); return rank < o.TopK })
	}
	if o.TopP > 0 {
		keep(func(i int, p []float64) bool { _, mass := above(i, p); return mass < o.TopP })
	}
	if o.MinP > 0 {
		keep(func(i int, p []float64) bool { return p[i] >= o.MinP*slices.Max(p) })
	}
	return softmax(x)
}

// TestSampledDistribution samples a vocabulary of 50 tokens with each filter alone and each pair of filters, at three
// temperatures, with and without a penalty. Log-probabilities equal an enumeration in float64, and frequencies pass a
// chi-squared test.
func TestSampledDistribution(t *testing.T) {
	torchtest.NoLeaks(t)
	c, rng := smallDecoder(), rand.New(rand.NewPCG(3, 3))
	c.VocabSize = 50
	weights := decoderWeights(t, c, rng, torch.Constant)
	m := newDecoder(t, c, weights)
	e := newEngine(t, m, torch.EngineConfig{Slots: 64})
	prompt := []int32{7, 3, 41, 12, 30, 3, 22, 18, 9, 45}
	logits := logitsOf(t, m, weights["embed.weight"], c, prompt)[len(prompt)-1]
	raw := softmax(logits)
	const samples = 3000
	for k, filters := range []torch.Sampling{{}, {TopK: 8}, {TopP: 0.7}, {MinP: 0.1}, {TopK: 8, TopP: 0.8}, {TopK: 8, MinP: 0.15}, {TopP: 0.9, MinP: 0.1}} {
		for _, temperature := range []float64{0.3, 1, 1.7} {
			for _, penalty := range []float64{0, 0.6, 1.5} {
				o := filters
				o.Temperature, o.RepetitionPenalty = temperature, penalty
				want := enumerated(logits, prompt, o)
				submit(t, e, torch.Request{Prompt: prompt, Samples: samples, MaxNew: 1, Sampling: o, Seed: 5, Stream: uint64(k)})
				counts := make([]float64, c.VocabSize)
				worst := 0.0
				for e.Unfinished() > 0 {
					for _, event := range must.Get(e.Step(1000))(t) {
						counts[event.Token]++
						worst = max(worst, math.Abs(float64(event.LogProb)-math.Log(want[event.Token])), math.Abs(float64(event.Raw)-math.Log(raw[event.Token])))
					}
				}
				expect.True(t, worst < 1e-4, "%+v: log-probabilities differ by %g", o, worst)
				chi, freedom, rest, restCount := 0.0, -1.0, 0.0, 0.0
				for i, p := range want {
					if expected := p * samples; expected >= 5 {
						chi += (counts[i] - expected) * (counts[i] - expected) / expected
						freedom++
					} else {
						rest, restCount = rest+expected, restCount+counts[i]
					}
				}
				if rest > 0 {
					chi += (restCount - rest) * (restCount - rest) / max(rest, 1)
					freedom++
				}
				if freedom < 1 {
					continue
				}
				// The quantile of 1 − 1e-5, as Wilson and Hilferty approximate it.
				limit := freedom * math.Pow(1-2/(9*freedom)+4.26*math.Sqrt(2/(9*freedom)), 3)
				expect.True(t, chi <= limit, "%+v: chi-squared is %.1f, above %.1f", o, chi, limit)
			}
		}
	}
}

// TestWindows compares the engine with the forward pass of training for every window of 1 to 40 keys: the engine
// generates from prompts of several lengths in one batch, so that each window ends at every offset; what it generated
// counts as repeated too. Independently, a token must reach exactly as many rows as the window has.
func TestWindows(t *testing.T) {
	torchtest.NoLeaks(t)
	const length = 46
	for window := 1; window <= 40; window++ {
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			c, rng := smallDecoder(), rand.New(rand.NewPCG(uint64(window), 1))
			c.MaxPositions, c.Layers, c.Windows, c.RopeOf = 64, 1, []int{window}, []int{1}
			weights := decoderWeights(t, c, rng, torch.Constant)
			m := newDecoder(t, c, weights)
			e := newEngine(t, m, torch.EngineConfig{Slots: 8})
			prompts := sequences(rng, c.VocabSize, 1, 7, window, 41)
			sampling := torch.Sampling{Temperature: 0.9, RepetitionPenalty: 1.5}
			for _, prompt := range prompts {
				submit(t, e, torch.Request{Prompt: prompt, Samples: 1, MaxNew: length - len(prompt), Sampling: sampling, Seed: 3})
			}
			var whole [][]int32
			done := complete(t, e, 17)
			for i, prompt := range prompts {
				got := done[sampleKey{int64(i + 1), 0}]
				ids := slices.Concat(prompt, got.Tokens)
				rows := logitsOf(t, m, weights["embed.weight"], c, ids)
				for at, token := range got.Tokens {
					row := rows[len(prompt)+at-1]
					raw, sampled := math.Log(softmax(row)[token]), math.Log(enumerated(row, ids[:len(prompt)+at], sampling)[token])
					d := max(math.Abs(raw-float64(got.Raw[at])), math.Abs(sampled-float64(got.LogProbs[at])))
					expect.Require(t, d < 1e-4, "token %d after a prompt of %d: engine and training differ by %g", at, len(prompt), d)
				}
				whole = append(whole, ids)
			}
			before := hidden(t, m, torch.Pack(whole), torch.Pass{})
			at := 5
			whole[1][at] = (whole[1][at] + 1) % int32(c.VocabSize)
			after := hidden(t, m, torch.Pack(whole), torch.Pass{})
			for row := range len(after) / c.HiddenSize {
				here := slices.Equal(before[row*c.HiddenSize:][:c.HiddenSize], after[row*c.HiddenSize:][:c.HiddenSize])
				place := row - length - at
				expect.Require(t, here != (0 <= place && place < min(window, length-at)), "row %d after the changed token: changed is %v", place, !here)
			}
		})
	}
}
