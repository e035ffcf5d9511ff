package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/intent"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// evalTexts are labelled texts; the last one exceeds the model's 12 positions.
var evalTexts = [][2]string{
	{"the cat", "animals"}, {"a dog ?", "animals"}, {"is the horse a cat", "animals"}, {"the judge", "law"},
	{"a court is the law", "law"}, {"light is a wave", "physics"}, {"the force", "physics"},
	{strings.Repeat("wave force ", 10), "physics"},
}

// evalFile writes evalTexts and returns the path.
func evalFile(t *testing.T, f folders) string {
	t.Helper()
	text := "text,label\n"
	for _, row := range evalTexts {
		text += row[0] + "," + row[1] + "\n"
	}
	f.write(t, "TMP/eval.csv", text)
	return "TMP/eval.csv"
}

func TestEval(t *testing.T) {
	for _, pooling := range []string{transformers.PoolMean, transformers.PoolFamily} {
		t.Run(pooling, func(t *testing.T) {
			f := newFolders(t, pooling)
			out := f.must(t, "", "eval", "--task", "intent", "--model", "MODEL", "--dataset", evalFile(t, f), "--output-rows", "TMP/rows.jsonl")
			var results shared.LabelResults
			must.JSON(t, f.expand("MODEL/eval/logs/eval_results.json"), &results)

			right := strings.Count(must.Read(t, f.expand("TMP/rows.jsonl")), `"correct":true`)
			if want := float64(right) / float64(len(evalTexts)); results.Accuracy != want {
				t.Errorf("accuracy %v, %v of the rows", results.Accuracy, want)
			}
			// eval and predict must agree.
			input := ""
			for _, row := range evalTexts {
				input += row[0] + "\n"
			}
			_, answers, _ := f.rltrain(input, "predict", "--model", "MODEL")
			hits, support := 0, map[string]int{}
			for i, answer := range strings.Split(strings.TrimSuffix(answers, "\n"), "\n") {
				if label, _, _ := strings.Cut(answer, "\t"); label == evalTexts[i][1] {
					hits++
				}
				support[evalTexts[i][1]]++
			}
			if want := float64(hits) / float64(len(evalTexts)); results.Accuracy != want || results.N != len(evalTexts) {
				t.Errorf("accuracy %v over %d, want %v over %d", results.Accuracy, results.N, want, len(evalTexts))
			}
			for i, class := range results.Classes {
				expect.True(t, class.Label == labels[i] && class.Support == support[class.Label],
					"class %d is %s with %d texts, want %s with %d", i, class.Label, class.Support, labels[i], support[labels[i]])
			}
			expect.True(t, results.Cut == 1 && results.Split == "all" && results.Dataset == f.expand("TMP/eval.csv") && results.Model == f.model,
				"cut %d, split %s, dataset %s, model %s", results.Cut, results.Split, results.Dataset, results.Model)
			in := results.Intervals.Accuracy
			expect.True(t, in[0] <= results.Accuracy && in[1] >= results.Accuracy && in[0] != in[1], "interval %v around %v", in, results.Accuracy)
			expect.True(t, results.LatencyP50 != nil && results.LatencyP95 != nil && *results.LatencyP50 > 0 && *results.LatencyP95 >= *results.LatencyP50,
				"latency %v, %v", results.LatencyP50, results.LatencyP95)
			expect.Contains(t, out,
				"split all: 8 texts, 1 of them cut to the model's length", fmt.Sprintf("accuracy      %.4f", results.Accuracy), "animals",
				f.expand("Wrote MODEL/eval/logs/eval_results.json, MODEL/eval/plots/reliability.png, MODEL/eval/plots/confusion.png"),
			)
			for _, name := range []string{"reliability.png", "reliability.svg", "confusion.png", "confusion.svg"} {
				info, err := os.Stat(f.model + "/eval/plots/" + name)
				expect.True(t, err == nil && info.Size() != 0, "plots/%s: %v", name, err)
			}
		})
	}
}

