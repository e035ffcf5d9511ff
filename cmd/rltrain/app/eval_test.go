package app

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/intent"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
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
			f.write(t, "MODEL/logs/eval_results.json", "the run's own")
			out := f.must(t, "", "eval", "--task", "intent", "--model", "MODEL", "--dataset", evalFile(t, f), "--output-rows", "TMP/rows.jsonl")
			results := must.JSON[shared.LabelResults](t, f.expand("MODEL/eval/logs/eval_results.json"))

			right := strings.Count(must.Read(t, f.expand("TMP/rows.jsonl")), `"correct":true`)
			expect.Same(t, float64(right)/float64(len(evalTexts)), results.Accuracy, "accuracy")
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
			// A latency of 10 ms or more widens its column, so words are compared, not spaces.
			expect.Contains(t, strings.Join(strings.Fields(out), " "),
				"split all: 8 texts, 1 of them cut to the model's length", fmt.Sprintf("accuracy %.4f", results.Accuracy), "animals",
				f.expand("Wrote MODEL/eval/logs/eval_results.json, MODEL/eval/plots/reliability.png, MODEL/eval/plots/confusion.png"),
			)
			for _, name := range []string{"reliability.png", "reliability.svg", "confusion.png", "confusion.svg"} {
				info, err := os.Stat(f.model + "/eval/plots/" + name)
				expect.True(t, err == nil && info.Size() != 0, "plots/%s: %v", name, err)
			}
			f.must(t, "", "eval", "--model", "MODEL", "--dataset", "TMP/eval.csv", "--output", "TMP/some/figures.json")
			expect.Same(t, results.N, must.JSON[shared.LabelResults](t, f.expand("TMP/some/figures.json")).N, "texts of --output")
			expect.Same(t, "the run's own", must.Read(t, f.model+"/logs/eval_results.json"), "eval wrote over the run's results")
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
		results := must.JSON[shared.LabelResults](t, f.expand("TMP/out/logs/eval_results.json"))
		expect.True(t, results.Split == test.split && results.N == test.n, "%q: %d rows of split %s, want %d of %s", test.more, results.N, results.Split, test.n, test.split)
	}
	expect.Fails(os.Stat(f.model+"/logs"))(t, "--output-dir left logs in the model's folder")
}

