package app

import (
	"crypto/sha1"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// trainedAdapter trains an adapter on ggufModel for a few steps, in TMP/out/chat_supervised.
func trainedAdapter(t *testing.T) (f folders, adapter string) {
	t.Helper()
	f = ggufModel(t)
	f.write(t, "TMP/rows.jsonl", strings.Repeat(`{"prompt":"hi","completion":"the cat sat"}`+"\n", 12))
	f.says(t, "", "--task", "chat", "--model", "MODEL", "--dataset", "TMP/rows.jsonl", "--output-dir", "TMP/out",
		"--lora-r", "4", "--lora-target-modules", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "--learning-rate", "0.05", "--epochs", "10")
	return f, f.expand("TMP/out/chat_supervised")
}

// greedy is a model's greedy response to "hi".
func (f folders) greedy(t *testing.T, model string) string {
	t.Helper()
	return f.says(t, "hi\n", "generate", "--model", model, "--temperature", "0", "--max-new-tokens", "12")
}

// A merged model answers as before, exported as a GGUF file or as a folder.
func TestExport(t *testing.T) {
	f, adapter := trainedAdapter(t)
	want := f.greedy(t, adapter)
	expect.Require(t, want != f.greedy(t, "MODEL"), "the adapter changes nothing")
	for name, args := range map[string][]string{
		"TMP/gguf/chat_supervised-f32.gguf": {"--quantize", "f32", "--output", "TMP/gguf"},
		"TMP/named.gguf":                    {"--quantize", "F32", "--output", "TMP/named.gguf"},
		"TMP/hf":                            {"--format", "hf", "--output", "TMP/hf"},
	} {
		code, stdout, stderr := f.rltrain("", append([]string{"export", "--model", adapter}, args...)...)
		expect.Require(t, code == 0 && strings.HasPrefix(stdout, f.expand(name)+"\n"), "%q: exit code %d, %q, %s", args, code, stdout, stderr)
		expect.Same(t, want, f.greedy(t, name), "%s answers, the adapter", name)
	}
	expect.Contains(t, "\n"+must.Read(t, f.expand("TMP/gguf/Modelfile")), "\nFROM ./chat_supervised-f32.gguf\n", `PARAMETER stop "<|im_end|>"`)
	for _, kind := range []string{"f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k"} {
		f.says(t, "", "export", "--model", adapter, "--quantize", kind, "--output", "TMP/"+kind+".gguf")
		f.greedy(t, "TMP/"+kind+".gguf")
	}
}

// Base weights plus the exported adapter must equal the merged weights.
func TestExportAdapter(t *testing.T) {
	f, adapter := trainedAdapter(t)
	files := map[string]*gguf.File{}
	for name, args := range map[string][]string{
		"lora":   {"--model", adapter, "--adapter-only"},
		"merged": {"--model", adapter, "--quantize", "f32"},
		"base":   {"--model", "MODEL", "--quantize", "f32"},
	} {
		path := f.expand("TMP/" + name + ".gguf")
		f.says(t, "", append([]string{"export", "--output", path}, args...)...)
		file := must.Open(gguf.Open(path))(t)
		files[name] = file
	}
	kind, _, _ := files["lora"].Text("adapter.type")
	expect.True(t, kind == "lora", "adapter.type is %q", kind)
	alpha, _, _ := files["lora"].Float("adapter.lora.alpha")
	values := func(file, name string) ([]float32, []int64) {
		t.Helper()
		tensor, ok := files[file].Tensor(name)
		expect.Require(t, ok, "%s has no tensor %s", file, name)
		return files[file].Float32s(tensor), tensor.Shape
	}
	n := len(files["lora"].Tensors())
	expect.True(t, n == 2*2*7, "%d tensors, want a pair for each of 7 matrices of 2 layers", n)
	for _, name := range []string{"blk.0.attn_q.weight", "blk.1.attn_k.weight", "blk.0.attn_output.weight", "blk.1.ffn_down.weight"} {
		a, shape := values("lora", name+".lora_a")
		b, _ := values("lora", name+".lora_b")
		base, _ := values("base", name)
		merged, _ := values("merged", name)
		r, in := int(shape[0]), int(shape[1])
		changed := false
		for i, want := range merged {
			sum := 0.0
			for k := range r {
				sum += float64(b[i/in*r+k]) * float64(a[k*in+i%in])
			}
			got := float64(base[i]) + alpha/float64(r)*sum
			expect.Require(t, math.Abs(got-float64(want)) <= 1e-5, "%s: value %d is %g, merged %g", name, i, got, want)
			changed = changed || want != base[i]
		}
		expect.True(t, changed, "%s: the adapter changes nothing", name)
	}
}

func TestExportRefuses(t *testing.T) {
	f := ggufModel(t)
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--output", "TMP/x"}, 2, "--model"},
		{[]string{"--model", "MODEL"}, 2, "--output"},
		{[]string{"--model", "MODEL", "--output", "TMP/x", "--format", "onnx"}, 2, `"onnx"`},
		{[]string{"--model", "MODEL", "--output", "TMP/x", "--quantize", "q2_k"}, 2, `"q2_k"`},
		{[]string{"--model", "MODEL", "--output", "TMP/x", "--format", "hf", "--quantize", "f16"}, 2, "--quantize"},
		{[]string{"--model", "MODEL", "--output", "TMP/x", "--dtype", "bf16"}, 2, "--dtype"},
		{[]string{"--model", "MODEL", "--output", "TMP/x", "--adapter-only"}, 1, "no low-rank adapter"},
	} {
		code, _, stderr := f.rltrain("", append([]string{"export"}, c.args...)...)
		expect.True(t, code == c.code && strings.Contains(stderr, c.want), "%q: exit code %d, %q", c.args, code, stderr)
	}
	left, _ := os.ReadDir(filepath.Join(f.tmp, "x")) // there may be no folder
	expect.True(t, len(left) == 0, "files were left: %v", left)
}

