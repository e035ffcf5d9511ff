package app

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

func TestMergedFolderServesEveryCommand(t *testing.T) {
	for _, pooling := range []string{transformers.PoolMean, transformers.PoolFamily} {
		t.Run(pooling, func(t *testing.T) {
			f := newFolders(t, pooling)
			expect.Same(t, f.expand("TMP/merged\n"), f.must(t, "", "merge", "--model", "MODEL", "--output", "TMP/merged"), "printed")
			input := "the cat\na court is the law\nlight is a wave\n"
			if err := os.RemoveAll(f.base); err != nil { // a merged model needs no base
				t.Fatal(err)
			}
			got := f.must(t, input, "predict", "--model", "TMP/merged")
			expect.True(t, strings.Count(got, "\t") == 3, "predicted %q", got)
			f.must(t, "", "eval", "--model", "TMP/merged", "--dataset", evalFile(t, f))
		})
	}
}

// newLanguageModel creates a small language model in BASE and an adapter for it in MODEL.
func newLanguageModel(t *testing.T) folders {
	t.Helper()
	torchtest.NoLeaks(t)
	f := folders{model: t.TempDir(), base: filepath.Join(t.TempDir(), "tiny"), tmp: t.TempDir()}
	must.Do(t, policy.TinyModel(f.base, 2, 32, 7))
	p := must.Get(policy.NewCausalLM(policy.Config{Dir: f.base, R: 4, Alpha: 8, Seed: 1}))(t)
	defer p.Close()
	must.Do(t, p.Save(f.model))
	a := must.Get(lora.Load(f.model))(t)
	for _, pair := range a.Pairs { // a zero adapter would hide mistakes
		for i := range pair.B {
			pair.B[i] = float32(i%7-3) / 4
		}
	}
	must.Do(t, lora.Save(f.model, a.Config, a.Pairs, nil))
	return f
}

func TestMergeLanguageModel(t *testing.T) {
	f := newLanguageModel(t)
	f.write(t, "TMP/p.jsonl", `{"prompt": "ab", "completion": "cd"}`+"\n")
	scores := func(model string) string {
		return f.must(t, "", "score", "--model", model, "--input", "TMP/p.jsonl", "--dtype", "fp32", "--output", "TMP/scores.jsonl") +
			must.Read(t, f.expand("TMP/scores.jsonl"))
	}
	sum := func(line string) float64 {
		var row struct {
			Sum float64 `json:"sum_logprob"`
		}
		must.Do(t, json.Unmarshal([]byte(line), &row))
		return row.Sum
	}
	want, base := sum(scores("MODEL")), sum(scores("BASE"))
	expect.Require(t, math.Abs(want-base) >= 0.01, "the adapter does not matter: %v with it, %v without", want, base)
	for dtype, limit := range map[string]float64{"": 1e-4, "fp32": 1e-4, "bf16": 0.05, "fp16": 0.01} {
		out := "TMP/merged" + dtype
		args := []string{"merge", "--model", "MODEL", "--output", out}
		if dtype != "" {
			args = append(args, "--dtype", dtype)
		}
		expect.Same(t, f.expand(out+"\n"), f.must(t, "", args...), "printed")
		got := sum(scores(out))
		expect.True(t, math.Abs(got-want) <= limit, "dtype %q: the merged model says %v, the adapter %v", dtype, got, want)
		files := must.Get(safetensors.OpenModel(f.expand(out)))(t)
		_, entry, _ := files.Entry("model.embed_tokens.weight")
		files.Close()
		expect.Same(t, map[string]safetensors.DType{"": "F32", "fp32": "F32", "bf16": "BF16", "fp16": "F16"}[dtype], entry.DType, "dtype %q: stored as", dtype)
	}
}

func TestMergeRefuses(t *testing.T) {
	f := newLanguageModel(t)
	classifier := newFolders(t, transformers.PoolFamily)
	for _, test := range []struct {
		args, want string
		code       int
	}{
		{"merge --model MODEL --output TMP/m --dtype int8", `--dtype: "int8" is not one of fp32, bf16, fp16`, 2},
		{"merge --output TMP/m", "merge needs --model: a classifier, a reward model or an adapter of a language model", 2},
		{"merge --model CLASSIFIER --output TMP/m --dtype bf16", "--dtype: does not apply; CLASSIFIER is a classifier on an encoder", 2},
		{"merge --model BASE --output TMP/m", "BASE has no adapter to merge: no label_policy.json and no adapter_config.json", 1},
		{"merge --model TMP/none --output TMP/m", "--model: model folder TMP/none does not exist", 1},
		{"merge --model MODEL --output MODEL", "writing the model: MODEL is not empty; choose a new folder", 1},
	} {
		expand := strings.NewReplacer("CLASSIFIER", classifier.model).Replace
		code, stdout, stderr := f.rltrain("", strings.Fields(expand(test.args))...)
		want := "rltrain: " + f.expand(expand(test.want)) + "\n"
		expect.True(t, code == test.code && stderr == want && stdout == "", "%s: exit code %d, printed %q\n got %swant %s", test.args, code, stdout, stderr, want)
	}
	f.edit(t, "MODEL/adapter_config.json", "CAUSAL_LM", "FEATURE_EXTRACTION")
	_, _, stderr := f.rltrain("", "merge", "--model", "MODEL", "--output", "TMP/m")
	expect.Same(t, f.expand("rltrain: MODEL does not fit BASE: task_type is FEATURE_EXTRACTION; an adapter of a language model has CAUSAL_LM\n"), stderr, "stderr")
}
