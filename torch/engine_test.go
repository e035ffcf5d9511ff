package torch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

type sampleKey struct {
	request int64
	sample  int
}

type completion struct {
	Tokens        []int32
	LogProbs, Raw []float32
	Reason        torch.Reason
}

// complete steps until every sample has ended.
func complete(t testing.TB, e *torch.Engine, maxTokens int) map[sampleKey]completion {
	t.Helper()
	all := map[sampleKey]completion{}
	for e.Unfinished() > 0 {
		for _, event := range must.Get(e.Step(maxTokens))(t) {
			key := sampleKey{event.Request, event.Sample}
			c := all[key]
			if event.Token >= 0 {
				c.Tokens = append(c.Tokens, event.Token)
				c.LogProbs = append(c.LogProbs, event.LogProb)
				c.Raw = append(c.Raw, event.Raw)
			}
			expect.Same(t, event.Reason != "", event.Done, "event %+v: Done and Reason disagree", event)
			c.Reason = event.Reason
			all[key] = c
		}
	}
	return all
}

func newEngine(t testing.TB, m *torch.Model, c torch.EngineConfig) *torch.Engine {
	t.Helper()
	return must.Open(torch.NewEngine(m, c))(t)
}

func submit(t testing.TB, e *torch.Engine, r torch.Request) int64 {
	t.Helper()
	return must.Get(e.Submit(r))(t)
}

func TestEngine(t *testing.T) {
	torchtest.NoLeaks(t)
	c := smallDecoder()
	rng := rand.New(rand.NewPCG(8, 0))
	m := newDecoder(t, c, decoderWeights(t, c, rng, torch.Constant))
	base := newEngine(t, m, torch.EngineConfig{Slots: 1})
	request := torch.Request{Prompt: []int32{3, 1, 4, 1, 5}, Samples: 3, MaxNew: 8, Sampling: torch.Sampling{Temperature: 1}, Seed: 7, Stream: 2}
	submit(t, base, request)
	want := complete(t, base, 4)
	expect.Require(t, len(want) == 3 && want[sampleKey{1, 0}].Reason == torch.ReasonLength && len(want[sampleKey{1, 2}].Tokens) == 8, "completions %+v", want)
	expect.True(t, !cmp.Equal(want[sampleKey{1, 0}].Tokens, want[sampleKey{1, 1}].Tokens), "two samples are alike")

	t.Run("eos and cancel", func(t *testing.T) {
		eos := want[sampleKey{1, 0}].Tokens[2]
		e := newEngine(t, m, torch.EngineConfig{Slots: 3, EOS: []int32{eos}})
		submit(t, e, request)
		must.Do(t, e.Cancel(1, 2))
		got := complete(t, e, 100)
		first := want[sampleKey{1, 0}].Tokens
		for i, token := range first {
			if token == eos {
				first = first[:i+1]
				break
			}
		}
		if c := got[sampleKey{1, 0}]; c.Reason != torch.ReasonStop || !cmp.Equal(c.Tokens, first) {
			t.Errorf("ended by %q after %v, want %q after %v", c.Reason, c.Tokens, torch.ReasonStop, first)
		}
		if c := got[sampleKey{1, 2}]; c.Reason != torch.ReasonCancelled || c.Tokens != nil {
			t.Errorf("ended by %q after %v, want %q", c.Reason, c.Tokens, torch.ReasonCancelled)
		}
	})
	t.Run("adapter", func(t *testing.T) {
		e := newEngine(t, m, torch.EngineConfig{Slots: 3})
		a, b := constant(t, rng, 2, 16), constant(t, rng, 16, 2)
		must.Do(t, m.Adapt("layers.1.q", a, b, nil, 2))
		must.Do(t, e.Refresh())
		adapted := request
		adapted.Adapter = 1
		submit(t, e, request)
		submit(t, e, adapted)
		got := complete(t, e, 100)
		for key, c := range want {
			expect.Equal(t, c, got[key], fmt.Sprintf("sample %v without the adapter changed", key))
			expect.True(t, !cmp.Equal(c.Raw, got[sampleKey{2, key.sample}].Raw), "the adapter changed nothing")
		}
	})
}

func constant(t testing.TB, rng *rand.Rand, dims ...int64) *torch.Var {
	t.Helper()
	return must.Open(torch.Constant(drawn(dims[0]*dims[1], func() float32 { return float32(rng.NormFloat64()) }), dims...))(t)
}

