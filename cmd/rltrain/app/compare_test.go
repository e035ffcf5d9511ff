package app

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

func TestCompare(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	other := policytest.Classifier(t, f.base, transformers.PoolFamily, labels...)
	data := evalFile(t, f)
	out := f.must(t, "", "compare", "MODEL", other, "--dataset", data, "--output", "TMP/new/results.json")
	var results compareResults
	must.JSON(t, f.expand("TMP/new/results.json"), &results)
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
	var alone shared.LabelResults
	must.JSON(t, f.expand("TMP/eval/logs/eval_results.json"), &alone)
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
	var results compareResults
	must.JSON(t, f.expand("TMP/results.json"), &results)
	c := results.Comparison
	expect.True(t, c.Accuracy.Difference == 0 && c.F1Macro.Difference == 0 && max(c.Brier.Difference, -c.Brier.Difference) <= 1e-6, "%+v", c)
}

func TestCompareNeedsTheSameLabels(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	for _, test := range []struct {
		labels []string
		want   string
	}{
		{[]string{"animals", "law"}, `only MODEL has "physics"`},
		{[]string{"animals", "law", "chemistry"}, `only MODEL has "physics"; only OTHER has "chemistry"`},
		{[]string{"a", "animals", "b", "c", "d", "e", "f", "law", "physics"}, `only OTHER has "a", "b", "c", "d", "e" and 1 more`},
	} {
		other := policytest.Classifier(t, f.base, transformers.PoolMean, test.labels...)
		code, _, stderr := f.rltrain("", "compare", "MODEL", other, "--dataset", evalFile(t, f))
		want := "rltrain: the models have different labels: " + strings.ReplaceAll(f.expand(test.want), "OTHER", other) + "\n"
		expect.True(t, code == 1 && stderr == want, "exit code %d\n got %swant %s", code, stderr, want)
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
	if r.Prompts != 2 || r.TooLong != 1 || r.Failed != 1 || r.Mean.A <= 0 || r.Mean.A == r.Mean.B || !strings.Contains(stdout, "skipped 1 prompts that leave no room") {
		t.Errorf("%+v\n%s", r, stdout)
	}
	f.must(t, "", strings.Fields(compare+"--reward expr:'length' TMP/a TMP/a")...)
	r = read()
	expect.True(t, r.Mean.Difference == 0 && r.Wins.Value == 0.5 && r.Mean.A == 3, "a model compared with itself: %+v", r)
	for args, want := range map[string]string{
		compare + "TMP/a TMP/b":                                                                            "needs --dataset FILE with prompts, and --reward",
		compare + "--reward model:TMP/nowhere TMP/a TMP/b":                                                 "--reward: ",
		compare + "--reward accuracy TMP/a TMP/b":                                                          "--reward: ",
		compare + "--reward rubric:TMP/nowhere TMP/a TMP/b":                                                "--reward: ",
		compare + "--reward expr:'length' --judge TMP/a TMP/a TMP/b":                                       "--judge: no reward of expr:'length' uses a judge",
		compare + "--reward expr:'length' --n 0 TMP/a TMP/b":                                               "--n: 0 is out of range",
		compare + "--reward expr:'length' --model TMP/a TMP/a TMP/b":                                       "name two folders of models or adapters",
		strings.Replace(compare, "new-tokens 3", "new-tokens x", 1) + "--reward expr:'length' TMP/a TMP/b": "--max-new-tokens: \"x\"",
	} {
		f.usage(t, want, strings.Fields(args)...)
	}
	f.usage(t, "--reward: does not apply to task sum_digits", strings.Fields("compare --task sum_digits --reward expr:'length' TMP/a TMP/b")...)
}

// TestReports writes a run's page, compares it with another run, and serves it on localhost only.
func TestReports(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyModel(f.expand("TMP/start"), 1, 32, 1))
	options := drop(exercise(), "--tiny-layers", "--tiny-hidden")
	f.must(t, "", append(options, "--seed", "1")...)
	f.must(t, "", append(options, "--seed", "2")...)
	dir := f.expand("TMP/out/sum_digits_rl")
	expect.Same(t, dir+"/report.html\n", f.must(t, "", "report", dir), "printed")
	out := f.must(t, "", "report", dir, dir+".1", "--output", "TMP/both.html")
	both := must.Read(t, f.expand("TMP/both.html"))
	expect.True(t, strings.Contains(out, "both.html") && strings.Contains(both, "<td>seed</td><td>2</td><td>1</td>"), "printed %q, and the page does not say what differs", out)
	for args, want := range map[string]string{
		"report":                           "report needs 1 argument, DIR..., not 0",
		"report TMP/start":                 "is not a run folder",
		"report " + dir + " TMP/start":     "is not a run folder",
		"report TMP/out":                   "did you mean TMP/out/sum_digits_rl",
		"report " + dir + " --port 80":     "--port: needs --watch",
		"report DIR --watch --output x":    "--output: conflicts with --watch",
		"report DIR --watch --port 123456": "--port: 123456 is out of range",
	} {
		code, _, errs := f.rltrain("", strings.Fields(args)...)
		expect.True(t, code != 0 && strings.Contains(errs, f.expand(want)), "%s: exit code %d, %q; want %q", args, code, errs, want)
	}
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
