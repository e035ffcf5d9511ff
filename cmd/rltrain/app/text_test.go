package app

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// letters writes rows whose first letter determines the label.
func (f folders) letters(t *testing.T, name string) {
	t.Helper()
	text := "text,label,split\n"
	for i := range 60 {
		label := []string{"low", "lower", "high"}[i%3]
		text += fmt.Sprintf("%c %c%c cat,%s,%s\n", "adg"[i%3], 'a'+i%26, 'a'+i*7%26, label, []string{"train", "train", "train", "val", "test"}[i%5])
	}
	f.write(t, name, text)
}

// TestText trains each kind of policy from an untrained model, then uses the result.
func TestText(t *testing.T) {
	torchtest.NoLeaks(t)
	f := newFolders(t, transformers.PoolMean)
	must.Do(t, policy.TinyModel(f.expand("TMP/lm"), 1, 32, 1))
	f.letters(t, "TMP/rows.csv")
	few := strings.Fields("--task text --dataset TMP/rows.csv --rl-episodes 3 --eval-every 2 --buffer-size 24 --samples-per-prompt 2 --rl-batch-size 12 --threads 1")
	for _, test := range []struct {
		name, algorithm, options, pooling, log string
	}{
		{"encoder", "dqn", "--model BASE --policy head --pooling mean --algorithm dqn --labels lower,high,low", transformers.PoolMean, "DQN Update: td_loss="},
		{"encoder as its family", "grpo", "--model BASE --policy head --pooling family --algorithm grpo", transformers.PoolFamily, "GRPO Episode 3/3"},
		{"last token", "a2c", "--model TMP/lm --policy head --algorithm a2c", policy.PoolLast, "A2C Episode 3/3"},
		{"scored", "ppo", "--model TMP/lm --policy score --algorithm ppo --labels lower,high,low --prompt-template {labels}?{text}=", policy.PoolScore, `"lower" or "high" or "low"?`},
		{"scored, usual prompt", "grpo", "--model TMP/lm --policy score", policy.PoolScore, `Classify the following text as "high" or "low" or "lower".`},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := "TMP/" + strings.ReplaceAll(test.name, " ", "_")
			options := slices.Concat(few, strings.Fields(test.options), []string{"--output-dir", out})
			f.says(t, "", options...)
			found := must.Get(filepath.Glob(f.expand(out) + "/classification_" + test.algorithm + "_*"))(t)
			expect.Require(t, len(found) == 1, "%d folders of %s in %s", len(found), test.algorithm, out)
			dir := found[0]
			p, err := policy.ReadClassifier(dir)
			labels := []string{"high", "low", "lower"}
			if strings.Contains(test.options, "--labels") {
				labels = []string{"lower", "high", "low"}
			}
			expect.Require(t, err == nil && p.Pooling == test.pooling && slices.Equal(p.Labels, labels), "pooling %q, labels %q: %v", p.Pooling, p.Labels, err)
			for _, name := range []string{"training_curves.png", "README.md", "adapter_model.safetensors", "checkpoints/checkpoint-2"} {
				must.Get(os.Stat(filepath.Join(dir, name)))(t)
			}
			log := must.Read(t, filepath.Join(dir, "logs", "training_log.txt"))
			expect.True(t, strings.Contains(log, test.log), "no %q in\n%s", test.log, log)
			var results struct {
				N        int
				Accuracy float64
			}
			must.JSON(t, filepath.Join(dir, "logs", "eval_results.json"), &results)
			expect.Same(t, 12, results.N, "measured on %d rows, want the 12 test rows", results.N)
			// eval reproduces the training metrics and agrees with predict.
			var again struct{ Accuracy float64 }
			f.must(t, "", "eval", "--task", "text", "--model", dir, "--dataset", "TMP/rows.csv", "--output-dir", "TMP/eval")
			must.JSON(t, f.expand("TMP/eval/logs/eval_results.json"), &again)
			expect.Same(t, results.Accuracy, again.Accuracy, "eval finds %v, the run %v", again.Accuracy, results.Accuracy)
			label, _, _ := strings.Cut(f.must(t, "a cat\n", "predict", "--model", dir), "\t")
			expect.True(t, slices.Contains(p.Labels, label), "predicted %q", label)
			// Training continues from the result, with the same kind of policy only.
			more := slices.Concat(few, strings.Fields("--algorithm ppo --policy "+map[bool]string{true: "score", false: "head"}[test.pooling == policy.PoolScore]),
				[]string{"--rl-episodes", "1", "--pretrained-model", dir, "--output-dir", out + "_more"})
			more = drop(more, "--rl-episodes")
			f.says(t, "", append(more, "--rl-episodes", "1")...)
			more[slices.Index(more, "--policy")+1] = map[bool]string{false: "score", true: "head"}[test.pooling == policy.PoolScore]
			f.refused(t, "reads texts in another way", append(more, "--rl-episodes", "1")...)
		})
	}
}

func TestTextRefuses(t *testing.T) {
	torchtest.NoLeaks(t)
	f := newFolders(t, transformers.PoolMean)
	must.Do(t, policy.TinyModel(f.expand("TMP/lm"), 1, 32, 1))
	f.letters(t, "TMP/rows.csv")
	f.write(t, "TMP/one.csv", "text,label\na b,x\nc d,x\ne f,x\n")
	f.write(t, "TMP/same.csv", "text,label,split\na b,Art,train\nc d,art ,val\ne f,law,test\n")
	f.write(t, "TMP/mark.csv", "text,label,split\na b,art,train\nc d,x{text},val\ne f,law,test\n")
	for _, test := range []struct{ options, want string }{
		{"--policy score", "--policy: score needs a language model: name one with --model"},
		{"--policy score --model BASE --dataset TMP/rows.csv", "is an encoder"},
		{"--policy score --model tiny", "tiny generates labels: use --policy generate"},
		{"--policy head --model TMP/lm --pooling mean --dataset TMP/rows.csv", "is for encoders"},
		{"--policy generate --model TMP/lm --dataset TMP/rows.csv --max-new-tokens 2 --eval-samples 10", `the label "high" has`},
		{"--model BASE --policy head --dataset TMP/one.csv", "training needs at least two labels"},
		{"--model BASE --policy head --dataset TMP/same.csv", "differ only in case or spaces"},
		{"--model BASE --policy head --dataset TMP/mark.csv", "the placeholder for the text"},
		{"--model BASE --policy head --dataset TMP/rows.csv --labels low,high", `label "lower" is not one of`},
		{"--model BASE --policy head --dataset TMP/rows.csv --labels low,lower,high,none", `label "none" has no row`},
		{"--policy score --model TMP/lm --dataset TMP/rows.csv --prompt-template what", "has no {text}"},
		{"--policy head --model BASE --dataset TMP/rows.csv --prompt-template {text}", "applies only with --policy generate or score"},
	} {
		f.refused(t, test.want, append(strings.Fields("--task text --output-dir TMP/out --threads 1"), strings.Fields(test.options)...)...)
		_, err := os.Stat(f.expand("TMP/out"))
		expect.Require(t, err != nil, "%s: a folder was made", test.options)
	}
}

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
