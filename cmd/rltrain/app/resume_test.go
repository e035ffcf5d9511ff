package app

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// TestResume resumes a finished run for more steps, from its newest checkpoint and from an earlier one, and refuses
// changes that a resumed run cannot make.
func TestResume(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyModel(f.expand("TMP/start"), 1, 32, 1))
	options := append(drop(exercise(), "--tiny-layers", "--tiny-hidden", "--num-steps", "--max-new-tokens", "--samples-per-prompt"), "--save-steps", "1", "--save-total-limit", "0",
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
		code, out, errs := f.rltrain("", append(options[:len(options):len(options)], more...)...)
		expect.Require(t, code == 0, "%v: exit code %d, %s", more, code, errs)
		return out
	}
	train("--num-steps", "2", "--logging-steps", "1")
	train("--num-steps", "2", "--resume", "--logging-steps", "2") // nothing to do; logging may change
	if n := steps(); n != 2 {
		t.Fatalf("%d steps, want 2", n)
	}
	train("--num-steps", "3", "--logging-steps", "1", "--resume-from-checkpoint", "auto")
	if n := steps(); n != 3 {
		t.Errorf("%d steps, want 3", n)
	}
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
	if code, _, errs := f.rltrain("", append(options, "--num-steps", "3", "--resume")...); code == 0 || !strings.Contains(errs, "another version") || !strings.Contains(errs, "number_of_steps") {
		t.Errorf("older settings: exit code %d, %q", code, errs)
	}
	must.Do(t, os.RemoveAll(dir))
	must.Do(t, os.MkdirAll(dir, 0o755))
	f.write(t, dir+"/thesis.tex", "mine")
	for resume, want := range map[string]string{"--resume": "--resume: no run of these settings is in", "--resume=auto": "is not a run of rltrain and contains thesis.tex"} {
		f.refused(t, want, append(options, "--num-steps", "3", resume)...)
	}
}

// TestResumeKnowsInputs: a run goes on with the files that it began with, and with its settings even if config.yaml is lost.
func TestResumeKnowsInputs(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	var rows strings.Builder
	for i := range 40 {
		fmt.Fprintf(&rows, "{\"prompt\": \"Name a letter, question %d: \", \"answer\": \"a\"}\n", i)
	}
	files := map[string]string{
		"rows.jsonl": rows.String(),
		"judge.sh":   `exec sed -u 's/.*"id":\([0-9]*\).*/{"id":\1,"reward":1}/'` + "\n",
	}
	for name, text := range files {
		f.write(t, f.expand("TMP/"+name), text)
	}
	must.Do(t, policy.TinyModel(f.expand("TMP/model"), 1, 32, 1))
	dir := f.expand("TMP/out/prompts_rl")
	train := func(more ...string) (int, string, string) {
		t.Helper()
		return f.rltrain("", append(strings.Fields(f.expand("--task prompts --dataset TMP/rows.jsonl --model TMP/model --max-new-tokens 4 --prompts-per-step 2 --samples-per-prompt 2 --eval-samples 4 "+
			"--fresh-samples 0 --threads 1 --output-dir TMP/out --allow-no-signal")), append([]string{"--reward", f.expand("cmd:sh 'TMP/judge.sh'")}, more...)...)...)
	}
	code, _, errs := train("--num-steps", "1", "--resume=auto")
	expect.Require(t, code == 0, "%v", errs)
	record := must.Get(run.ReadRun(dir))(t)
	for setting, name := range map[string]string{"dataset": "rows.jsonl", "reward": "judge.sh", "model": "model"} {
		expect.True(t, record.Inputs[setting][f.expand("TMP/"+name)] != "", "run.json has no sum of %s %s: %v", setting, name, record.Inputs)
	}
	for _, test := range []struct{ setting, file string }{{"dataset", "rows.jsonl"}, {"reward", "judge.sh"}, {"model", "model/config.json"}} {
		path := f.expand("TMP/" + test.file)
		was := must.Read(t, path)
		f.write(t, path, strings.Replace(was+"\n", "question 7", "question 70", 1))
		for _, steps := range []string{"1", "2"} { // finished, and to be extended
			if code, _, errs := train("--num-steps", steps, "--resume"); code == 0 || !strings.Contains(errs, "--"+test.setting+": ") || !strings.Contains(errs, "--allow-changed "+test.setting) {
				t.Errorf("%s changed, %s steps: exit code %d, %q", test.file, steps, code, errs)
			}
		}
		f.write(t, path, was)
	}
	f.write(t, f.expand("TMP/rows.jsonl"), rows.String()+"{\"prompt\": \"One more: \", \"answer\": \"a\"}\n")
	code, _, errs = train("--num-steps", "2", "--resume", "--allow-changed", "reward")
	expect.True(t, code != 0 && strings.Contains(errs, "--allow-changed dataset"), "another change is allowed: exit code %d, %q", code, errs)
	code, _, errs = train("--num-steps", "2", "--resume", "--allow-changed", "dataset")
	expect.True(t, code == 0, "an allowed change: exit code %d, %q", code, errs)
	inexact := func(setting string) {
		t.Helper()
		inexact := must.Get(run.ReadRun(dir))(t).Inexact
		expect.True(t, slices.ContainsFunc(inexact, func(why string) bool { return strings.HasPrefix(why, setting+": ") }), "run.json says %q", inexact)
	}
	inexact("dataset")
	f.write(t, f.expand("TMP/judge.sh"), files["judge.sh"]+"# changed\n")
	code, _, errs = train("--num-steps", "2", "--resume", "--allow-changed", "reward")
	expect.True(t, code == 0, "an allowed change of a finished run: exit code %d, %q", code, errs)
	inexact("reward")
	must.Do(t, os.Remove(filepath.Join(dir, "config.yaml")))
	for more, want := range map[string]string{"--seed 7": "--seed: the run in " + dir + " began with 42, not 7", "--allow-changed seed": "seed names no file here"} {
		code, _, errs := train(append(strings.Fields(more), "--num-steps", "3", "--resume")...)
		expect.True(t, code != 0 && strings.Contains(errs, want), "%s: exit code %d, %q; want %q", more, code, errs, want)
	}
	var all map[string]any
	must.JSON(t, dir+"/run.json", &all)
	delete(all, "config") // as earlier versions wrote it
	text := must.Get(json.Marshal(all))(t)
	f.write(t, dir+"/run.json", string(text))
	code, _, errs = train("--num-steps", "3", "--resume")
	expect.True(t, code != 0 && strings.Contains(errs, "its settings are unknown"), "no settings: exit code %d, %q", code, errs)
}