func TestMergedFolderServesEveryCommand(t *testing.T) {
	for _, pooling := range []string{transformers.PoolMean, transformers.PoolFamily} {
		t.Run(pooling, func(t *testing.T) {
			f := newFolders(t, pooling)
			expect.Same(t, f.expand("TMP/merged\n"), f.must(t, "", "merge", "--model", "MODEL", "--output", "TMP/merged"), "printed")
			input := "the cat\na court is the law\nlight is a wave\n"
			must.Do(t, os.RemoveAll(f.base)) // a merged model needs no base

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
		row := must.Into[struct {
			Sum float64 `json:"sum_logprob"`
		}](t, json.Unmarshal, []byte(line))
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
		f.fails(t, test.code, expand(test.want), strings.Fields(expand(test.args))...)
	}
	f.edit(t, "MODEL/adapter_config.json", "CAUSAL_LM", "FEATURE_EXTRACTION")
	_, _, stderr := f.rltrain("", "merge", "--model", "MODEL", "--output", "TMP/m")
	expect.Same(t, f.expand("rltrain: MODEL does not fit BASE: task_type is FEATURE_EXTRACTION; an adapter of a language model has CAUSAL_LM\n"), stderr, "stderr")
}

const commit = "0123456789abcdef0123456789abcdef01234567"

// serve serves folders as a local Hub, keyed by "models/org/name" or "datasets/org/name". downloads counts the files
// fetched.
func serve(t *testing.T, repositories map[string]string) (downloads *atomic.Int64) {
	t.Helper()
	downloads = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rest, ok := strings.CutPrefix(r.URL.Path, "/api/"); ok {
			id, _, _ := strings.Cut(rest, "/revision/")
			dir, ok := repositories[id]
			if !ok {
				w.Header().Set("X-Error-Code", "RepoNotFound")
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			siblings := []map[string]any{}
			_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
				if err == nil && !entry.IsDir() {
					name, _ := filepath.Rel(dir, path)
					info, _ := entry.Info()
					siblings = append(siblings, map[string]any{"rfilename": filepath.ToSlash(name), "size": info.Size()})
				}
				return err
			})
			_ = json.NewEncoder(w).Encode(map[string]any{"sha": commit, "siblings": siblings})
			return
		}
		id, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/resolve/"+commit+"/")
		if !strings.HasPrefix(id, "datasets/") {
			id = "models/" + id
		}
		data, err := os.ReadFile(filepath.Join(repositories[id], rest))
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if r.Method == http.MethodGet {
			downloads.Add(1)
		}
		w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprintf("%x", sha1.Sum(data))))
		_, _ = w.Write(data)
	}))
	t.Cleanup(server.Close)
	t.Setenv("HF_ENDPOINT", server.URL)
	t.Setenv("HF_HOME", t.TempDir())
	for _, variable := range []string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"} {
		t.Setenv(variable, "")
	}
	return downloads
}

