package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// manyClients starts concurrent clients; every other one disconnects after the first chunk. The remaining ones must get
// what the engine generates for each by itself.
func manyClients(t *testing.T, n, tokens int) {
	s := start(t, Config{Queue: n, Slots: 16})
	before := runtime.NumGoroutine()
	var clients sync.WaitGroup
	for i := range n {
		clients.Go(func() {
			body := fmt.Sprintf(`{"model":"tiny","prompt":[%d,6],"max_tokens":%d,"seed":%d,"n":2,"stream":%v,"return_token_ids":true}`, 5+i%20, tokens, i, i%2 == 1 || i%3 == 0)
			ctx, cut := context.WithCancel(t.Context())
			defer cut()
			answer := s.send(t, ctx, "/v1/completions", body)
			if i%2 == 1 {
				_, _ = bufio.NewReader(answer.Body).ReadString('\n')
				cut()
				answer.Body.Close()
				return
			}
			ids := make([][]int32, 2)
			if i%3 == 0 {
				for _, piece := range pieces(t, answer) {
					for _, c := range piece.Choices {
						ids[c.Index] = append(ids[c.Index], c.IDs...)
					}
				}
			} else {
				var got said
				err := json.NewDecoder(answer.Body).Decode(&got)
				answer.Body.Close()
				if err != nil || len(got.Choices) != 2 {
					t.Errorf("client %d: %v, %+v", i, err, got)
					return
				}
				ids[0], ids[1] = got.Choices[0].IDs, got.Choices[1].IDs
			}
			want := direct(t, s, "", [][]int32{{int32(5 + i%20), 6}}, policy.GenerateOptions{Samples: 2, MaxNew: tokens, Seed: uint64(i), Sampling: torch.Sampling{Temperature: 1, TopP: 1, RepetitionPenalty: 1}})[0]
			for k := range ids {
				expect.True(t, slices.Equal(ids[k], want[k].IDs), "client %d, sample %d: %v, want %v", i, k, ids[k], want[k].IDs)
			}
		})
	}
	clients.Wait()
	s.idle(t)
	s.engine.lock.Lock()
	expect.Same(t, 0, s.engine.waiting, "%d requests are counted as waiting", s.engine.waiting)
	s.engine.lock.Unlock()
	http.DefaultClient.CloseIdleConnections()
	for deadline := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before+4 && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	now := runtime.NumGoroutine()
	expect.True(t, now <= before+4, "%d goroutines, %d before", now, before)
}

func TestDisconnectedClientsLeakNothing(t *testing.T) { manyClients(t, 24, 40) }

// hold blocks the engine's next step until release is called.
func (s *running) hold() (release func()) {
	held, gate := make(chan struct{}), make(chan struct{})
	s.engine.order(func() {
		close(held)
		<-gate
	})
	<-held
	return sync.OnceFunc(func() { close(gate) })
}

