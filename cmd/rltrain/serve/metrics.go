package serve

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// buckets are the upper bounds of the latency histogram, in seconds.
var buckets = []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100}

// figures are the counters of /metrics.
type figures struct {
	lock    sync.Mutex
	answers map[[2]string]int64 // by route and status
	tokens  map[string]int64    // generated, by model
	prompts map[string]int64    // prompt tokens, by model
	times   []int64             // by bucket; the last is +Inf
	seconds float64
	lost    int64 // requests that timed out or whose client disconnected
}

func newFigures() *figures {
	return &figures{answers: map[[2]string]int64{}, tokens: map[string]int64{}, prompts: map[string]int64{}, times: make([]int64, len(buckets)+1)}
}

func (f *figures) change(do func()) {
	f.lock.Lock()
	defer f.lock.Unlock()
	do()
}

func (f *figures) answered(route string, status int) {
	f.change(func() { f.answers[[2]string{route, strconv.Itoa(status)}]++ })
}

func (f *figures) took(d time.Duration) {
	f.change(func() {
		i := 0
		for i < len(buckets) && d.Seconds() > buckets[i] {
			i++
		}
		f.times[i]++
		f.seconds += d.Seconds()
	})
}

func (f *figures) written(model string) { f.change(func() { f.tokens[model]++ }) }
func (f *figures) read(model string, tokens int) {
	f.change(func() { f.prompts[model] += int64(tokens) })
}
func (f *figures) abandoned() { f.change(func() { f.lost++ }) }

// metrics writes the Prometheus text format, version 0.0.4.
func (s *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	var running, samples int
	if err := s.engine.ask(r.Context(), func() error {
		running = len(s.engine.running)
		if s.engine.sampler != nil {
			samples = s.engine.sampler.Unfinished()
		}
		return nil
	}); err != nil {
		return err
	}
	s.lock.Lock()
	adapters := len(s.lanes) - 1
	s.lock.Unlock()
	s.engine.lock.Lock()
	waiting := s.engine.waiting
	s.engine.lock.Unlock()

	var b strings.Builder
	one := func(kind, name, help string, value any) {
		fmt.Fprintf(&b, "# HELP rltrain_%s %s\n# TYPE rltrain_%s %s\nrltrain_%s %v\n", name, help, name, kind, name, value)
	}
	one("gauge", "requests_running", "running and waiting requests", running)
	one("gauge", "requests_waiting", "requests waiting for a slot", waiting)
	one("gauge", "samples_running", "completions being generated", samples)
	one("gauge", "adapters", "loaded adapters", adapters)
	for _, more := range s.measures {
		more(one)
	}
	f := s.figures
	f.change(func() {
		one("counter", "requests_abandoned_total", "requests that timed out or whose client disconnected", f.lost)
		byModel := func(name, help string, values map[string]int64) {
			fmt.Fprintf(&b, "# HELP rltrain_%s %s\n# TYPE rltrain_%s counter\n", name, help, name)
			for _, model := range sortedKeys(values) {
				fmt.Fprintf(&b, "rltrain_%s{model=%s} %d\n", name, label(model), values[model])
			}
		}
		byModel("generated_tokens_total", "generated tokens", f.tokens)
		byModel("prompt_tokens_total", "prompt tokens", f.prompts)
		fmt.Fprint(&b, "# HELP rltrain_answers_total responses by route and status\n# TYPE rltrain_answers_total counter\n")
		texts := map[string]int64{}
		for at, n := range f.answers {
			texts[fmt.Sprintf("{route=%s,status=%s}", label(at[0]), label(at[1]))] = n
		}
		for _, at := range sortedKeys(texts) {
			fmt.Fprintf(&b, "rltrain_answers_total%s %d\n", at, texts[at])
		}
		fmt.Fprint(&b, "# HELP rltrain_request_seconds latency of requests\n# TYPE rltrain_request_seconds histogram\n")
		sum := int64(0)
		for i, n := range f.times {
			sum += n
			bound := "+Inf"
			if i < len(buckets) {
				bound = strconv.FormatFloat(buckets[i], 'g', -1, 64)
			}
			fmt.Fprintf(&b, "rltrain_request_seconds_bucket{le=%q} %d\n", bound, sum)
		}
		fmt.Fprintf(&b, "rltrain_request_seconds_sum %g\nrltrain_request_seconds_count %d\n", f.seconds, sum)
	})
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, err := fmt.Fprint(w, b.String())
	return err
}

// label quotes a label value.
func label(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}
