//go:build crash

package app

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/must"
)

// held is the resources a process uses.
type held struct{ kilobytes, threads, descriptors int }

// note keeps the minimum of the resources that Linux reports for a process: files open only while a checkpoint is
// written do not count.
func (least *held) note(t *testing.T, pid int) {
	t.Helper()
	var h held
	status := must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &h.kilobytes)
		_, _ = fmt.Sscanf(line, "Threads: %d", &h.threads)
	}
	files := must.Get(os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)))(t)
	h.descriptors = len(files)
	if *least == (held{}) {
		*least = h
	}
	least.kilobytes, least.threads, least.descriptors = min(least.kilobytes, h.kilobytes), min(least.threads, h.threads), min(least.descriptors, h.descriptors)
}

// TestCrashResources trains for 10,000 steps: resource use stays as it was after 2,000, except for the record of sampled
// problems, which prevents repeats.
func TestCrashResources(t *testing.T) {
	l := newLab(t)
	out := filepath.Join(t.TempDir(), "out")
	r := recipes["grpo"]
	r.args = strings.Replace(r.args, "--num-steps 8 --eval-every 3", "--num-steps 10000 --eval-every 1000", 1)
	process, wait := l.start(t, r, out, "--save-steps", "500")
	ended := make(chan struct{})
	code, output := 0, ""
	go func() {
		defer close(ended)
		code, output = wait()
	}()
	var early, late held
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for steps := 0; steps < 9400; {
		select {
		case <-ended:
			t.Fatalf("ended after %d steps with exit code %d:\n%s", steps, code, output)
		case <-tick.C:
		}
		rows, _ := os.ReadFile(filepath.Join(out, r.stage, "logs", "training_log.txt")) // the file does not exist at first
		switch steps = bytes.Count(rows, []byte("\n")); {
		case steps >= 2000 && steps < 2400:
			early.note(t, process.Pid)
		case steps >= 9000:
			late.note(t, process.Pid)
		}
	}
	if <-ended; code != 0 {
		t.Fatalf("exit code %d:\n%s", code, output)
	}
	t.Logf("after 2,000 steps %+v, after 9,000 %+v", early, late)
	if late.kilobytes > early.kilobytes+8<<10 || late.threads > early.threads+2 || late.descriptors > early.descriptors {
		t.Errorf("after 2,000 steps the process held %+v, after 9,000 %+v", early, late)
	}
}
