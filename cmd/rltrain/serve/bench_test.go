package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// BenchmarkAgainstGenerate generates the same completions with `rltrain generate` and through the server with 200
// clients, one prompt per request. It reports the best processor time of each, clients included.
func BenchmarkAgainstGenerate(b *testing.B) {
	for _, shape := range []struct{ layers, hidden int }{{4, 128}, {6, 256}} {
		b.Run(fmt.Sprintf("layers=%d,hidden=%d", shape.layers, shape.hidden), func(b *testing.B) { againstGenerate(b, shape.layers, shape.hidden) })
	}
}

func againstGenerate(b *testing.B, layers, hidden int) {
	const prompts, slots, fresh = 200, 32, 64
	dir := filepath.Join(b.TempDir(), "model")
	must.Do(b, policy.TinyModel(dir, layers, hidden, 5))
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
	must.Do(b, s.engine.ask(b.Context(), func() (err error) {
		sampler, err = s.base.NewSampler(slots)
		return err
	}))
	defer func() { _ = s.engine.ask(b.Context(), func() error { sampler.Close(); return nil }) }()
	generate := func() (tokens int) {
		o := policy.GenerateOptions{Samples: 1, MaxNew: fresh, Seed: 1, Sampling: torch.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}}
		must.Do(b, s.engine.ask(b.Context(), func() error {
			return sampler.Generate(context.Background(), all, o, func(_ int, done []policy.Completion) error {
				tokens += len(done[0].IDs)
				return nil
			})
		}))
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
	// By processor time: a busy machine distorts wall time for both.
	rate := func(do func() int) float64 {
		before := processorTime(b)
		tokens := do()
		return float64(tokens) / (processorTime(b) - before)
	}
	var generated, served float64
	for b.Loop() {
		generated, served = max(generated, rate(generate)), max(served, rate(serve))
	}
	b.ReportMetric(generated, "generated_tok/cpu_s")
	b.ReportMetric(served, "served_tok/cpu_s")
	b.ReportMetric(served/generated, "served/generated")
}

// BenchmarkAdapters generates the same number of completions with the model, with one adapter, and with eight adapters
// and the model in turn. It reports the least processor time per token.
func BenchmarkAdapters(b *testing.B) {
	const clients, fresh, adapters = 54, 32, 8
	dir, allowed := filepath.Join(b.TempDir(), "model"), b.TempDir()
	must.Do(b, policy.TinyModel(dir, 6, 256, 5))
	s := startModel(b, dir, Config{Slots: 64, Queue: 64, AdapterDirs: []string{allowed}, MaxAdapters: adapters})
	names := []string{"tiny"}
	for i := range adapters {
		name := fmt.Sprint("a", i)
		adapter(b, s, filepath.Join(allowed, name), uint64(i))
		status, text := s.ask(b, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":%q}`, name, filepath.Join(allowed, name)))
		expect.Require(b, status == http.StatusOK, "%v", text)
		names = append(names, name)
	}
	perToken := func(names []string) float64 {
		before := processorTime(b)
		var all sync.WaitGroup
		counts := make([]int, clients)
		for i := range clients {
			all.Go(func() {
				body := fmt.Sprintf(`{"model":%q,"prompt":[5,6,7,8],"max_tokens":%d,"seed":%d}`, names[i%len(names)], fresh, i)
				counts[i] = s.complete(b, "/v1/completions", body).Usage.Completion
			})
		}
		all.Wait()
		sum := 0
		for _, n := range counts {
			sum += n
		}
		return 1e6 * (processorTime(b) - before) / float64(sum)
	}
	least := map[string]float64{}
	for b.Loop() {
		for kind, of := range map[string][]string{"model": names[:1], "one_adapter": names[1:2], "nine_in_turn": names} {
			if spent := perToken(of); least[kind] == 0 || spent < least[kind] {
				least[kind] = spent
			}
		}
	}
	for kind, spent := range least {
		b.ReportMetric(spent, kind+"_µs/token")
	}
}

// processorTime is the processor time of this process, in seconds.
func processorTime(t testing.TB) float64 {
	var u syscall.Rusage
	must.Do(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
