package app

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/report"
)

// TestEnvironmentOfTheDocs trains in the environment of docs/environments.md.
func TestEnvironmentOfTheDocs(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip(err)
	}
	page := must.Read(t, "../../../docs/environments.md")
	_, code, ok := strings.Cut(page, "```python\n")
	code, _, closed := strings.Cut(code, "```")
	expect.Require(t, ok && closed, "no Python in the page")
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/guess.py", code)
	out := f.must(t, "", append(strings.Fields(`train --task env --model tiny --tiny-layers 1 --tiny-hidden 32 --max-new-tokens 1 --eval-samples 100 --eval-every 20
		--fresh-samples 0 --num-steps 40 --logging-steps 1 --prompts-per-step 8 --samples-per-prompt 8 --rl-learning-rate 0.02 --output-dir TMP`), "--env", f.expand("cmd:python3 TMP/guess.py"))...)
	before, after, rows := 0.0, 0.0, 0
	for _, row := range must.Get(report.ReadMetrics(f.expand("TMP/env_rl/logs/metrics.jsonl")))(t) {
		n, ok := row["failed_episodes"].(float64)
		if !ok {
			continue
		}
		rows++
		expect.True(t, n == 0, "%v episodes failed", n)
		accuracy, _ := row["accuracy"].(float64)
		if rows <= 3 {
			before += accuracy / 3
		}
		if rows > 30 {
			after += accuracy / 10
		}
	}
	expect.True(t, rows == 40 && after > before+0.08, "%d steps, success %.2f, then %.2f:\n%s", rows, before, after, out)
	f.refused(t, "--env: is needed", strings.Fields("train --task env --model tiny --output-dir TMP/x")...)
}
