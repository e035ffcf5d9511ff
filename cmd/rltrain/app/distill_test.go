package app

import (
	"os"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// TestDistillEndToEnd distils a teacher of another width, and refuses models that cannot be a teacher.
func TestDistillEndToEnd(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	const supervised = "train --task sum_digits --mode supervised --tiny-layers 1 --max-steps 1 --warmup-check-every 0 --eval-samples 2 --threads 1 "
	f.must(t, "", strings.Fields(supervised+"--tiny-hidden 64 --output-dir TMP/large")...)
	f.must(t, "", strings.Fields(supervised+"--tiny-hidden 32 --output-dir TMP/small")...)
	const distill = "train --task sum_digits --mode rl_only --pretrained-model TMP/small/sum_digits_supervised --algorithm distill --num-steps 2 --eval-every 2 " +
		"--prompts-per-step 2 --samples-per-prompt 2 --max-new-tokens 4 --eval-samples 2 --fresh-samples 0 --threads 1 --output-dir TMP/small --logging-steps 1 "
	f.must(t, "", strings.Fields(distill+"--teacher TMP/large/sum_digits_supervised --divergence jsd --jsd-beta 0.3")...)
	metrics, err := os.ReadFile(f.expand("TMP/small/sum_digits_rl/logs/metrics.jsonl"))
	expect.True(t, err == nil && strings.Count(string(metrics), `"divergence":`) == 2,
		"want the KL of 2 steps: %v\n%s", err, metrics)
	for args, want := range map[string]string{
		distill:                           "needs teacher",
		distill + "--teacher TMP/nowhere": "--teacher: ",
		distill + "--teacher TMP/large/sum_digits_supervised --jsd-beta 0.3":                                                 "--jsd-beta: applies only with --divergence jsd",
		distill + "--teacher TMP/large/sum_digits_supervised --divergence other":                                             "--divergence: ",
		strings.Replace(distill, "--algorithm distill", "--algorithm grpo", 1) + "--teacher TMP/large/sum_digits_supervised": "--teacher: applies only with --algorithm distill",
	} {
		if code, _, stderr := f.rltrain("", strings.Fields(args)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, error %q; want …%s…", args, code, stderr, want)
		}
	}
}
