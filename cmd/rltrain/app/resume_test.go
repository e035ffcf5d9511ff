package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
)

// TestResume resumes a finished run for more steps, from its newest checkpoint and from an earlier one, and refuses
// changes that a resumed run cannot make.
func TestResume(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	if err := policy.TinyModel(f.expand("TMP/start"), 1, 32, 1); err != nil {
		t.Fatal(err)
	}
	options := append(drop(exercise(), "--tiny-layers", "--tiny-hidden", "--num-steps", "--max-new-tokens", "--samples-per-prompt"), "--save-steps", "1", "--save-total-limit", "0",
		"--reward", "expr:'length'", "--max-new-tokens", "12", "--samples-per-prompt", "4")
	dir := f.expand("TMP/out/sum_digits_rl")
	steps := func() (n int) {
		rows, err := report.ReadMetrics(filepath.Join(dir, "logs", "metrics.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range rows {
			if row["loss"] != nil {
				n++
			}
		}
		return n
	}
	run := func(more ...string) string {
		t.Helper()
		code, out, errs := f.rltrain("", append(options[:len(options):len(options)], more...)...)
		if code != 0 {
			t.Fatalf("%v: exit code %d, %s", more, code, errs)
		}
		return out
	}
	run("--num-steps", "2", "--logging-steps", "1")
	run("--num-steps", "2", "--resume", "--logging-steps", "2") // nothing to do; logging may change
	if n := steps(); n != 2 {
		t.Fatalf("%d steps, want 2", n)
	}
	run("--num-steps", "3", "--logging-steps", "1", "--resume-from-checkpoint", "auto")
	if n := steps(); n != 3 {
		t.Errorf("%d steps, want 3", n)
	}
	weights := string(readFile(t, filepath.Join(dir, "model.safetensors")))
	checkpoint := filepath.Join(dir, "checkpoints", "checkpoint-1")
	run("--num-steps", "3", "--logging-steps", "1", "--resume-from-checkpoint", checkpoint)
	if again := string(readFile(t, filepath.Join(dir, "model.safetensors"))); steps() != 3 || again != weights {
		t.Errorf("%d steps from an earlier checkpoint, the same weights: %v", steps(), again == weights)
	}
	for more, want := range map[string]string{
		"--num-steps 3 --temperature 2 --resume":                      "--temperature: the run in " + dir + " began with 1, not 2",
		"--num-steps 2 --resume":                                      "--num-steps: the run in " + dir + " is at 3 steps, past 2",
		"--num-steps 3 --resume-from-checkpoint TMP/start":            "--resume-from-checkpoint: TMP/start is not a checkpoint of this run",
		"--num-steps 3 --resume-from-checkpoint " + checkpoint + "00": "checkpoint-100: no such folder",
		"--num-steps 3 --resume --early-stopping-patience 2":          "--early-stopping-patience: the run in " + dir + " began with 0, not 2",
		"--num-steps 3 --rl-metric-for-best acc":                      `"acc" is not a figure of the evaluations; choose `,
	} {
		want = f.expand(want)
		if code, _, errs := f.rltrain("", append(options[:len(options):len(options)], strings.Fields(more)...)...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %q; want %q", more, code, errs, want)
		}
	}
	// Settings of an older version, and a folder that holds no run.
	f.edit(t, dir+"/config.yaml", "num_steps: 3", "number_of_steps: 3")
	if code, _, errs := f.rltrain("", append(options, "--num-steps", "3", "--resume")...); code == 0 || !strings.Contains(errs, "another version") || !strings.Contains(errs, "number_of_steps") {
		t.Errorf("older settings: exit code %d, %q", code, errs)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f.write(t, dir+"/thesis.tex", "mine")
	if code, _, errs := f.rltrain("", append(options, "--num-steps", "3", "--resume")...); code == 0 || !strings.Contains(errs, "is not a run of rltrain and contains thesis.tex") {
		t.Errorf("another's folder: exit code %d, %q", code, errs)
	}
}
