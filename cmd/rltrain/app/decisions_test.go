package app

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestDecisions trains a small chat model on questions of all types, and then answers and measures with it.
func TestDecisions(t *testing.T) {
	torchtest.NoLeaks(t)
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyChatModel(f.expand("TMP/model"), 1, 32, 1))
	var rows strings.Builder
	for i := range 40 {
		colour := []string{"red", "blue"}[i%2]
		fmt.Fprintf(&rows, `{"state":{"ball":%q,"n":%d},"questions":{"which":{"type":"choice","criteria":{"red":null,"blue":null},"answer":%q},"red":{"type":"noul","answer":%t},"many":{"type":"score","criteria":["none","one","two"],"answer":%d}}}`+"\n",
			colour, i, colour, i%2 == 0, i%3)
	}
	f.write(t, "TMP/rows.jsonl", rows.String())
	f.write(t, "TMP/costs.json", `{"red":{"blue":10},"*":{"abstain":0.4}}`)
	code, _, errs := f.rltrain("", strings.Fields("train --task decisions --model TMP/model --dataset TMP/rows.jsonl --mode supervised_then_rl --max-steps 2 --batch-size 4 --rl-episodes 2 --buffer-size 12 "+
		"--rl-batch-size 12 --eval-every 1 --threads 1 --output-dir TMP/out")...)
	expect.Require(t, code == 0, "%v", errs)
	dir := f.expand("TMP/out/decisions_rl")
	var settings struct{ Temperature map[string]float64 }
	must.JSON(t, filepath.Join(dir, "decision.json"), &settings)
	expect.True(t, len(settings.Temperature) == 3 && strings.Contains(must.Read(t, filepath.Join(dir, "decision_template.jinja")), "question.options"), "decision.json %v", settings)
	// A bad row keeps its place and says what is wrong; the others are answered.
	f.write(t, "TMP/asked.jsonl", `{"state":"a","questions":{"q":{"type":"score","criteria":["x","y"]}},"id":7}`+"\n"+
		`{"state":"a","questions":{"q":{"type":"rank"}}}`+"\n"+`{"state":["b"],"questions":{"p":{"type":"noul"},"q":{"type":"choice","criteria":{"x":null}}}}`+"\n")
	code, out, errs := f.rltrain("", "predict", "--model", dir, "--input", "TMP/asked.jsonl", "--threads", "1")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	expect.Require(t, code == 1 && len(lines) == 3 && strings.Contains(errs, "1 rows could not be answered"), "exit code %d, %d lines, %s", code, len(lines), errs)
	var first struct {
		ID      int
		Answers map[string]struct{ Probabilities map[string]float64 }
	}
	must.Do(t, json.Unmarshal([]byte(lines[0]), &first))
	p := first.Answers["q"].Probabilities
	expect.True(t, first.ID == 7 && math.Abs(p["0"]+p["1"]-1) <= 1e-6, "answers %s", lines[0])
	expect.True(t, strings.Contains(lines[1], `"errors":[{"file":`) && strings.Contains(lines[1], `"line":2,"field":"questions.q"`), "errors %s", lines[1])
	out = f.must(t, "", strings.Fields("eval --task decisions --model TMP/out/decisions_rl --dataset TMP/rows.jsonl --cost TMP/costs.json --threads 1")...)
	expect.Contains(t, out, "question which", "Brier", "ranked", "answered", "Cost of the cheapest expected answer", "rejection below", "risk_coverage.png")
	if code, _, errs := f.rltrain("", "train", "--task", "decisions", "--model", "TMP/model", "--dataset", "TMP/rows.jsonl", "--policy", "head", "--mode", "rl_only", "--reward", "cost:TMP/none.json", "--output-dir", "TMP/o2"); code == 0 || !strings.Contains(errs, "none.json") {
		t.Errorf("a missing cost matrix: exit code %d, %s", code, errs)
	}
}
