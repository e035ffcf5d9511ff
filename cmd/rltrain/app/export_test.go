package app

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/gguf"
)

// trainedAdapter trains an adapter on ggufModel for a few steps, in TMP/out/chat_supervised.
func trainedAdapter(t *testing.T) (f folders, adapter string) {
	t.Helper()
	f = ggufModel(t)
	f.write(t, "TMP/rows.jsonl", strings.Repeat(`{"prompt":"hi","completion":"the cat sat"}`+"\n", 12))
	if code, _, stderr := f.rltrain("", "--task", "chat", "--model", "MODEL", "--dataset", "TMP/rows.jsonl", "--output-dir", "TMP/out",
		"--lora-r", "4", "--lora-target-modules", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "--learning-rate", "0.05", "--epochs", "10"); code != 0 {
		t.Fatal(stderr)
	}
	return f, f.expand("TMP/out/chat_supervised")
}

// greedy is a model's greedy response to "hi".
func (f folders) greedy(t *testing.T, model string) string {
	t.Helper()
	code, stdout, stderr := f.rltrain("hi\n", "generate", "--model", model, "--temperature", "0", "--max-new-tokens", "12")
	expect.Require(t, code == 0, "%s: exit code %d, %s", model, code, stderr)
	return stdout
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
	modelfile, err := os.ReadFile(f.expand("TMP/gguf/Modelfile"))
	if err != nil || !strings.HasPrefix(string(modelfile), "FROM ./chat_supervised-f32.gguf\n") || !strings.Contains(string(modelfile), `PARAMETER stop "<|im_end|>"`) {
		t.Errorf("Modelfile: %q, %v", modelfile, err)
	}
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
	if _, err := os.Stat(filepath.Join(f.tmp, "x")); err == nil {
		left, _ := os.ReadDir(filepath.Join(f.tmp, "x"))
		expect.True(t, len(left) == 0, "files were left: %v", left)
	}
}
