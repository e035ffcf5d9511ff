package torch_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/torch"
)

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
