package sandbox

import (
	"errors"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
)

// forks starts children that compute for .4 seconds each, and ends after them. How says what else the parent does.
func forks(how string) string {
	return `
import os, signal, time
r, w = os.pipe()
wait = lambda: None
def end():
    os.close(w)
    os.read(r, 1)  # until the last child has ended
` + how + `
for i in range(4):
    if os.fork() == 0:
        while time.process_time() < .4: pass
        os._exit(0)
    wait()
end()
`
}

// TestProcessorTimeOfAll: children count, whether they are waited for, left behind or ignored.
func TestProcessorTimeOfAll(t *testing.T) {
	for _, m := range working() {
		if m.alone() {
			continue
		}
		s := newSandbox(m)
		t.Cleanup(func() { _ = s.Close() })
		python, err := s.Find(t.Context(), Python, "")
		if absent := (*Absent)(nil); errors.As(err, &absent) {
			t.Skip(err)
		}
		for name, program := range map[string]string{
			"waited for": forks("wait = os.wait"),
			"left":       forks(""),
			"orphans":    forks("if os.fork(): end(); os._exit(0)"),
			"ignored":    forks("try: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nexcept OSError: pass"),
		} {
			l := quick()
			l.Wall = time.Minute
			if o, err := s.RunText(t.Context(), l, python, program, nil); err != nil || o.Status != OK || o.CPU < 1.5 {
				t.Errorf("%s, %s: %+v, %v; want 1.6 s of processor time", m, name, o, err)
			}
			l.CPU = time.Second
			o, err := s.RunText(t.Context(), l, python, program, nil)
			expect.True(t, err == nil && o.Status == Timeout, "%s, %s, limit of 1 s: %+v, %v; want %s", m, name, o, err, Timeout)
		}
	}
}