func TestEvalChoosesRows(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	f.write(t, "TMP/parts.jsonl", `{"q": "a cat", "subject": "animals", "part": "train"}
{"q": "a dog", "subject": "animals", "part": "test"}
{"q": "a judge", "subject": "law", "part": "test"}
{"q": "a horse", "subject": "animals", "part": "test"}
{"q": "a law", "subject": "law", "part": "validation"}
`)
	args := []string{"eval", "--model", "MODEL", "--output-dir", "TMP/out", "--dataset", "TMP/parts.jsonl", "--text-column", "q", "--label_column", "subject"}
	for _, test := range []struct {
		more  string
		split string
		n     int
	}{
		{"", "all", 5},
		{"--split-column part", "test", 3},
		{"--split-column part --split val", "val", 1},
		{"--split-column part --split validation", "val", 1},
		{"--split-column part --split train", "train", 1},
		{"--split-column part --split all", "all", 5},
		{"--split-column part --eval-samples 2", "test", 2},
	} {
		told := f.must(t, "", append(args, strings.Fields(test.more)...)...)
		expect.Same(t, test.split == "all", strings.Contains(told, "including any that the model was trained on"), "%q: training rows are spoken of", test.more)
		var results shared.LabelResults
		must.JSON(t, f.expand("TMP/out/logs/eval_results.json"), &results)
		expect.True(t, results.Split == test.split && results.N == test.n, "%q: %d rows of split %s, want %d of %s", test.more, results.N, results.Split, test.n, test.split)
	}
	expect.Fails(os.Stat(f.model+"/logs"))(t, "--output-dir left logs in the model's folder")
}

// Without --dataset, eval uses the built-in test questions and refuses a classifier with other labels.
func TestEvalBuiltin(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	f.model = policytest.Classifier(t, f.base, transformers.PoolMean, intent.Labels()...)
	f.must(t, "", "eval", "--model", "MODEL", "--max-samples", "28")
	var results shared.LabelResults
	must.JSON(t, f.model+"/eval/logs/eval_results.json", &results)
	expect.True(t, results.N == 28 && results.Split == "test" && results.Dataset == "built-in questions", "%d rows of %s, split %s", results.N, results.Dataset, results.Split)
}

// Every failure prints one line to standard error, exits with code 1, and leaves the folders unchanged.
func TestBadInput(t *testing.T) {
	file := func(name, text string) func(*testing.T, folders) {
		return func(t *testing.T, f folders) { f.write(t, name, text) }
	}
	onFile := func(name string) string { return "eval --model MODEL --dataset TMP/" + name }
	for _, test := range []struct {
		name string
		harm func(t *testing.T, f folders)
		args string
		want string
	}{
		{"no model folder", nil, "eval --model TMP/none", "loading the model: model folder TMP/none does not exist"},
		{"model is a file", file("TMP/file", ""), "predict --model TMP/file", "loading the model: model TMP/file is a file, and its name does not end in .gguf; name a GGUF file or the model's folder"},
		{"encoder in place of a classifier", nil, "predict --model BASE",
			"loading the model: BASE has no label_policy.json: it is not the folder of a trained policy"},
		{"output folder of a run", func(t *testing.T, f folders) {
			must.Do(t, os.Rename(f.model, f.tmp+"/intent_classifier_rl"))
			must.Do(t, os.Mkdir(f.model, 0o755))
		}, "predict --model TMP", "loading the model: model folder TMP has neither a config.json nor a GGUF file: it is not a model; did you mean TMP/intent_classifier_rl?"},
		{"no config.json", func(t *testing.T, f folders) { f.remove(t, "BASE/config.json") }, "predict --model MODEL",
			"loading the model: MODEL/adapter_config.json: base_model_name_or_path: model folder BASE has neither a config.json nor a GGUF file: it is not a model"},
		{"unknown model_type", func(t *testing.T, f folders) { f.edit(t, "BASE/config.json", `"bert"`, `"gpt5"`) }, "predict --model MODEL",
			`loading the model: transformers: BASE/config.json: model_type "gpt5" is not supported, want one of albert, bert...`},
		{"weights of another shape", func(t *testing.T, f folders) {
			f.edit(t, "BASE/config.json", `"intermediate_size": 24`, `"intermediate_size": 23`)
		}, "predict --model MODEL",
			"loading the model: transformers: BASE/model.safetensors: tensor encoder.layer.0.intermediate.dense.weight has shape [24 16], config.json asks for [23 16]"},
		{"base cut short", func(t *testing.T, f folders) { f.cut(t, "BASE/model.safetensors", 1) }, "predict --model MODEL",
			`loading the model: MODEL/adapter_config.json: base_model_name_or_path: BASE has other weights...`},
		{"head of other labels", func(t *testing.T, f folders) {
			must.Do(t, safetensors.Write(f.model+"/head.safetensors", []safetensors.Tensor{
				safetensors.FromFloat32s("head.weight", []int64{2, 16}, make([]float32, 32)),
				safetensors.FromFloat32s("head.bias", []int64{2}, make([]float32, 2)),
			}, nil))
		}, "predict --model MODEL", "loading the model: MODEL/head.safetensors: tensor head.weight has 32 values, want shape [3 16]"},
		{"no labels", func(t *testing.T, f folders) { f.remove(t, "MODEL/category_mapping.json") }, "predict --model MODEL",
			"loading the model: reading labels: open MODEL/category_mapping.json: no such file or directory"},

		{"no data file", nil, onFile("none.csv"), "--dataset: reading data set: stat TMP/none.csv: no such file or directory"},
		{"unknown label", file("TMP/d.csv", "text,label\na cat,animals\na court,laws\n"), onFile("d.csv"),
			`TMP/d.csv:3: label "laws" is not one of animals, law, physics; did you mean "law"?`},
		{"missing column", file("TMP/d.csv", "text,labels\na cat,animals\n"), onFile("d.csv"),
			`TMP/d.csv:1: no column "label"; columns are "text", "labels"; did you mean "labels"?; pass --label-column NAME`},
		{"no rows of the split", file("TMP/d.csv", "text,label,split\na cat,animals,train\n"), onFile("d.csv"),
			"TMP/d.csv has no test rows; choose another --split"},
		{"labels of another task", nil, "eval --model MODEL", `built-in questions: data/biology.jsonl:16: label "biology" is not one of animals, law, physics; pass data with the model's labels as --dataset FILE`},

		{"results below a file", file("TMP/file", ""), "eval --model MODEL --dataset EVAL --output-dir TMP/file",
			"results folder: mkdir TMP/file: not a directory; choose a writable folder"},
		{"results in place of a folder", file("MODEL/eval", ""), "eval --model MODEL --dataset EVAL",
			"results folder: mkdir MODEL/eval: not a directory; choose a writable folder"},
		{"comparison below a file", file("TMP/file", ""), "compare MODEL MODEL --dataset EVAL --output TMP/file/results.json",
			"results folder: mkdir TMP/file: not a directory; choose a writable folder"},
		{"merging below a file", file("TMP/file", ""), "merge --model MODEL --output TMP/file/merged",
			"merging: lstat TMP/file/merged: not a directory; choose a new folder"},
		{"merging into the model", nil, "merge --model MODEL --output MODEL", "merging: MODEL is not empty; choose a new folder"},
		{"report of no run", nil, "report TMP", "TMP is not a run folder: open TMP/run.json: no such file or directory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFolders(t, transformers.PoolMean)
			args := strings.ReplaceAll(test.args, "EVAL", evalFile(t, f))
			if test.harm != nil {
				test.harm(t, f)
			}
			before := f.files(t)
			code, stdout, stderr := f.rltrain("a cat\n", strings.Fields(args)...)
			expect.True(t, code == 1 && stdout == "", "exit code %d, printed %q", code, stdout)
			want := "rltrain: " + f.expand(test.want) + "\n"
			begin, more := strings.CutSuffix(want, "...\n")
			expect.True(t, stderr == want || more && strings.HasPrefix(stderr, begin), "\n got %swant %s", stderr, want)
			expect.Equal(t, before, f.files(t), "files")
		})
	}
}