func TestLanguageModelsByName(t *testing.T) {
	f := tiny(t)
	for _, split := range []string{"train", "validation", "test"} {
		f.write(t, "TMP/data/main/"+split+"/rows.jsonl", strings.Repeat(`{"prompt":"1:","completion":"1","of":"`+split+`"}`+"\n", 8))
	}
	f.write(t, "TMP/data/README.md", "---\nconfigs:\n- config_name: main\n  data_dir: main\n- config_name: none\n  data_dir: none\n---\n")
	downloads := serve(t, map[string]string{"models/org/tiny": f.model, "datasets/org/data": f.expand("TMP/data"), "models/org/adapter": f.expand("TMP/out/chat_supervised")})
	train := []string{"--task", "chat", "--model", "org/tiny", "--dataset-name", "org/data@main", "--dataset-config", "main",
		"--epochs", "1", "--batch-size", "4", "--tuning", "lora"}
	f.must(t, "", append(train, "--output-dir", "TMP/out")...)
	// Model: weights, two configurations, two tokenizer files. Dataset: a card and two splits.
	expect.Same(t, 5+3, downloads.Load(), "%d files were fetched", downloads.Load())
	adapter := must.JSON[map[string]any](t, f.expand("TMP/out/chat_supervised/adapter_config.json"))
	expect.True(t, adapter["base_model_name_or_path"] == "org/tiny" && adapter["revision"] == commit, "the adapter names %v at %v", adapter["base_model_name_or_path"], adapter["revision"])
	byFolder := f.says(t, "1:", "generate", "--model", "TMP/out/chat_supervised", "--max-new-tokens", "5")
	for name, args := range map[string][]string{
		"an adapter":        {"--model", "org/adapter"},
		"with its model":    {"--model", "org/tiny", "--adapter", "org/adapter"},
		"with a revision":   {"--model", "org/tiny@" + commit, "--adapter", "org/adapter@main"},
		"without the cache": {"--model", "org/adapter"},
	} {
		expect.Same(t, byFolder, f.says(t, "1:", append([]string{"generate", "--max-new-tokens", "5"}, args...)...), "%s", name)
	}
	f.says(t, "", "merge", "--model", "org/adapter", "--output", "TMP/merged")
	f.says(t, "", "doctor", "--model", "org/adapter")
	before := downloads.Load()
	t.Setenv("HF_HUB_OFFLINE", "1")
	f.says(t, "", append(train, "--output-dir", "TMP/again")...)
	expect.Same(t, before, downloads.Load(), "downloads offline")
	f.refusals(t, "", map[string]string{
		"generate --model org/none":                                          "--model: model \"org/none\" is neither a folder nor in",
		"--task chat --model org/tiny --dataset org/none":                    "dataset \"org/none\" is neither a file nor a folder",
		"--task chat --model org/adapter --dataset org/data":                 "it is an adapter, not a base model; to continue from an adapter use --pretrained-model",
		"--task chat --model org/tiny --dataset org/data":                    `choose one with --dataset-config: "main", "none"`,
		"--task chat --model org/tiny --dataset-config x --dataset rows.csv": "stat rows.csv: no such file or directory",
	})
}

// TestServicesHaveTheWeights: with --engine the hub is asked for what the model is, not for its weights.
func TestServicesHaveTheWeights(t *testing.T) {
	f := tiny(t)
	serve(t, map[string]string{"models/org/tiny": f.model})
	service := httptest.NewServer(http.NotFoundHandler())
	defer service.Close()
	f.write(t, "TMP/rows.jsonl", strings.Repeat(`{"prompt":"1:","completion":"1"}`+"\n", 20))
	f.refused(t, "create_session", "--task", "chat", "--model", "org/tiny", "--dataset", "TMP/rows.jsonl", "--tuning", "lora", "--engine", "tinker:"+service.URL, "--output-dir", "TMP/far")
	var fetched []string
	must.Do(t, filepath.WalkDir(os.Getenv("HF_HOME"), func(path string, entry os.DirEntry, err error) error {
		if strings.Contains(path, commit) {
			fetched = append(fetched, entry.Name())
		}
		return err
	}))
	expect.True(t, slices.Contains(fetched, "config.json") && !slices.Contains(fetched, "model.safetensors"), "fetched: %v", fetched)
}

// says runs the program and returns its standard output.
func (f folders) says(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	code, stdout, stderr := f.rltrain(stdin, args...)
	expect.Require(t, code == 0, "rltrain %s: exit code %d, error %q", strings.Join(args, " "), code, stderr)
	return stdout
}

