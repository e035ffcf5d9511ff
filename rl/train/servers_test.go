package train

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote"
	"github.com/rltrain/rltrain/rl/remote/remotetest"
	"github.com/rltrain/rltrain/rl/rollout"
)

// writer is closed by its test.
type writer interface {
	rollout.Generator
	Close()
}

// serve starts servers of the policy's base model.
func (r tokenRun) serve(t testing.TB, p *policy.CausalLM) (writer, error) {
	t.Helper()
	c := remote.Config{
		Options: remote.Options{Dir: filepath.Join(t.TempDir(), "adapters"), Tolerance: 0.01, Timeout: 60}, Temperature: r.Options.Temperature,
		Retry: 5 * time.Millisecond, Warn: func(format string, args ...any) {
			if r.told != nil {
				r.told(fmt.Sprintf(format, args...))
			}
		},
	}
	for i := range r.servers {
		s := remotetest.New(t, p.BaseModel)
		if r.quirk != nil {
			r.quirk(i, s)
		}
		c.URLs = append(c.URLs, s.URL)
	}
	return remote.New(t.Context(), p, c)
}

// TestDyingServerChangesNothing: one of two servers dies and returns without its adapters. The run ends with the
// weights of a run on one healthy server, and each step trains on the same number of samples.
func TestDyingServerChangesNothing(t *testing.T) {
	for _, ahead := range []bool{false, true} {
		t.Run(fmt.Sprintf("ahead=%v", ahead), func(t *testing.T) {
			train := func(servers int, quirk func(int, *remotetest.Server), told func(string)) (weights [][]float32) {
				r := newTokenRun(newGRPO)
				r.Steps, r.evaluated, r.every, r.servers, r.quirk, r.told = 5, 4, 2, servers, quirk, told
				r.Async = ahead
				r.Options.Temperature = 0.9
				p := tinyToken(t, 4)
				var rows recorded
				if _, err := r.on(t.Context(), t, p, rows.hooks()); err != nil {
					t.Fatal(err)
				}
				weighed := 0
				for _, row := range rows.rows {
					if _, ok := row["sampling/importance_sampling_ratio/mean"]; ok {
						weighed++
					}
				}
				if weighed < r.Steps {
					t.Errorf("%d of %d rows have importance weights", weighed, r.Steps)
				}
				for _, v := range p.Params() {
					values, err := v.Read()
					if err != nil {
						t.Fatal(err)
					}
					weights = append(weights, values)
				}
				return weights
			}
			want := train(1, nil, nil)
			var said []string
			got := train(2, func(i int, s *remotetest.Server) {
				if i == 1 {
					return
				}
				var asked atomic.Int64
				s.Before = func(_ http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != "/v1/completions" {
						return false
					}
					if n := asked.Add(1); n > 12 && n < 16 { // in the middle of a step
						s.Forget()
						panic(http.ErrAbortHandler)
					}
					return false
				}
			}, func(line string) { said = append(said, line) })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("weights (-one server +one of two died)\n%s", diff)
			}
			if !strings.Contains(strings.Join(said, "\n"), "sending its prompts to 1 others") {
				t.Errorf("log %q", said)
			}
		})
	}
}
