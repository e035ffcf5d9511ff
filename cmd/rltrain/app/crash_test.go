//go:build crash

package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"rltrain/rl"
	"rltrain/rl/run"
)

// crashArgs train both stages on a few rows. The rates are high enough that the best episode is not the
// first, and the reward carries counts from row to row.
var crashArgs = []string{
	"--max-samples", "112", "--logging-steps", "2", "--output-dir", "models",
	"--learning-rate", "3e-3", "--head-learning-rate", "3e-3",
	"--reward", "accuracy,f1=0.1", "--rl-episodes", "2", "--update-epochs", "2", "--rl-learning-rate", "1e-3", "--target-kl", "0.3",
}

const (
	supervisedDir = "models/intent_classifier_supervised"
	rlDir         = "models/intent_classifier_rl"
	metricsFile   = "logs/metrics.jsonl"
	logFile       = "logs/training_log.txt"
)

// blow is a signal that a run gets as soon as a file of one of its stages has so many lines.
type blow struct {
	stage, file string
	lines       int
	signal      syscall.Signal
}

func (b blow) String() string {
	return fmt.Sprintf("%s at line %d of %s", b.signal, b.lines, filepath.Join(b.stage, b.file))
}

// TestCrash interrupts training runs in their own processes and goes on with --resume. What they leave must
// equal what a run leaves that was never stopped, byte by byte.
func TestCrash(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "rltrain")
	if out, err := exec.Command("go", "build", "-o", binary, "..").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, threads := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d threads", threads), func(t *testing.T) {
			program := program{binary, append([]string{"--threads", fmt.Sprint(threads)}, crashArgs...)}
			whole := t.TempDir()
			program.finish(t, whole, "--save-steps", "3")
			last := countLines(t, filepath.Join(whole, supervisedDir, metricsFile))
			lastRL := countLines(t, filepath.Join(whole, rlDir, metricsFile))
			if last < 11 || lastRL < 10 {
				t.Fatalf("the uninterrupted run has %d and %d lines of metrics, too few to be interrupted between", last, lastRL)
			}

			tests := []struct {
				name      string
				saveSteps int
				blows     []blow
			}{
				{"killed twice in each stage", 3, []blow{
					{supervisedDir, metricsFile, 3, syscall.SIGKILL},
					{supervisedDir, metricsFile, 8, syscall.SIGKILL},
					{rlDir, metricsFile, 4, syscall.SIGKILL},
					{rlDir, metricsFile, 9, syscall.SIGKILL},
				}},
				// With 1000 the first checkpoint comes at the end of the supervised stage, or of an episode.
				{"killed before the first checkpoint", 1000, []blow{
					{supervisedDir, logFile, 1, syscall.SIGKILL},
					{supervisedDir, metricsFile, 1, syscall.SIGKILL},
					{rlDir, metricsFile, 1, syscall.SIGKILL},
					{rlDir, metricsFile, 2, syscall.SIGKILL},
				}},
				{"killed at the end of each stage", 3, []blow{
					{supervisedDir, metricsFile, last, syscall.SIGKILL},
					{rlDir, metricsFile, lastRL, syscall.SIGKILL},
				}},
				{"asked to stop", 3, []blow{
					{supervisedDir, metricsFile, 3, syscall.SIGTERM},
					{supervisedDir, metricsFile, last, syscall.SIGTERM},
					{rlDir, metricsFile, 1, syscall.SIGINT}, // while the first rollout is collected
					{rlDir, metricsFile, 4, syscall.SIGTERM},
					{rlDir, metricsFile, lastRL, syscall.SIGINT},
				}},
			}
			if threads > 1 {
				tests = tests[:1] // when a run is hit and how many threads it has do not meet in the code
			}
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) {
					dir := t.TempDir()
					save := []string{"--save-steps", fmt.Sprint(test.saveSteps)}
					for i, b := range test.blows {
						args := save
						if i > 0 {
							args = append(args, "--resume")
						}
						program.interrupt(t, dir, b, args...)
					}
					program.finish(t, dir, append(save, "--resume")...)
					for _, stage := range []string{supervisedDir, rlDir} {
						compareStages(t, filepath.Join(whole, stage), filepath.Join(dir, stage))
					}
				})
			}
		})
	}
}

// program is the binary under test and the arguments that all of its runs share.
type program struct {
	binary string
	args   []string
}

// start runs the program in dir. wait gives its exit code, 128 and the signal's number where that ended it,
// and what it wrote.
func (p program) start(t *testing.T, dir string, args ...string) (process *os.Process, wait func() (code int, output string)) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.binary, append(args, p.args...)...)
	var output bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd.Process, func() (int, string) {
		err := cmd.Wait()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		code := cmd.ProcessState.ExitCode()
		if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
			code = 128 + int(status.Signal())
		}
		return code, output.String()
	}
}

