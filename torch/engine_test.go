package torch_test

import (
	"fmt"
	"math"
	"math/rand/v2"
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
				if event.Token < 0 || int(event.Token) >= c.VocabSize || math.IsNaN(float64(event.LogProb)) || math.IsNaN(float64(event.Raw)) {
					t.Fatalf("%+v gave %+v", odd.Sampling, event)
				}
			}
		}
	})
}