func TestClassifiersByName(t *testing.T) {
	f := newFolders(t, transformers.PoolFamily)
	rows := must.Read(t, f.expand(evalFile(t, f)))
	for i, split := range []string{"train", "validation", "test"} {
		f.write(t, "TMP/data/"+split+".csv", rows+strings.Repeat("the cat,"+labels[0]+"\n", i))
	}
	serve(t, map[string]string{"models/org/encoder": f.base, "models/org/classifier": f.model, "datasets/org/data": f.expand("TMP/data")})
	f.says(t, "", "--task", "intent", "--mode", "supervised", "--model", "org/encoder", "--dataset", "org/data", "--max-steps", "1", "--output-dir", "TMP/out")
	f.edit(t, "MODEL/adapter_config.json", "../"+filepath.Base(f.base), "org/encoder")
	for _, args := range []string{
		"predict --model org/classifier", "predict --model TMP/out/intent_classifier_supervised", "merge --model org/classifier --output TMP/merged",
		"eval --model org/classifier --dataset org/data --output-dir TMP/eval", "compare org/classifier TMP/merged --dataset TMP/data",
		"--task intent --mode rl_only --pretrained-model org/classifier --model org/encoder --dataset org/data --rl-episodes 1 --output-dir TMP/rl",
	} {
		f.says(t, "the cat\n", strings.Fields(args)...)
	}
	refused := "--task intent --mode rl_only --pretrained-model org/classifier --model org/other --dataset org/data --output-dir TMP/other"
	f.usage(t, "--model: org/other: the policy in org/classifier is an adapter of org/encoder", strings.Fields(refused)...)
	f.usage(t, "pass --output-dir DIR", "eval", "--model", "org/classifier", "--dataset", "org/data")
}

// A prompt dataset loaded by name: its train split trains, validation evaluates during training, and eval uses test.
func TestPromptsByName(t *testing.T) {
	f := tiny(t)
	for i, split := range []string{"train", "validation", "test"} {
		f.rows(t, "TMP/data/"+split+".jsonl", 6-i, func(j int) string { return fmt.Sprintf(`{"prompt": "%s %d:", "answer": "1"}`, split, j) })
	}
	downloads := serve(t, map[string]string{"datasets/org/prompts": f.expand("TMP/data")})
	f.says(t, "", strings.Fields("--task prompts --dataset org/prompts --model TMP/tiny --max-new-tokens 2 --prompts-per-step 2 --samples-per-prompt 2 "+
		"--num-steps 1 --keep last --eval-samples 5 --fresh-samples 0 --output-dir TMP/out")...)
	expect.Same(t, 2, downloads.Load(), "%d files were fetched for training", downloads.Load())
	judged := must.JSON[struct {
		After struct{ N int }
	}](t, f.expand("TMP/out/prompts_rl/logs/eval_results.json"))
	expect.Same(t, 5, judged.After.N, "evaluated prompts")
	printed := f.says(t, "", strings.Fields("eval --task prompts --dataset org/prompts --model TMP/out/prompts_rl --max-new-tokens 2")...)
	expect.True(t, strings.Contains(printed, "org/prompts: task=prompts problems=4"), "eval printed %s", printed)
	f.refusals(t, "--task prompts --model TMP/tiny --output-dir TMP/no ", map[string]string{
		"--dataset org/none":                               `--dataset: dataset "org/none" is neither a file nor a folder`,
		"--dataset org/prompts --dataset-config x":         "--dataset",
		"--dataset org/prompts --eval-dataset org/missing": `--eval-dataset: dataset "org/missing" is neither`,
	})
}

func TestModels(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	t.Setenv("RLTRAIN_CACHE", filepath.Join(f.tmp, "cache"))
	t.Setenv("HF_HOME", filepath.Join(f.tmp, "hf"))
	t.Setenv("HF_HUB_OFFLINE", "1")
	const snapshot = "hf/hub/models--some--repo/snapshots/1111111111111111111111111111111111111111"
	f.write(t, "TMP/cache/models/org/mine/config.json", "{}")
	f.write(t, "TMP/cache/models/org/mine/README.md", "---\nlicense: mit\n---\n")
	f.write(t, "TMP/"+snapshot+"/config.json", "{}")
	out := f.must(t, "", "models")
	expect.Contains(t, out,
		"rltrain models pull smollm2", "Apache-2.0", "org/mine", "mit", f.expand("TMP/cache/models/org/mine"), "some/repo", "tiny",
	)
	expect.Same(t, f.expand("TMP/cache/models/org/mine\n"), f.must(t, "", "models", "pull", "org/mine"), "pull of a model in the cache prints")
	f.refusals(t, "", map[string]string{
		"models pull smollm2": "HF_HUB_OFFLINE", "models pull": "NAME", "models pull a b": "NAME", "models list": "list",
	})
}
