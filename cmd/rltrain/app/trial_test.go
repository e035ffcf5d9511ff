package app

import (
	"errors"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestTrial describes a run of both stages before it starts, and leaves no files.
func TestTrial(t *testing.T) {
	f := started(t)
	t.Setenv("TMPDIR", f.tmp)
	before := f.files(t)
	run := `--task sum_digits --mode supervised_then_rl --tiny-layers 1 --tiny-hidden 32 --warmup-check-every 0 --max-steps 7 --num-steps 9 --prompts-per-step 3
		--samples-per-prompt 3 --minibatches 2 --algorithm grpo --update-epochs 1 --max-new-tokens 6 --output-dir TMP/out --reward expr:'length'`
	for _, command := range []string{"doctor train " + run, "train " + run + " --dry-run"} {
		code, out, errs := inProcess(t, f, strings.Fields(command)...)
		expect.Require(t, code == 0 && errs == "", "%s: exit code %d, %q", command, code, errs)
		expect.Contains(t, out,
			"sum_digits: supervised fine-tuning of all weights\n", "  steps             7\n", "trained on", `"<eos>"  yes`, f.expand("  output            TMP/out/sum_digits_supervised\n"),
			"sum_digits: reinforcement learning with grpo\n  starts from       the dry run", "  steps             9\n", "9 samples with", "2 updates", "  measured          2 samples with", "rollout ",
			"First prompt\n  sum [", "Rewards of 2 samples", "expr:length ", "MiB in this dry run\n", "  extrapolated      at most ",
		)
	}
	after := f.files(t)
	expect.True(t, len(after) == len(before), "the trial left %d files", len(after)-len(before))
	if code, out, errs := inProcess(t, f, "--task", "sum_digits", "--print-config", "--seed", "7"); code != 0 || !strings.Contains(out, "seed: 7  # --seed\n") || !strings.Contains(out, "num_steps: ") {
		t.Errorf("--print-config: exit code %d, %q, %q", code, out, errs)
	}
}

// TestTrialIsBounded asks for more than could be computed in a test: a dry run's work does not depend on these options.
func TestTrialIsBounded(t *testing.T) {
	f := started(t)
	f.write(t, "TMP/long.jsonl", strings.Repeat(`{"text": "`+strings.Repeat("one two three ", 400)+"\"}\n", 64))
	measured := regexp.MustCompile(`measured +(\d+) samples? with (\d+) tokens`)
	for _, command := range []string{
		"--task sum_digits --mode rl_only --model TMP/start --num-steps 100000 --prompts-per-step 4096 --samples-per-prompt 64 --eval-samples 100000 --update-epochs 64 --algorithm grpo",
		"--task chat --model tiny --dataset TMP/long.jsonl --batch-size 64 --max-length 4096 --epochs 1000",
	} {
		code, out, errs := inProcess(t, f, strings.Fields(f.expand(command+" --dry-run --output-dir TMP/out"))...)
		found := measured.FindStringSubmatch(out)
		expect.Require(t, code == 0 && found != nil, "%s: exit code %d, %q\n%s", command, code, errs, out)
		samples, _ := strconv.Atoi(found[1])
		tokens, _ := strconv.Atoi(found[2])
		expect.True(t, samples <= 2 && tokens <= 512, "%s: trained on %d samples with %d tokens, want at most 2 with 512", command, samples, tokens)
	}
}

// inProcess runs the program and captures the process's standard output.
func inProcess(t *testing.T, f folders, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	out := must.Get(os.CreateTemp(t.TempDir(), "out"))(t)
	old := os.Stdout
	os.Stdout = out
	code, _, stderr = f.rltrain("", args...)
	os.Stdout = old
	data := must.Get(os.ReadFile(out.Name()))(t)
	return code, string(data), stderr
}

// TestAdapterWithoutModulesIsRefused before a folder is created; the error lists the available modules.
func TestAdapterWithoutModulesIsRefused(t *testing.T) {
	f := started(t)
	f.refused(t, `lora: target "nothing_so" matches no module; choose from model.layers.*.self_attn.q_proj`,
		strings.Fields("--task sum_digits --mode rl_only --model TMP/start --use-lora --lora-target-modules nothing_so --output-dir TMP/out")...)
	_, err := os.Stat(f.expand("TMP/out/sum_digits_rl"))
	expect.True(t, errors.Is(err, fs.ErrNotExist), "the run's folder: %v, want none", err)
}
