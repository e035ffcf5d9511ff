//go:build crash

package app

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/run"
)

// TestCrash kills runs of every algorithm at 20 moments each, five per run, and resumes them. One kill in five hits
// while a checkpoint is written, the others at random. The results must be byte-identical to an uninterrupted run.
func TestCrash(t *testing.T) {
	const runs, each = 4, 5
	l := newLab(t)
	var sum kills
	for _, name := range slices.Sorted(maps.Keys(recipes)) {
		t.Run(name, func(t *testing.T) {
			r, k := recipes[name], kills{}
			whole := filepath.Join(t.TempDir(), "out")
			took := l.finish(t, r, whole)
			again := 0
			for n := range runs {
				parts := filepath.Join(t.TempDir(), "out")
				for i, tries := 0, 0; i < each && tries < 8*each; tries++ {
					// A resumed run starts at its checkpoint, so later attempts have less time left.
					after := time.Duration(rand.Float64() * float64(took) * (1 - 0.12*float64(i)))
					now := func() bool { return false }
					if i == n {
						after, now = time.Minute, func() bool { return l.writing(r, parts) }
					}
					if l.kill(t, r, parts, after, now, &k) {
						i++
						continue
					}
					compareRuns(t, r, whole, parts) // it finished before the kill: compare it and start again
					again++
					took = took * 9 / 10 // the machine was busier during the timed run
					must.Do(t, os.RemoveAll(parts))
				}
				l.finish(t, r, parts, "--resume=auto")
				compareRuns(t, r, whole, parts)
			}
			t.Logf("%s: %d kills, %d before the first checkpoint, %d during one, %d after the last step; %d runs compared", name, k.all, k.early, k.writing, k.late, runs+again)
			expect.True(t, k.all >= runs*each, "%d kills, want %d", k.all, runs*each)
			sum.all, sum.early, sum.writing, sum.late = sum.all+k.all, sum.early+k.early, sum.writing+k.writing, sum.late+k.late
		})
	}
	t.Logf("total: %d kills, %d before the first checkpoint, %d during one, %d after the last step", sum.all, sum.early, sum.writing, sum.late)
}

// TestCrashSignals interrupts runs with signals and resumes them.
func TestCrashSignals(t *testing.T) {
	l := newLab(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1} {
		r := recipes["grpo"]
		whole, parts := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
		took := l.finish(t, r, whole)
		for _, share := range []float64{0.5, 0.7} {
			process, wait := l.start(t, r, parts, "--resume=auto")
			time.AfterFunc(time.Duration(share*float64(took)), func() { _ = process.Signal(signal) })
			code, output := wait()
			if code == 0 {
				continue
			}
			lines := strings.Split(strings.TrimSpace(output), "\n")
			expect.True(t, code == 128+int(signal) && strings.Contains(lines[len(lines)-1], "--resume auto"), "%s: exit code %d:\n%s", signal, code, output)
		}
		l.finish(t, r, parts, "--resume=auto")
		compareRuns(t, r, whole, parts)
	}
}

// TestCrashDisk fills the disk, or makes it read-only, while a run saves. The error names the cause, the last good
// checkpoint survives, and the run resumes from it.
func TestCrashDisk(t *testing.T) {
	l := newLab(t)
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=64m"); err != nil {
		t.Skipf("cannot mount a disk: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	for _, name := range []string{"sft", "grpo", "ppo of labels"} {
		r := recipes[name]
		whole := filepath.Join(t.TempDir(), "out")
		l.finish(t, r, whole)
		for _, test := range []struct {
			name  string
			spoil func() error
			mend  func() error
			want  string
		}{
			{"full", func() error { return fill(filepath.Join(disk, "ballast")) }, func() error { return os.Remove(filepath.Join(disk, "ballast")) }, "no space left on device"},
			{"read-only", func() error { return readOnly(filepath.Join(disk, "out", r.stage, "checkpoints")) },
				func() error { return syscall.Unmount(filepath.Join(disk, "out", r.stage, "checkpoints"), 0) }, "read-only file system"},
		} {
			out := filepath.Join(disk, "out")
			must.Do(t, os.RemoveAll(out))
			_, wait := l.start(t, r, out)
			deadline := time.Now().Add(time.Minute)
			for checkpoint := ""; checkpoint == "" && time.Now().Before(deadline); { // spoil the disk after the first checkpoint
				checkpoint, _, _, _ = run.LatestCheckpoint(filepath.Join(out, r.stage))
			}
			err := test.spoil()
			code, output := wait()
			mendErr := test.mend()
			expect.Require(t, err == nil && mendErr == nil, "%v %v", err, mendErr)
			expect.True(t, code == 1 && strings.Contains(output, test.want), "%s, %s: exit code %d, and the error does not say %q:\n%s", name, test.name, code, test.want, output)
			_, step, skipped, err := run.LatestCheckpoint(filepath.Join(out, r.stage))
			expect.True(t, err == nil && step != 0 && skipped == nil, "%s, %s: the newest checkpoint is of step %d, skipped %q, %v", name, test.name, step, skipped, err)
			l.finish(t, r, out, "--resume=auto")
			compareRuns(t, r, whole, out)
		}
	}
}

// readOnly remounts a folder read-only, even if files elsewhere on its disk are open.
func readOnly(dir string) error {
	if err := syscall.Mount(dir, dir, "", syscall.MS_BIND, ""); err != nil {
		return err
	}
	return syscall.Mount("", dir, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, "")
}

// fill fills a disk.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	for size := 1 << 20; size > 0; size /= 2 {
		for {
			if _, err := f.Write(make([]byte, size)); err != nil {
				break
			}
		}
	}
	return f.Close()
}

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
	<-ended
	expect.Require(t, code == 0, "exit code %d:\n%s", code, output)
	t.Logf("after 2,000 steps %+v, after 9,000 %+v", early, late)
	expect.True(t, late.kilobytes <= early.kilobytes+8<<10 && late.threads <= early.threads+2 && late.descriptors <= early.descriptors, "after 2,000 steps the process held %+v, after 9,000 %+v", early, late)
}
