package app

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

)

// TestWarmUpOfDigits has a policy that is right often enough from the start, which is handed on as it is, beside one
// of another size in the same folder; reinforcement goes on in the form of prompt that the policy reads.
func TestWarmUpOfDigits(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	options := strings.Fields(`train --task reverse_digits --tiny-layers 1 --tiny-hidden 32 --eval-samples 2 --max-new-tokens 8 --output-dir TMP`)
	f.must(t, "", with(options, "--mode", "supervised", "--warmup-until", "0", "--max-steps", "2")...)
	dir := filepath.Join(f.tmp, "reverse_digits_supervised")
	if got := string(readFile(t, filepath.Join(dir, "logs", "training_log.txt"))); !strings.Contains(got, "Supervised training complete after 0 updates") {
		t.Errorf("log:\n%s", got)
	}
	f.must(t, "", append(drop(options, "--tiny-layers", "--tiny-hidden"), "--mode", "rl_only", "--pretrained-model", dir,
		"--num-steps", "1", "--prompts-per-step", "2", "--samples-per-prompt", "2")...)
	f.must(t, "", with(options, "--mode", "supervised", "--warmup-until", "0", "--max-steps", "2", "--tiny-hidden", "64")...)
	var config struct {
		Hidden int `json:"hidden_size"`
	}
	if err := json.Unmarshal(readFile(t, filepath.Join(dir, "config.json")), &config); err != nil {
		t.Fatal(err)
	}
	if config.Hidden != 64 {
		t.Errorf("a model of width %d, want 64", config.Hidden)
	}
}
