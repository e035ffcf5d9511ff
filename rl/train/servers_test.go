package train

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/cmd/rltrain/serve/servetest"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/remote"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
)

// writer is closed by its test.
type writer interface {
	rollout.Generator
	Close()
}

func (r tokenRun) warn(format string, args ...any) {
	if r.told != nil {
		r.told(fmt.Sprintf(format, args...))
	}
}

// serve starts servers of the policy's base model.
func (r tokenRun) serve(t testing.TB, p *policy.CausalLM) (writer, error) {
	t.Helper()
	c := remote.Config{
		Options: remote.Options{Dir: filepath.Join(t.TempDir(), "adapters"), Tolerance: 0.01, Timeout: 60}, Temperature: r.Options.Temperature,
		Retry: 5 * time.Millisecond, Warn: r.warn,
	}
	for i := range r.servers {
		s := servetest.Start(t, p.BaseModel, c.Dir)
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
			train := func(servers int, quirk func(int, *servetest.Front), told func(string)) (weights [][]float32) {
				r := newTokenRun(newGRPO)
				r.Steps, r.evaluated, r.every, r.servers, r.quirk, r.told = 5, 4, 2, servers, quirk, told
				r.Async = ahead
				r.Options.Temperature = 0.9
				p := tinyToken(t, 4)
				var rows recorded
				must.Get(r.on(t.Context(), t, p, rows.hooks()))(t)
				weighed := 0
				for _, row := range rows.rows {
					if _, ok := row["sampling/importance_sampling_ratio/mean"]; ok {
						weighed++
					}
				}
				expect.True(t, weighed >= r.Steps, "%d of %d rows have importance weights", weighed, r.Steps)
				return weightsOf(t, p)
			}
			want := train(1, nil, nil)
			var said []string
			got := train(2, func(i int, s *servetest.Front) {
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
			expect.Equal(t, want, got, "weights")
			expect.True(t, strings.Contains(strings.Join(said, "\n"), "sending its prompts to 1 others"), "log %q", said)
		})
	}
}

// teacherModel makes the model of a teacher, of the tokens of tinyToken.
func teacherModel(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir() + "/teacher"
	must.Do(t, policy.TinyModel(dir, 1, 64, 11))
	return dir
}

// servedTeacher starts the server of a teacher.
func (r tokenRun) servedTeacher(t testing.TB, p *policy.CausalLM) func(context.Context, []*rl.Trajectory) error {
	t.Helper()
	needs := r.algorithm().Needs()
	s := servetest.Start(t, teacherModel(t), t.TempDir())
	if r.quirk != nil {
		r.quirk(0, s)
	}
	needs.Server.URL = s.URL
	teacher := must.Get(remote.NewTeacher(t.Context(), p, remote.TeacherConfig{
		TeacherServer: needs.Server, Model: needs.Teacher, Pause: time.Millisecond, Warn: r.warn,
	}))(t)
	t.Cleanup(teacher.Close)
	return teacher.Rate
}

// TestServedTeacherEqualsLocal: a teacher on a server, which fails now and then, teaches what it teaches in this process. Episodes with
// several segments count too.
func TestServedTeacherEqualsLocal(t *testing.T) {
	train := func(change func(r *tokenRun)) (found []float64, weights run.Snapshot) {
		r := newTokenRun(newServedDistill)
		r.taught, r.Steps, r.Optim, r.task = true, 3, "", spelling
		change(&r)
		var seen recorded
		p := trainedToken(t, 4)
		must.Get(r.on(t.Context(), t, p, seen.hooks()))(t)
		return seen.figure("divergence"), weightsOf(t, p)
	}
	var fails atomic.Int32
	var told []string
	served, weights := train(func(r *tokenRun) {
		r.told = func(line string) { told = append(told, line) }
		r.quirk = func(_ int, s *servetest.Front) {
			s.Before = func(http.ResponseWriter, *http.Request) bool {
				if n := fails.Add(1); n > 20 && n%7 == 0 {
					panic(http.ErrAbortHandler)
				}
				return false
			}
		}
	})
	local, others := train(func(r *tokenRun) {
		r.algorithm = func() algo.Algorithm { return &algo.Distill{Teacher: "given", Divergence: "sampled"} }
		r.taught, r.Teacher = false, must.Open(policy.NewCausalLM(policy.Config{Dir: teacherModel(t)}))(t)
	})
	expect.Equal(t, local, served, cmpopts.EquateApprox(0, 1e-5))
	expect.Equal(t, others, weights, cmpopts.EquateApprox(0, 1e-5))
	expect.True(t, len(told) > 0 && len(told) <= 3 && strings.Contains(told[0], "check the teacher"), "want a warning for each step that waits: %q", told)
}
