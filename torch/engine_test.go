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

// TestEngine: samples of a prompt differ; one ends at an end token, and another is cancelled.
func TestEngine(t *testing.T) {
	torchtest.NoLeaks(t)
	c := smallDecoder()
	m := newDecoder(t, c, decoderWeights(t, c, rand.New(rand.NewPCG(8, 0))))
	base := newEngine(t, m, torch.EngineConfig{Slots: 1})
	request := torch.Request{Prompt: []int32{3, 1, 4, 1, 5}, Samples: 3, MaxNew: 8, Sampling: torch.Sampling{Temperature: 1}, Seed: 7, Stream: 2}
	submit(t, base, request)
	want := complete(t, base, 4)
	expect.Require(t, len(want) == 3 && want[sampleKey{1, 0}].Reason == torch.ReasonLength && len(want[sampleKey{1, 2}].Tokens) == 8, "completions %+v", want)
	first := want[sampleKey{1, 0}].Tokens
	expect.True(t, !cmp.Equal(first, want[sampleKey{1, 1}].Tokens), "two samples are alike")
	e := newEngine(t, m, torch.EngineConfig{Slots: 3, EOS: first[2:3]})
	submit(t, e, request)
	must.Do(t, e.Cancel(1, 2))
	got := complete(t, e, 100)
	first = first[:slices.Index(first, first[2])+1]
	ended, cancelled := got[sampleKey{1, 0}], got[sampleKey{1, 2}]
	expect.True(t, ended.Reason == torch.ReasonStop && cmp.Equal(ended.Tokens, first), "%+v, want to stop after %v", ended, first)
	expect.True(t, cancelled.Reason == torch.ReasonCancelled && cancelled.Tokens == nil, "cancelled: %+v", cancelled)
}

func TestEngineRefuses(t *testing.T) {
	torchtest.NoLeaks(t)
	c := smallDecoder()
	m := newDecoder(t, c, decoderWeights(t, c, rand.New(rand.NewPCG(9, 0))))
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
		{"min_p 3", func(r *torch.Request) { r.Sampling.MinP = 3 }},
		{"top_k -1", func(r *torch.Request) { r.Sampling.TopK = -1 }},
		{"repetition_penalty -2", func(r *torch.Request) { r.Sampling.RepetitionPenalty = -2 }},
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
	m := newDecoder(f, c, decoderWeights(f, c, rng))
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

// sampledFrom is the distribution after some tokens: repetition penalty, then temperature.
func sampledFrom(logits []float64, seen []int32, o torch.Sampling) []float64 {
	x := slices.Clone(logits)
	for i := range x {
		switch {
		case !slices.Contains(seen, int32(i)):
		case x[i] > 0:
			x[i] /= o.RepetitionPenalty
		default:
			x[i] *= o.RepetitionPenalty
		}
		x[i] /= o.Temperature
	}
	return softmax(x)
}

// TestWindows compares the engine with the forward pass of training for every window of 1 to 40 keys: the engine
// generates from prompts of several lengths in one batch, so that each window ends at every offset; what it generated
// counts as repeated too.
func TestWindows(t *testing.T) {
	torchtest.NoLeaks(t)
	const length = 46
	for window := 1; window <= 40; window++ {
		t.Run(fmt.Sprint(window), func(t *testing.T) {
			c, rng := smallDecoder(), rand.New(rand.NewPCG(uint64(window), 1))
			c.MaxPositions, c.Layers, c.Windows, c.RopeOf = 64, 1, []int{window}, []int{1}
			weights := decoderWeights(t, c, rng)
			m := newDecoder(t, c, weights)
			e := newEngine(t, m, torch.EngineConfig{Slots: 8})
			prompts := sequences(rng, c.VocabSize, 1, 7, window, 41)
			sampling := torch.Sampling{Temperature: 0.9, RepetitionPenalty: 1.5}
			for _, prompt := range prompts {
				submit(t, e, torch.Request{Prompt: prompt, Samples: 1, MaxNew: length - len(prompt), Sampling: sampling, Seed: 3})
			}
			done := complete(t, e, 17)
			for i, prompt := range prompts {
				got := done[sampleKey{int64(i + 1), 0}]
				ids := slices.Concat(prompt, got.Tokens)
				rows := logitsOf(t, m, weights["embed.weight"], c, ids)
				for at, token := range got.Tokens {
					row := rows[len(prompt)+at-1]
					raw, sampled := math.Log(softmax(row)[token]), math.Log(sampledFrom(row, ids[:len(prompt)+at], sampling)[token])
					d := max(math.Abs(raw-float64(got.Raw[at])), math.Abs(sampled-float64(got.LogProbs[at])))
					expect.Require(t, d < 1e-4, "token %d after a prompt of %d: engine and training differ by %g", at, len(prompt), d)
				}
			}
		})
	}
}
