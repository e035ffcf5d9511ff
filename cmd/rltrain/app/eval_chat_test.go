package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
)

// TestEvalChat: the loss of rows is that which training measures on the same rows as its validation split.
func TestEvalChat(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	var rows strings.Builder
	for i := range 12 {
		fmt.Fprintf(&rows, `{"prompt": "%d+1=", "completion": "%d", "split": "%s"}`+"\n", i, i+1, []string{"train", "val"}[i%2])
	}
	f.write(t, "TMP/rows.jsonl", rows.String())
	f.must(t, "", strings.Fields("train --task chat --dataset TMP/rows.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --epochs 2 --keep last --threads 1 --output-dir TMP")...)
	out := f.must(t, "", strings.Fields("eval --task chat --threads 1 --model TMP/chat_supervised --dataset TMP/rows.jsonl --output TMP/e.json --output-rows TMP/texts.jsonl")...)
	if !strings.Contains(out, "perplexity") || !strings.Contains(out, "6 texts") || !strings.Contains(out, "evaluate at least 30 texts") {
		t.Errorf("printed %s", out)
	}
	var v textResults
	must.Do(t, files.LoadJSON(f.expand("TMP/e.json"), &v))
	logged := string(readFile(t, f.expand("TMP/chat_supervised/logs/training_log.txt")))
	if want := fmt.Sprintf("Epoch 2: validation loss=%.4f, perplexity=%.3f, token accuracy=%.4f", v.Loss.Value, v.Perplexity.Value, v.Accuracy.Value); !strings.Contains(logged, want) {
		t.Errorf("the log lacks %q:\n%s", want, logged)
	}
	expect.True(t, v.N == 6 && v.Loss.Interval[0] <= v.Loss.Value && v.Loss.Interval[1] >= v.Loss.Value, "%+v", v)
	loss, tokens := 0.0, 0
	for r, err := range dataset.Records(f.expand("TMP/texts.jsonl")) {
		must.Do(t, err)
		line, err := json.Marshal(r.Fields)
		var row textRow
		err = errors.Join(err, json.Unmarshal(line, &row))
		expect.Require(t, err == nil && strings.Contains(row.Text, "+1="), "%s, %v", line, err)
		loss, tokens = loss+row.Loss*float64(row.Tokens), tokens+row.Tokens
	}
	expect.True(t, tokens == v.Tokens && math.Abs(loss/float64(tokens)-v.Loss.Value) <= 1e-9,
		"the rows have %d tokens with loss %v, the whole %+v", tokens, loss/float64(tokens), v)
	for args, want := range map[string]string{
		"eval --task chat --model TMP/chat_supervised":                                   "needs --model DIR and --dataset FILE",
		"eval --task chat --model TMP/chat_supervised --dataset TMP/rows.jsonl --beta 1": "--beta: does not apply to task chat",
		"eval --model TMP/chat_supervised --dataset TMP/rows.jsonl":                      "trained on task chat; pass --task chat",
	} {
		code, _, stderr := f.rltrain("", strings.Fields(args)...)
		expect.True(t, code == 2 && strings.Contains(stderr, want), "%s: exit code %d, %s", args, code, stderr)
	}
}