func TestEngineRefuses(t *testing.T) {
	torchtest.NoLeaks(t)
	c := smallDecoder()
	m := newDecoder(t, c, decoderWeights(t, c, rand.New(rand.NewPCG(9, 0)), torch.Constant))
	expect.Failure(torch.NewEngine(m, torch.EngineConfig{}))(t, "slots must be positive")
	e := newEngine(t, m, torch.EngineConfig{Slots: 2})
	good := torch.Request{Prompt: []int32{1}, Samples: 1, MaxNew: 2}
	for _, tc := range []struct {
		want   string
		change func(*torch.Request)
	}{
		{"prompt is empty", func(r *torch.Request) { r.Prompt = nil }},
		{"prompt: 23 at 1 is not in [0, 23)", func(r *torch.Request) { r.Prompt = []int32{1, 23} }},
		{"samples must be positive, got 0", func(r *torch.Request) { r.Samples = 0 }},
		{"max_new 32 exceed the model's 32 positions", func(r *torch.Request) { r.MaxNew = 32 }},
		{"temperature -0.1", func(r *torch.Request) { r.Sampling.Temperature = -0.1 }},
		{"top_p 2 must be 0 to 1", func(r *torch.Request) { r.Sampling.TopP = 2 }},
	} {
		r := good
		tc.change(&r)
		expect.Failure(e.Submit(r))(t, tc.want)
	}
	expect.Failure(e.Step(1))(t, "max_tokens 1 is less than the engine's 2 slots")
	expect.Error(t, e.Cancel(1, 0), "no request 1")
	submit(t, e, good)
	expect.Error(t, e.Refresh(), "1 samples have not ended")
}

// FuzzSampling runs an engine with arbitrary sampling parameters: either it refuses them, or every token is in the
// vocabulary and has a log-probability. Non-finite values end only their request.
func FuzzSampling(f *testing.F) {
	c := smallDecoder()
	rng := rand.New(rand.NewPCG(8, 0))
	m := newDecoder(f, c, decoderWeights(f, c, rng, torch.Constant))
	e := newEngine(f, m, torch.EngineConfig{Slots: 2})
	tiny, almost := math.SmallestNonzeroFloat64, math.Nextafter(1, 0)
	for _, temperature := range []float64{0, tiny, 1e-300, 2.9e-39, 1e-38, 0.7, 1e39, math.MaxFloat64, math.Inf(1), math.NaN(), -1} {
		f.Add(temperature, 1.0, 0, 0.0, 0.0, uint64(1))
		f.Add(temperature, tiny, 3, almost, 0.0, uint64(2))
		f.Add(temperature, math.MaxFloat64, math.MaxInt, 0.5, 0.1, uint64(3))
		f.Add(temperature, 1e-46, 1, tiny, 1.0, uint64(4))
		f.Add(temperature, math.Inf(1), -1, math.NaN(), math.NaN(), uint64(5))
	}
	plain := torch.Request{Prompt: []int32{3, 1, 4}, Samples: 1, MaxNew: 3, Sampling: torch.Sampling{Temperature: 1}}
	f.Fuzz(func(t *testing.T, temperature, penalty float64, topK int, topP, minP float64, seed uint64) {
		odd := plain
		odd.Seed = seed
		odd.Sampling = torch.Sampling{Temperature: temperature, TopK: topK, TopP: topP, MinP: minP, RepetitionPenalty: penalty}
		if _, err := e.Submit(odd); err != nil {
			expect.Require(t, e.Unfinished() == 0, "%+v was refused (%v) and %d samples wait", odd.Sampling, err, e.Unfinished())
			return
		}
		other := submit(t, e, plain)
		for e.Unfinished() > 0 {
			events, err := e.Step(8)
			expect.Require(t, err == nil, "%+v: %v", odd.Sampling, err)
			for _, event := range events {
				if event.Reason == torch.ReasonNotFinite && event.Request != other {
					continue
				}
				expect.Require(t, event.Token >= 0 && int(event.Token) < c.VocabSize && !math.IsNaN(float64(event.LogProb)) && !math.IsNaN(float64(event.Raw)), "%+v gave %+v", odd.Sampling, event)
			}
		}
	})
}

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