// later sends a request without waiting for the response.
func (s *running) later(ctx context.Context, body string) (answered <-chan string) {
	all := make(chan string, 1)
	go func() {
		answer, err := s.try(ctx, "/v1/completions", body)
		if err != nil {
			all <- err.Error()
			return
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		all <- answer.Status + " " + string(text)
	}()
	return all
}

func TestTheQueueIsBounded(t *testing.T) {
	s := start(t, Config{Queue: 2})
	release := s.hold()
	defer release()
	ctx, cut := context.WithCancel(t.Context())
	gone, stays := s.later(ctx, `{"model":"tiny","prompt":[5],"n":128,"max_tokens":2000}`), s.later(t.Context(), `{"model":"tiny","prompt":[6]}`)
	for !s.engine.full() {
		runtime.Gosched()
	}
	// This includes one admitted just before.
	err := s.engine.submit(s.lanes["tiny"], &job{prompts: [][]int32{{5}}, options: policy.GenerateOptions{Samples: 1}})
	expect.True(t, errors.Is(err, errBusy), "a third request: %v", err)
	answer := s.send(t, t.Context(), "/v1/completions", `{"model":"tiny","prompt":[5]}`)
	var got said
	err = json.NewDecoder(answer.Body).Decode(&got)
	expect.True(t, err == nil && answer.StatusCode == 429 && got.Error.Type == "rate_limit_error" && answer.Header.Get("Retry-After") != "", "status %d, %+v", answer.StatusCode, got.Error)
	answer.Body.Close()
	cut()
	<-gone
	release()
	text := <-stays
	expect.True(t, strings.HasPrefix(text, "200 OK"), "a request that waited: %s", text)
	s.idle(t)
	s.complete(t, "/v1/completions", `{"model":"tiny","prompt":[5]}`)
}

func TestDeadline(t *testing.T) {
	s := start(t, Config{Timeout: 20 * time.Millisecond})
	release := s.hold()
	defer release()
	status, text := s.ask(t, "/v1/completions", `{"model":"tiny","prompt":[5],"n":8}`)
	expect.True(t, status == http.StatusGatewayTimeout && strings.Contains(text, "timeout_error"), "status %d, %s", status, text)
	release()
	s.idle(t)
	s.figures.change(func() {
		expect.Same(t, 1, s.figures.lost, "%d requests count as abandoned", s.figures.lost)
	})
}

func TestStopLetsRequestsEnd(t *testing.T) {
	s := start(t, Config{})
	release := s.hold()
	answered := s.later(t.Context(), `{"model":"tiny","prompt":[5],"max_tokens":50}`)
	for s.waiting() == 0 {
		runtime.Gosched()
	}
	s.stop()
	for !s.stops() {
		runtime.Gosched()
	}
	release()
	text := <-answered
	expect.True(t, strings.HasPrefix(text, "200 OK"), "a request that had come before: %s", text)
	err := <-s.ended
	expect.True(t, err == context.Canceled, "it ended with %v", err)
	s.ended <- nil
	expect.Fails(http.Get(s.url+"/health"))(t, "it answers after its end")
}

func (s *running) waiting() int {
	s.engine.lock.Lock()
	defer s.engine.lock.Unlock()
	return s.engine.waiting
}

func TestStopGivesUpAfterItsGrace(t *testing.T) {
	gave := make(chan struct{})
	s := start(t, Config{Grace: time.Nanosecond, Logf: func(format string, _ ...any) {
		if strings.Contains(format, "stopping: cancelled") {
			close(gave)
		}
	}})
	release := s.hold()
	answered := s.later(t.Context(), `{"model":"tiny","prompt":[5],"n":128,"max_tokens":2000}`)
	for s.waiting() == 0 {
		runtime.Gosched()
	}
	s.stop()
	<-gave
	release()
	text := <-answered
	expect.True(t, strings.HasPrefix(text, "503") || strings.HasPrefix(text, "Post"), "a request that was given up: %.200s", text)
}

// TestBodiesAreBounded: what all requests send together is limited.
func TestBodiesAreBounded(t *testing.T) {
	s := start(t, Config{})
	ask := func(want int) {
		t.Helper()
		status, text := s.ask(t, "/v1/completions", `{"model":"tiny","prompt":"a","max_tokens":1}`)
		expect.True(t, status == want, "status %d, %s; want %d", status, text, want)
	}
	s.bodies.Add(mostBodies)
	ask(http.StatusTooManyRequests)
	s.bodies.Add(-mostBodies)
	ask(http.StatusOK)
	s.stop()
	err := <-s.ended
	expect.True(t, errors.Is(err, context.Canceled), "%v", err)
	s.ended <- nil // for the clean-up
	expect.Same(t, 0, s.bodies.Load(), "bytes are still counted")
}

// TestTimesOfSlowRequests: a request that takes longer than the last bucket counts too.
func TestTimesOfSlowRequests(t *testing.T) {
	f := newFigures()
	f.took(time.Hour)
	expect.True(t, f.times[len(buckets)] == 1 && f.seconds == 3600, "times %v, %v s", f.times, f.seconds)
}

// TestHosts: without a key, a page cannot reach the server by a domain that it points to this machine.
func TestHosts(t *testing.T) {
	open, keyed := start(t, Config{}), start(t, Config{Key: "secret"})
	for host, want := range map[string]int{
		"": 200, "localhost": 200, "LOCALHOST:80": 200, "a.localhost": 200, "127.0.0.1:1": 200, "[::1]:1": 200, "box": 200,
		"rebind.example": 403, "127.0.0.1.rebind.example:8000": 403, "localhost.": 200, "rebind.example.:80": 403,
	} {
		for _, s := range []*running{open, keyed} {
			r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/health", nil))(t)
			r.Host = host
			r.Header.Set("Authorization", "bearer  "+s.key)
			answer := must.Get(s.client.Do(r))(t)
			answer.Body.Close()
			expect.Same(t, s == keyed || want == http.StatusOK, (answer.StatusCode == http.StatusOK), "%q: status %d", host, answer.StatusCode)
		}
	}
}

// TestShortRequestsDoNotWait: a short request is answered while long ones take all places to be decoded.
func TestShortRequestsDoNotWait(t *testing.T) {
	s := start(t, Config{Timeout: time.Second})
	for range cap(s.preparingLong) {
		s.preparingLong <- struct{}{}
	}
	for text, want := range map[string]int{"a": http.StatusOK, strings.Repeat(" ", shortText): http.StatusGatewayTimeout} {
		status, answer := s.ask(t, "/v1/completions", `{"model":"tiny","prompt":"`+text+`","max_tokens":1}`)
		expect.True(t, status == want, "a text of %d bytes: status %d, %s; want %d", len(text), status, answer, want)
	}
}

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
		return s.generated(b, prompts, func(i int) string {
			body, _ := json.Marshal(map[string]any{"model": "tiny", "prompt": all[i], "max_tokens": fresh, "seed": 1 + i, "logprobs": 0, "return_token_ids": true})
			return string(body)
		})
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

// generated is the number of tokens that n clients at once get for their bodies.
func (s *running) generated(b *testing.B, n int, body func(i int) string) int {
	var clients sync.WaitGroup
	var sum atomic.Int64
	for i := range n {
		clients.Go(func() { sum.Add(int64(s.complete(b, "/v1/completions", body(i)).Usage.Completion)) })
	}
	clients.Wait()
	return int(sum.Load())
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
		sum := s.generated(b, clients, func(i int) string {
			return fmt.Sprintf(`{"model":%q,"prompt":[5,6,7,8],"max_tokens":%d,"seed":%d}`, names[i%len(names)], fresh, i)
		})
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