// Without --dataset, eval uses the built-in test questions and refuses a classifier with other labels.
func TestEvalBuiltin(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	f.model = policytest.Classifier(t, f.base, transformers.PoolMean, intent.Labels()...)
	f.must(t, "", "eval", "--model", "MODEL", "--max-samples", "28")
	results := must.JSON[shared.LabelResults](t, f.model+"/eval/logs/eval_results.json")
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
		{"base cut short", func(t *testing.T, f folders) { must.Do(t, os.Truncate(f.expand("BASE/model.safetensors"), 1000)) },
			"predict --model MODEL",
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
		{"no rows of the split", file("TMP/d.csv", "text,label,split\na cat,animals,train\n"), onFile("d.csv"),
			"TMP/d.csv has no test rows; choose another --split"},
		{"labels of another task", nil, "eval --model MODEL", `built-in questions: data/biology.jsonl:16: label "biology" is not one of animals, law, physics; pass data with the model's labels as --dataset FILE`},

		{"results below a file", file("TMP/file", ""), "eval --model MODEL --dataset EVAL --output-dir TMP/file",
			"results folder: mkdir TMP/file: not a directory; choose a writable folder"},
		{"results in place of a folder", file("MODEL/eval", ""), "eval --model MODEL --dataset EVAL",
			"results folder: mkdir MODEL/eval: not a directory; choose a writable folder"},
		{"comparison below a file", file("TMP/file", ""), "compare MODEL MODEL --dataset EVAL --output TMP/file/results.json",
			"results folder: mkdir TMP/file: not a directory; choose a writable folder"},
		{"merging into the model", nil, "merge --model MODEL --output MODEL", "merging: MODEL is not empty; choose a new folder"},
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

func TestCompare(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	other := policytest.Classifier(t, f.base, transformers.PoolFamily, labels...)
	data := evalFile(t, f)
	out := f.must(t, "", "compare", "MODEL", other, "--dataset", data, "--output", "TMP/new/results.json")
	results := must.JSON[compareResults](t, f.expand("TMP/new/results.json"))
	for _, figure := range []struct {
		name string
		d    rl.Difference
		a, b float64
	}{
		{"accuracy", results.Comparison.Accuracy, results.A.Accuracy, results.B.Accuracy},
		{"F1", results.Comparison.F1Macro, results.A.F1Macro, results.B.F1Macro},
		{"ECE", results.Comparison.ECE, results.A.ECE, results.B.ECE},
		{"Brier", results.Comparison.Brier, results.A.Brier, results.B.Brier},
	} {
		d := figure.d
		expect.True(t, d.A == figure.a && d.B == figure.b && d.Difference == d.B-d.A && d.Interval[0] <= d.Difference && d.Interval[1] >= d.Difference,
			"%s: %+v of %v and %v", figure.name, d, figure.a, figure.b)
	}
	expect.True(t, results.A.Model == f.model && results.B.Model == other && results.Comparison.N == len(evalTexts),
		"A %s, B %s, %d texts", results.A.Model, results.B.Model, results.Comparison.N)
	expect.Contains(t, out, "A: "+f.model, "B: "+other, "B - A", "animals")
	// compare evaluates like eval and writes no other file.
	f.must(t, "", "eval", "--model", other, "--dataset", data, "--output-dir", "TMP/eval")
	alone := must.JSON[shared.LabelResults](t, f.expand("TMP/eval/logs/eval_results.json"))
	expect.True(t, alone.Brier == results.B.Brier && alone.Accuracy == results.B.Accuracy,
		"eval gives accuracy %v and Brier %v, compare %v and %v", alone.Accuracy, alone.Brier, results.B.Accuracy, results.B.Brier)
	expect.Fails(os.Stat(f.model+"/logs"))(t, "compare wrote into the model's folder")
}

// Models with a different label order are compared label by label.
func TestCompareReordersLabels(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	other := filepath.Join(filepath.Dir(f.model), "other") // its config names the base model relative to this folder
	must.Do(t, os.CopyFS(other, os.DirFS(f.model)))
	head := must.Get(safetensors.Open(other + "/head.safetensors"))(t)
	weight := must.Get(head.Float32s("head.weight"))(t)
	bias := must.Get(head.Float32s("head.bias"))(t)
	head.Close()
	width := len(weight) / len(labels)
	turned := slices.Concat(weight[width:], weight[:width]) // law, physics, animals
	must.Do(t, safetensors.Write(other+"/head.safetensors", []safetensors.Tensor{
		safetensors.FromFloat32s("head.weight", []int64{3, int64(width)}, turned),
		safetensors.FromFloat32s("head.bias", []int64{3}, append(bias[1:3:3], bias[0])),
	}, nil))
	must.Do(t, policy.WriteMapping(other, []string{"law", "physics", "animals"}))
	f.write(t, f.expand("MODEL/config.yaml"), "# Training\nseed: 1\nepochs: 2  # --epochs\n")
	f.write(t, other+"/config.yaml", "seed: 1\nepochs: 3  # default\nlora_r: 8\n")
	out := f.must(t, "", "compare", "MODEL", other, "--dataset", evalFile(t, f), "--output", "TMP/results.json")
	for setting, want := range map[string]bool{"epochs   2  3": true, "lora_r      8": true, "seed": false} {
		expect.Same(t, want, strings.Contains(out, setting), "settings that differ: %q is there: %v\n%s", setting, !want, out)
	}
	results := must.JSON[compareResults](t, f.expand("TMP/results.json"))
	c := results.Comparison
	expect.True(t, c.Accuracy.Difference == 0 && c.F1Macro.Difference == 0 && max(c.Brier.Difference, -c.Brier.Difference) <= 1e-6, "%+v", c)
}

func TestCompareNeedsTheSameLabels(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	for _, test := range []struct {
		labels []string
		want   string
	}{
		{[]string{"animals", "law", "chemistry"}, `only MODEL has "physics"; only OTHER has "chemistry"`},
		{[]string{"a", "animals", "b", "c", "d", "e", "f", "law", "physics"}, `only OTHER has "a", "b", "c", "d", "e" and 1 more`},
	} {
		other := policytest.Classifier(t, f.base, transformers.PoolMean, test.labels...)
		f.fails(t, 1, "the models have different labels: "+strings.ReplaceAll(test.want, "OTHER", other), "compare", "MODEL",
			other, "--dataset", evalFile(t, f))
	}
}

// TestCompareByRewards scores two models' completions of the same prompts with a classifier and an expression.
func TestCompareByRewards(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/p.jsonl", `{"prompt": "one "}`+"\n"+`{"prompt": "two "}`+"\n"+`{"prompt": "`+strings.Repeat("long ", 40)+`"}`+"\n"+`{"prompt": "`+strings.Repeat("long ", 4000)+`"}`+"\n")
	for name, seed := range map[string]uint64{"TMP/a": 1, "TMP/b": 2} {
		must.Do(t, policy.TinyModel(f.expand(name), 1, 32, seed))
	}
	critic := policytest.Classifier(t, policytest.Encoder(t), transformers.PoolMean, "bad", "good")
	compare := "compare --task preference --dataset TMP/p.jsonl --threads 1 --max-new-tokens 3 --output TMP/c.json "
	read := func() (r rewardComparison) {
		t.Helper()
		must.Do(t, files.LoadJSON(f.expand("TMP/c.json"), &r))
		return r
	}
	stdout := f.must(t, "", strings.Fields(compare+"--reward model:"+critic+"#good -n 4 TMP/a TMP/b")...)
	r := read()
	expect.True(t, r.Prompts == 2 && r.TooLong == 1 && r.Failed == 1 && r.Mean.A > 0 && r.Mean.A != r.Mean.B && strings.Contains(stdout, "skipped 1 prompts that leave no room"), "%+v\n%s", r, stdout)
	f.must(t, "", strings.Fields(compare+"--reward expr:'length' TMP/a TMP/a")...)
	r = read()
	expect.True(t, r.Mean.Difference == 0 && r.Wins.Value == 0.5 && r.Mean.A == 3, "a model compared with itself: %+v", r)
	f.usages(t, "", map[string]string{
		compare + "TMP/a TMP/b":                                                                            "needs --dataset FILE with prompts, and --reward",
		compare + "--reward model:TMP/nowhere TMP/a TMP/b":                                                 "--reward: ",
		compare + "--reward accuracy TMP/a TMP/b":                                                          "--reward: ",
		compare + "--reward rubric:TMP/nowhere TMP/a TMP/b":                                                "--reward: ",
		compare + "--reward expr:'length' --judge TMP/a TMP/a TMP/b":                                       "--judge: no reward of expr:'length' uses a judge",
		compare + "--reward expr:'length' --n 0 TMP/a TMP/b":                                               "--n: 0 is out of range",
		compare + "--reward expr:'length' --model TMP/a TMP/a TMP/b":                                       "name two folders of models or adapters",
		strings.Replace(compare, "new-tokens 3", "new-tokens x", 1) + "--reward expr:'length' TMP/a TMP/b": "--max-new-tokens: \"x\"",
	})
	f.usage(t, "--reward: does not apply to task sum_digits", strings.Fields("compare --task sum_digits --reward expr:'length' TMP/a TMP/b")...)
}

// TestReports writes a run's page, compares it with another run, and serves it on localhost only.
func TestReports(t *testing.T) {
	f := started(t)
	options := exercise()
	f.must(t, "", append(options, "--seed", "1")...)
	f.must(t, "", append(options, "--seed", "2")...)
	dir := f.expand("TMP/out/sum_digits_rl")
	expect.Same(t, dir+"/report.html\n", f.must(t, "", "report", dir), "printed")
	out := f.must(t, "", "report", dir, dir+".1", "--output", "TMP/both.html")
	both := must.Read(t, f.expand("TMP/both.html"))
	expect.True(t, strings.Contains(out, "both.html") && strings.Contains(both, "<td>seed</td><td>2</td><td>1</td>"), "printed %q, and the page does not say what differs", out)
	f.refusals(t, "", map[string]string{
		"report TMP/start":                 "TMP/start is not a run folder: open TMP/start/run.json: no such file or directory",
		"report " + dir + " TMP/start":     "is not a run folder",
		"report TMP/out":                   "did you mean TMP/out/sum_digits_rl",
		"report " + dir + " --port 80":     "--port: needs --watch",
		"report DIR --watch --output x":    "--output: conflicts with --watch",
		"report DIR --watch --port 123456": "--port: 123456 is out of range",
	})
	before := f.files(t)
	handler := watched([]string{dir}, "127.0.0.1:1234")
	ask := func(path, host string) (int, string) {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = host
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	code, page := ask("/", "127.0.0.1:1234")
	expect.True(t, code == 200 && strings.Contains(page, `fetch("stamp")`), "the page: %d", code)
	_, stamp := ask("/stamp", "localhost:1234")
	_, same := ask("/stamp", "localhost:1234")
	expect.True(t, same == stamp, "the stamp changes by itself")
	log, err := os.OpenFile(filepath.Join(dir, "logs", "metrics.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = log.WriteString("{\"step\":9}\n")
	}
	expect.Require(t, err == nil && log.Close() == nil, "%v", err)
	_, other := ask("/stamp", "localhost:1234")
	expect.True(t, other != stamp, "the stamp stays where there is more")
	code, _ = ask("/", "evil.example")
	expect.Same(t, http.StatusForbidden, code, "another host gets")
	code, _ = ask("/run.json", "127.0.0.1:1234")
	expect.Same(t, http.StatusNotFound, code, "another path gets")
	after := f.files(t)
	expect.True(t, len(after) == len(before), "watching made %d files", len(after)-len(before))
}
