package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/terminaltest"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// TestResume resumes a finished run for more steps, from its newest checkpoint and from an earlier one, and refuses
// changes that a resumed run cannot make.
func TestResume(t *testing.T) {
	f := started(t)
	options := append(drop(exercise(), "--num-steps", "--max-new-tokens", "--samples-per-prompt"), "--save-steps", "1", "--save-total-limit", "0",
		"--reward", "expr:'length'", "--max-new-tokens", "12", "--samples-per-prompt", "4")
	dir := f.expand("TMP/out/sum_digits_rl")
	steps := func() (n int) {
		for _, row := range must.Get(report.ReadMetrics(filepath.Join(dir, "logs", "metrics.jsonl")))(t) {
			if row["loss"] != nil {
				n++
			}
		}
		return n
	}
	train := func(more ...string) string {
		t.Helper()
		return f.says(t, "", append(options[:len(options):len(options)], more...)...)
	}
	train("--num-steps", "2", "--logging-steps", "1")
	train("--num-steps", "2", "--resume", "--logging-steps", "2") // nothing to do; logging may change
	expect.Same(t, 2, steps(), "steps")
	train("--num-steps", "3", "--logging-steps", "1", "--resume-from-checkpoint", "auto")
	expect.Same(t, 3, steps(), "steps")
	weights := must.Read(t, filepath.Join(dir, "model.safetensors"))
	checkpoint := filepath.Join(dir, "checkpoints", "checkpoint-1")
	train("--num-steps", "3", "--logging-steps", "1", "--resume-from-checkpoint", checkpoint)
	again := must.Read(t, filepath.Join(dir, "model.safetensors"))
	expect.True(t, steps() == 3 && again == weights, "%d steps from an earlier checkpoint, the same weights: %v", steps(), again == weights)
	for more, want := range map[string]string{
		"--num-steps 3 --temperature 2 --resume":                      "--temperature: the run in " + dir + " began with 1, not 2",
		"--num-steps 2 --resume":                                      "--num-steps: the run in " + dir + " is at 3 steps, past 2",
		"--num-steps 3 --resume-from-checkpoint TMP/start":            "--resume-from-checkpoint: TMP/start is not a checkpoint of this run",
		"--num-steps 3 --resume-from-checkpoint " + checkpoint + "00": "checkpoint-100: no such folder",
		"--num-steps 3 --resume --early-stopping-patience 2":          "--early-stopping-patience: the run in " + dir + " began with 0, not 2",
		"--num-steps 3 --rl-metric-for-best acc":                      `"acc" is not a figure of the evaluations; choose `,
	} {
		want = f.expand(want)
		f.refused(t, want, append(options[:len(options):len(options)], strings.Fields(more)...)...)
	}
	// Settings of an older version, and a folder that holds no run.
	f.edit(t, dir+"/run.json", "\\nnum_steps: 3", "\\nnumber_of_steps: 3")
	f.refused(t, "another version … number_of_steps", append(options, "--num-steps", "3", "--resume")...)
	must.Do(t, os.RemoveAll(dir))
	f.write(t, dir+"/thesis.tex", "mine")
	for resume, want := range map[string]string{"--resume": "--resume: no run of these settings is in", "--resume=auto": "is not a run of rltrain and contains thesis.tex"} {
		f.refused(t, want, append(options, "--num-steps", "3", resume)...)
	}
}

// TestResumeKnowsInputs: a run goes on with the files that it began with, and with its settings even if config.yaml is lost.
func TestResumeKnowsInputs(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.rows(t, "TMP/rows.jsonl", 40, func(i int) string {
		return fmt.Sprintf(`{"prompt": "Name a letter, question %d: ", "answer": "a"}`, i)
	})
	f.write(t, "TMP/judge.sh", `exec sed -u 's/.*"id":\([0-9]*\).*/{"id":\1,"reward":1}/'`+"\n")
	must.Do(t, policy.TinyModel(f.expand("TMP/model"), 1, 32, 1))
	dir := f.expand("TMP/out/prompts_rl")
	train := func(more string) []string {
		return append(strings.Fields("--task prompts --dataset TMP/rows.jsonl --model TMP/model --max-new-tokens 4 --prompts-per-step 2 --samples-per-prompt 2 --eval-samples 4 "+
			"--fresh-samples 0 --threads 1 --output-dir TMP/out --allow-no-signal "+more), "--reward", "cmd:sh 'TMP/judge.sh'")
	}
	f.says(t, "", train("--num-steps 1 --resume=auto")...)
	record := must.Get(run.ReadRun(dir))(t)
	for setting, name := range map[string]string{"dataset": "rows.jsonl", "reward": "judge.sh", "model": "model"} {
		expect.True(t, record.Inputs[setting][f.expand("TMP/"+name)] != "", "run.json has no sum of %s %s: %v", setting, name, record.Inputs)
	}
	for _, test := range []struct{ setting, file string }{{"dataset", "rows.jsonl"}, {"reward", "judge.sh"}, {"model", "model/config.json"}} {
		path := f.expand("TMP/" + test.file)
		was := must.Read(t, path)
		f.write(t, path, strings.Replace(was+"\n", "question 7", "question 70", 1))
		for _, steps := range []string{"1", "2"} { // finished, and to be extended
			f.refused(t, "--"+test.setting+": … --allow-changed "+test.setting, train("--resume --num-steps "+steps)...)
		}
		f.write(t, path, was)
	}
	f.edit(t, "TMP/rows.jsonl", "question 39", "question 40")
	f.refused(t, "--allow-changed dataset", train("--num-steps 2 --resume --allow-changed reward")...) // another change
	f.says(t, "", train("--num-steps 2 --resume --allow-changed dataset")...)
	inexact := func(setting string) {
		t.Helper()
		inexact := must.Get(run.ReadRun(dir))(t).Inexact
		expect.True(t, slices.ContainsFunc(inexact, func(why string) bool { return strings.HasPrefix(why, setting+": ") }), "run.json says %q", inexact)
	}
	inexact("dataset")
	f.edit(t, "TMP/judge.sh", "exec", "# changed\nexec")
	f.says(t, "", train("--num-steps 2 --resume --allow-changed reward")...) // of a finished run
	inexact("reward")
	f.remove(t, dir+"/config.yaml")
	for more, want := range map[string]string{"--seed 7": "--seed: the run in " + dir + " began with 42, not 7", "--allow-changed seed": "seed names no file here"} {
		f.refused(t, want, train("--num-steps 3 --resume "+more)...)
	}
	all := must.JSON[map[string]any](t, dir+"/run.json")
	delete(all, "config") // as earlier versions wrote it
	f.write(t, dir+"/run.json", string(must.Get(json.Marshal(all))(t)))
	f.refused(t, "its settings are unknown", train("--num-steps 3 --resume")...)
}

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
