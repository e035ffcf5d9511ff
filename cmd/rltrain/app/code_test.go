package app

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// TestCodeEndToEnd trains on demonstrations of one-line problems, then on their tests, which Python runs.
func TestCodeEndToEnd(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	code, _, complaint := f.rltrain("", strings.Fields("--task code --tiny-layers 1 --tiny-hidden 32 --max-steps 4 --batch-size 4 --warmup-check-every 0 --num-steps 2 --logging-steps 1 "+
		"--prompts-per-step 2 --samples-per-prompt 2 --eval-samples 2 --fresh-samples 2 --max-new-tokens 24 --reward tests,style=0.1 --threads 1 --output-dir TMP")...)
	if strings.Contains(complaint, "no interpreter") || strings.Contains(complaint, "no sandbox") {
		t.Skip(complaint)
	}
	expect.Require(t, code == 0 && complaint == "", "exit code %d: %s", code, complaint)
	var earned []map[string]float64
	must.Do(t, files.LoadJSON(f.expand("TMP/code_rl/logs/rewards.json"), &earned))
	expect.Require(t, len(earned) == 2, "%v", earned)
	for i, row := range earned {
		mean, ok := row["rewards/tests/mean"]
		expect.True(t, row["step"] == float64(i+1) && ok && mean >= 0 && mean <= 2 && len(row) >= 4, "row %d: %v", i, row)
	}
	var programs []struct {
		Problem, Passed, Total int
		Class, Program, Kind   string
	}
	if err := files.LoadJSON(f.expand("TMP/code_rl/results/results.json"), &programs); err != nil || len(programs) != 2 || !strings.HasPrefix(programs[0].Program, "def f(x):") || programs[1].Problem != 1 || programs[1].Total == 0 {
		t.Errorf("%+v, %v", programs, err)
	}
	var scores struct{ Before, After, Last, Fresh *rl.AnswerScores }
	err := files.LoadJSON(f.expand("TMP/code_rl/logs/eval_results.json"), &scores)
	expect.True(t, err == nil && scores.After.N == 2 && scores.Fresh.N == 2, "%+v, %v", scores, err)
}
