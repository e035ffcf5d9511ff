package app

import (
	"crypto/sha1"
	"encoding/json"
	"fmt"
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
	"github.com/rltrain/rltrain/torch/transformers"
)

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
	data := filepath.Join(f.tmp, "data")
	for _, split := range []string{"train", "validation", "test"} {
		must.Do(t, os.MkdirAll(filepath.Join(data, "main", split), 0o755))
		f.write(t, "TMP/data/main/"+split+"/rows.jsonl", strings.Repeat(`{"prompt":"1:","completion":"1","of":"`+split+`"}`+"\n", 8))
	}
	f.write(t, "TMP/data/README.md", "---\nconfigs:\n- config_name: main\n  data_dir: main\n- config_name: none\n  data_dir: none\n---\n")
	downloads := serve(t, map[string]string{"models/org/tiny": f.model, "datasets/org/data": data, "models/org/adapter": f.expand("TMP/out/chat_supervised")})
	train := []string{"--task", "chat", "--model", "org/tiny", "--dataset-name", "org/data@main", "--dataset-config", "main",
		"--epochs", "1", "--batch-size", "4", "--tuning", "lora"}
	code, _, stderr := f.rltrain("", append(train, "--output-dir", "TMP/out")...)
	expect.Require(t, code == 0 && stderr == "", "exit code %d, %q", code, stderr)
	// Model: weights, two configurations, two tokenizer files. Dataset: a card and two splits.
	expect.Same(t, 5+3, downloads.Load(), "%d files were fetched", downloads.Load())
	var adapter map[string]any
	must.JSON(t, f.expand("TMP/out/chat_supervised/adapter_config.json"), &adapter)
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
	if code, _, stderr := f.rltrain("", append(train, "--output-dir", "TMP/again")...); code != 0 || downloads.Load() != before {
		t.Errorf("offline: exit code %d, %q, %d downloads", code, stderr, downloads.Load()-before)
	}
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
	data := filepath.Join(f.tmp, "data")
	must.Do(t, os.Mkdir(data, 0o755))
	rows := must.Read(t, f.expand(evalFile(t, f)))
	for i, split := range []string{"train", "validation", "test"} {
		f.write(t, "TMP/data/"+split+".csv", rows+strings.Repeat("the cat,"+labels[0]+"\n", i))
	}
	serve(t, map[string]string{"models/org/encoder": f.base, "models/org/classifier": f.model, "datasets/org/data": data})
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
	data := filepath.Join(f.tmp, "data")
	must.Do(t, os.MkdirAll(data, 0o755))
	for i, split := range []string{"train", "validation", "test"} {
		var rows strings.Builder
		for j := range 6 - i {
			fmt.Fprintf(&rows, `{"prompt": "%s %d:", "answer": "1"}`+"\n", split, j)
		}
		f.write(t, "TMP/data/"+split+".jsonl", rows.String())
	}
	downloads := serve(t, map[string]string{"datasets/org/prompts": data})
	f.says(t, "", strings.Fields("--task prompts --dataset org/prompts --model TMP/tiny --max-new-tokens 2 --prompts-per-step 2 --samples-per-prompt 2 "+
		"--num-steps 1 --keep last --eval-samples 5 --fresh-samples 0 --output-dir TMP/out")...)
	expect.Same(t, 2, downloads.Load(), "%d files were fetched for training", downloads.Load())
	var judged struct {
		After struct{ N int }
	}
	must.JSON(t, f.expand("TMP/out/prompts_rl/logs/eval_results.json"), &judged)
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
	for _, dir := range []string{"cache/models/org/mine", snapshot} {
		must.Do(t, os.MkdirAll(filepath.Join(f.tmp, dir), 0o755))
	}
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
