package serve

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

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
	n := s.bodies.Load()
	expect.True(t, n == 0, "%d bytes are still counted", n)
}

// TestHosts: without a key, a page cannot reach the server by a domain that it points to this machine.
// TestTimesOfSlowRequests: a request that takes longer than the last bucket counts too.
func TestTimesOfSlowRequests(t *testing.T) {
	f := newFigures()
	f.took(time.Hour)
	expect.True(t, f.times[len(buckets)] == 1 && f.seconds == 3600, "times %v, %v s", f.times, f.seconds)
}

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
			expect.Same(t, s == keyed || want == http.StatusOK, (answer.StatusCode == http.StatusOK),
				"%q: status %d", host, answer.StatusCode)
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