// finish runs the program to its end.
func (p program) finish(t *testing.T, dir string, args ...string) {
	t.Helper()
	_, wait := p.start(t, dir, args...)
	if code, output := wait(); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, output)
	}
}

// interrupt runs the program until b hits it, and checks how it goes down.
func (p program) interrupt(t *testing.T, dir string, b blow, args ...string) {
	t.Helper()
	process, wait := p.start(t, dir, args...)
	ended := make(chan struct{})
	var code int
	var output string
	go func() {
		defer close(ended)
		code, output = wait()
	}()
	path := filepath.Join(dir, b.stage, b.file)
	deadline, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for countLines(t, path) < b.lines {
		select {
		case <-ended:
			t.Fatalf("%s: the run ended before it, with exit code %d:\n%s", b, code, output)
		case <-deadline.Done():
			_ = process.Kill()
			<-ended
			t.Fatalf("%s: not reached in time:\n%s", b, output)
		case <-poll.C:
		}
	}
	if err := process.Signal(b.signal); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	<-ended
	if want := 128 + int(b.signal); code != want {
		t.Errorf("%s: exit code %d, want %d:\n%s", b, code, want, output)
	}
	want := run.StatusRunning // a killed process cannot say more
	if b.signal != syscall.SIGKILL {
		want = run.StatusStopped
		if lines := strings.Split(strings.TrimSpace(output), "\n"); !strings.Contains(lines[len(lines)-1], "--resume") {
			t.Errorf("%s: the last line does not say how to resume:\n%s", b, output)
		}
	}
	if record, err := run.ReadRun(filepath.Join(dir, b.stage)); err != nil {
		t.Error(err)
	} else if record.Status != want {
		t.Errorf("%s: run.json says %q, want %q", b, record.Status, want)
	}
}

// countLines is the number of whole lines in a file; 0 where there is none.
func countLines(t *testing.T, path string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return bytes.Count(data, []byte("\n"))
}

// compareStages compares what two runs of a stage have left, the clock's part aside.
func compareStages(t *testing.T, whole, resumed string) {
	t.Helper()
	var files []string
	err := filepath.WalkDir(whole, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(whole, path)
		files = append(files, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	newest, _, _, err := rl.LatestCheckpoint(whole)
	if err != nil {
		t.Fatal(err)
	}
	newest, err = filepath.Rel(whole, newest)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, name := range files {
		if strings.HasPrefix(name, "checkpoints/") && filepath.Dir(name) != newest {
			continue // which older checkpoints there are depends on --save-steps
		}
		switch filepath.Base(name) {
		case "run.json", "config.yaml", "README.md": // name the command
			continue
		case "offsets.json", "manifest.json": // lengths and sums of files that hold times
			continue
		}
		want, got := withoutTimes(t, filepath.Join(whole, name)), withoutTimes(t, filepath.Join(resumed, name))
		if bytes.Equal(want, got) {
			compared++
			continue
		}
		if strings.HasSuffix(name, ".jsonl") || strings.HasSuffix(name, ".json") || strings.HasSuffix(name, ".txt") {
			t.Errorf("%s differs (-uninterrupted +resumed):\n%s", filepath.Join(resumed, name), cmp.Diff(string(want), string(got)))
		} else {
			t.Errorf("%s differs", filepath.Join(resumed, name))
		}
	}
	for _, name := range []string{
		metricsFile, logFile, "logs/eval_results.json", "adapter_model.safetensors", "head.safetensors", "value_head.safetensors",
		newest + "/optimizer.safetensors", newest + "/best.safetensors", newest + "/state.json",
	} {
		if _, err := os.Stat(filepath.Join(whole, name)); err != nil {
			t.Errorf("not compared: %v", err)
		}
	}
	t.Logf("%s: %d files are equal", filepath.Base(whole), compared)
}

// withoutTimes is a file's content, JSON and JSON Lines without what was measured by the clock.
func withoutTimes(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
		return nil
	}
	if base := filepath.Base(path); base != filepath.Base(metricsFile) && base != "eval_results.json" {
		return data
	}
	var out []byte
	// Values stay as they were written: the digits count.
	for decoder := json.NewDecoder(bytes.NewReader(data)); decoder.More(); {
		var row map[string]json.RawMessage
		if err := decoder.Decode(&row); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for key := range row {
			if strings.HasPrefix(key, "time/") || strings.HasPrefix(key, "latency_") {
				delete(row, key)
			}
		}
		line, err := json.Marshal(row)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(append(out, line...), '\n')
	}
	return out
}
