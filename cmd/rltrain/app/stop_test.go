package app

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/terminaltest"
	"github.com/rltrain/rltrain/rl/run"
)

// TestTimeIsUp: --max-time ends a run after a step with exit code 124, saved; the resumed run equals an uninterrupted one.
func TestTimeIsUp(t *testing.T) {
	l := newLab(t)
	r := recipes["grpo"]
	whole, parts := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
	l.finish(t, r, whole)
	for range 2 { // each process takes one step
		_, wait := l.start(t, r, parts, "--resume=auto", "--max-time", "1ms")
		code, output := wait()
		expect.Require(t, code == 124 && strings.Contains(output, "--resume"), "exit code %d, want 124 and a word about --resume:\n%s", code, output)
	}
	l.finish(t, r, parts, "--resume=auto")
	compareRuns(t, r, whole, parts)
}

// TestKeptWeights: --keep chooses between the best weights and the last ones. They differ, since the validation rows
// contradict the training rows.
func TestKeptWeights(t *testing.T) {
	l := newLab(t)
	r := recipe{"chat_supervised", `--task chat --model tiny --tiny-layers 1 --tiny-hidden 32 --dataset TMP/split --epochs 8 --batch-size 4 --learning-rate 0.01 --tuning full`, 0}
	r.args = strings.ReplaceAll(r.args, "TMP", l.tmp)
	must.Do(t, os.Mkdir(l.expand("TMP/split"), 0o755))
	l.write(t, "TMP/split/train.jsonl", strings.Repeat(`{"prompt":"ab","completion":" ba"}`+"\n", 16))
	l.write(t, "TMP/split/validation.jsonl", strings.Repeat(`{"prompt":"ab","completion":" 7+7"}`+"\n", 4))
	weights := func(keep, name string) []byte {
		t.Helper()
		out := filepath.Join(l.tmp, keep)
		if _, err := os.Stat(out); err != nil {
			l.finish(t, r, out, "--keep", keep)
		}
		return must.Get(os.ReadFile(filepath.Join(r.in(out), name, "model.safetensors")))(t)
	}
	best, last := weights("best", ""), weights("last", "")
	expect.Require(t, !bytes.Equal(best, last), "the best weights are the last: the test shows nothing")
	expect.True(t, bytes.Equal(weights("both", ""), best) && bytes.Equal(weights("both", "last"), last),
		"--keep both: the folder has not the best weights, or its subfolder last not the last")
	expect.Fails(os.Stat(filepath.Join(r.in(filepath.Join(l.tmp, "best")), "last")))(t, "--keep best has a subfolder last")
}

// TestSecondInterrupt: the first Ctrl-C waits for the update, the second ends the process at once; the resumed run equals an
// uninterrupted one.
func TestSecondInterrupt(t *testing.T) {
	l := newLab(t)
	r := recipes["grpo"]
	r.args = strings.NewReplacer("--num-steps 8", "--num-steps 3", "--update-epochs 2", "--update-epochs 60").Replace(r.args)
	r.steps = 3
	whole, parts := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
	l.finish(t, r, whole, "--save-steps", "1")
	for tries := 0; ; tries++ {
		expect.Require(t, tries != 5, "no update of the second step is shown")
		must.Do(t, os.RemoveAll(parts))
		if l.interruptTwice(t, r, parts) {
			break
		}
	}
	_, step, _, err := run.LatestCheckpoint(r.in(parts))
	expect.True(t, err == nil && step != r.steps, "the newest checkpoint is of step %d, %v", step, err)
	l.finish(t, r, parts, "--resume", "--save-steps", "1")
	compareRuns(t, r, whole, parts)
}

// interruptTwice starts a run on a terminal and interrupts it while the bar says that its second step's update is under way.
// The terminal then takes no more lines, so the run cannot end before the second signal. It reports whether the bar said
// so.
func (l lab) interruptTwice(t *testing.T, r recipe, out string) bool {
	t.Helper()
	user, program := terminaltest.Open(t)
	cmd := l.command(t, r, out, "--save-steps", "1")
	cmd.Stdout, cmd.Stderr = program, program
	must.Do(t, cmd.Start())
	ended := make(chan struct{})
	code := 0
	go func() {
		defer close(ended)
		code = exitCode(t, cmd)
		program.Close() // the last: reading ends
	}()
	updating, screen, part := regexp.MustCompile(`1/3  update`), "", make([]byte, 4096)
	for n, err := 0, error(nil); !updating.MatchString(screen); screen += string(part[:n]) {
		if n, err = user.Read(part); err != nil {
			<-ended
			expect.Require(t, code == 0, "exit code %d:\n%s", code, screen)
			return false
		}
	}
	must.Do(t, unix.IoctlSetInt(int(program.Fd()), unix.TCXONC, unix.TCOOFF))
	again := time.NewTicker(20 * time.Millisecond) // the first signals may be taken for one
	defer again.Stop()
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-again.C:
			_ = cmd.Process.Signal(syscall.SIGINT)
		}
	}
	expect.Require(t, cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled(), "exit code %d:\n%s", code, screen)
	return true
}
