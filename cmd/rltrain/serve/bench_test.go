package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"rltrain/rl/policy"
	"rltrain/torch"
)

// BenchmarkAgainstGenerate writes the same completions in turn as `rltrain generate` does and as clients of the server ask
// for them, one prompt a request, and reports the best of each.
func BenchmarkAgainstGenerate(b *testing.B) {
	for _, shape := range []struct{ layers, hidden int }{{4, 128}, {6, 256}} {
		b.Run(fmt.Sprintf("layers=%d,hidden=%d", shape.layers, shape.hidden), func(b *testing.B) { againstGenerate(b, shape.layers, shape.hidden) })
	}
}

func againstGenerate(b *testing.B, layers, hidden int) {
	const prompts, slots, fresh = 128, 32, 64
	dir := filepath.Join(b.TempDir(), "model")
	if err := policy.TinyModel(dir, layers, hidden, 5); err != nil {
		b.Fatal(err)
	}
	s := startModel(b, dir, Config{Slots: slots, Queue: prompts})
	rng := rand.New(rand.NewPCG(1, 0))
	all := make([][]int32, prompts)
	for i := range all {
		for range 64 {
			all[i] = append(all[i], int32(3+rng.IntN(90)))
		}
	}
	transport := &http.Transport{MaxIdleConnsPerHost: prompts}
	defer transport.CloseIdleConnections()
	s.client = &http.Client{Transport: transport}
	var sampler *policy.Sampler
	if err := s.engine.ask(b.Context(), func() (err error) {
		sampler, err = s.base.NewSampler(slots)
		return err
	}); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.engine.ask(b.Context(), func() error { sampler.Close(); return nil }) }()
	generate := func() (tokens int) {
		o := policy.GenerateOptions{Samples: 1, MaxNew: fresh, Seed: 1, Sampling: torch.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}}
		if err := s.engine.ask(b.Context(), func() error {
			return sampler.Generate(context.Background(), all, o, func(_ int, done []policy.Completion) error {
				tokens += len(done[0].IDs)
				return nil
			})
		}); err != nil {
			b.Fatal(err)
		}
		return tokens
	}
	serve := func() int {
		var clients sync.WaitGroup
		counts := make([]int, prompts)
		for i, prompt := range all {
			clients.Go(func() {
				body, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": fresh, "seed": 1 + i, "logprobs": 0, "return_token_ids": true})
				counts[i] = s.complete(b, "/v1/completions", string(body)).Usage.Completion
			})
		}
		clients.Wait()
		sum := 0
		for _, n := range counts {
			sum += n
		}
		return sum
	}
	rate := func(do func() int) float64 {
		began := time.Now()
		tokens := do()
		return float64(tokens) / time.Since(began).Seconds()
	}
	var generated, served float64
	for b.Loop() {
		generated, served = max(generated, rate(generate)), max(served, rate(serve))
	}
	b.ReportMetric(generated, "generated_tok/s")
	b.ReportMetric(served, "served_tok/s")
	b.ReportMetric(served/generated, "served/generated")
}