func TestModelCutAnywhere(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	for _, name := range []string{"MODEL/head.safetensors", "MODEL/adapter_model.safetensors", "MODEL/label_policy.json", "BASE/model.safetensors"} {
		whole := must.Get(os.ReadFile(f.expand(name)))(t)
		for i := range 12 {
			f.write(t, name, string(whole[:i*len(whole)/12]))
			code, stdout, stderr := f.rltrain("a cat\n", "predict", "--model", "MODEL")
			expect.True(t, code == 1 && stdout == "" && strings.Contains(stderr, f.expand(filepath.Dir(name))) && strings.Count(stderr, "\n") == 1,
				"%s cut to %d of %d bytes: exit code %d, printed %q, error %q", name, i*len(whole)/12, len(whole), code, stdout, stderr)
		}
		f.write(t, name, string(whole))
	}
}

// TestEvalKeepsTrainingMetrics checks that eval never changes the metrics written by training, wherever its results go.
func TestEvalKeepsTrainingMetrics(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	must.Do(t, os.MkdirAll(f.model+"/logs", 0o755))
	f.write(t, "MODEL/logs/eval_results.json", "the run's own")
	file := evalFile(t, f)
	f.must(t, "", "eval", "--model", "MODEL", "--dataset", file)
	f.must(t, "", "eval", "--model", "MODEL", "--dataset", file, "--output", "TMP/some/figures.json")
	expect.Same(t, "the run's own", must.Read(t, f.model+"/logs/eval_results.json"), "eval wrote over the run's results")
	var results shared.LabelResults
	must.JSON(t, f.expand("TMP/some/figures.json"), &results)
	expect.True(t, results.N != 0, "--output has no figures")
}
