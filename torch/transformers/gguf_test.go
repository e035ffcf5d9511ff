package transformers_test

import (
	stdcmp "cmp"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/gguf/convert"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// ggufCase has the results of transformers for a GGUF file; scripts/fixtures/gguf_models.py writes them.
type ggufCase struct {
	IDs       []int32     `json:"ids"`
	Positions []int       `json:"positions"`
	Logits    [][]float32 `json:"logits"`
	Texts     []struct {
		Text string  `json:"text"`
		IDs  []int32 `json:"ids"`
	} `json:"texts"`
}

// ggufCases is the folder of GGUF files with their cases: testdata, or that of a larger model by
// scripts/gguf_parity.py.
func ggufCases() string {
	return stdcmp.Or(os.Getenv("RLTRAIN_GGUF_CASES"), filepath.Join("testdata", "gguf"))
}

// ggufFolders are the model folders of the GGUF files, by name.
func ggufFolders(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(ggufCases(), "*.gguf"))
	expect.Require(t, err == nil && len(paths) != 0, "no GGUF files: %v", err)
	folders := map[string]string{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".gguf")
		folders[name] = t.TempDir()
		must.Do(t, convert.WriteFolder(folders[name], path, nil))
	}
	return folders
}

func readCase(t *testing.T, name string) ggufCase {
	t.Helper()
	return must.Into[ggufCase](t, json.Unmarshal, []byte(must.Read(t, filepath.Join(ggufCases(), name+".json"))))
}

// A GGUF file gives the logits and tokens of transformers' from_pretrained(gguf_file=…), for each architecture.
func TestGGUF(t *testing.T) {
	for name, dir := range ggufFolders(t) {
		t.Run(name, func(t *testing.T) {
			torchtest.NoLeaks(t)
			want := readCase(t, name)
			model := loadFP32(t, dir)
			logits := causalCase{Causal: model}.read(t, [][]int32{want.IDs}, false)
			for i, p := range want.Positions {
				torchtest.Near(t, logits[p*model.Config.VocabSize:][:len(want.Logits[i])], want.Logits[i], 1e-4, "logits")
			}
			tk := must.Open(tokenizer.Load(dir))(t)
			for _, c := range want.Texts {
				expect.Equal(t, c.IDs, must.Get(tk.EncodeRaw(c.Text, true))(t), c.Text)
			}
		})
	}
}

// loadFP32 loads a model folder.
func loadFP32(t *testing.T, dir string) *transformers.Causal {
	t.Helper()
	return must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{DType: "fp32"}))(t)
}

// exported writes a model as GGUF, reads it again and returns the folder.
func exported(t *testing.T, model *transformers.Causal, o transformers.GGUFOptions) string {
	t.Helper()
	path, dir := filepath.Join(t.TempDir(), "m.gguf"), t.TempDir()
	must.Do(t, model.SaveGGUF(path, o))
	must.Do(t, convert.WriteFolder(dir, path, nil))
	return dir
}

// An F32 export computes the same after reading it again, from a GGUF file and from a folder of safetensors.
func TestExportRoundTrip(t *testing.T) {
	for name, dir := range ggufFolders(t) {
		t.Run(name, func(t *testing.T) {
			torchtest.NoLeaks(t)
			c := readCase(t, name)
			model := loadFP32(t, dir)
			want := causalCase{Causal: model}.read(t, [][]int32{c.IDs}, false)
			folder := t.TempDir()
			must.Do(t, model.Save(folder, transformers.SaveOptions{DType: "fp32"}))
			_, err := os.Stat(filepath.Join(folder, convert.WeightsFile))
			expect.Require(t, err != nil, "the saved folder has a GGUF file")
			for _, from := range []*transformers.Causal{model, loadFP32(t, folder)} {
				again := exported(t, from, transformers.GGUFOptions{Type: gguf.F32, Name: "m"})
				got := causalCase{Causal: loadFP32(t, again)}.read(t, [][]int32{c.IDs}, false)
				d := torchtest.MaxDiff(got, want) // Gemma's norms are rounded once more
				expect.True(t, d <= 2e-5, "logits differ by %g", d)
				tk := must.Open(tokenizer.Load(again))(t)
				for _, text := range c.Texts {
					ids, err := tk.EncodeRaw(text.Text, true)
					expect.True(t, err == nil && slices.Equal(ids, text.IDs), "%q: tokens %v, %v, want %v", text.Text, ids, err, text.IDs)
				}
				if from.Dir == folder {
					old, _ := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
					template, err := os.ReadFile(filepath.Join(again, "chat_template.jinja"))
					expect.True(t, err == nil && string(template) == string(old), "the chat template became %q, %v", template, err)
				}
			}
		})
	}
}

// Quantised exports have the requested types, and F32 for 1-D tensors.
func TestExportTypes(t *testing.T) {
	model := loadFP32(t, ggufFolders(t)["llama-F16"])
	for _, kind := range []gguf.Type{gguf.F16, gguf.BF16, gguf.Q8_0, gguf.Q4_0, gguf.Q4_1, gguf.Q4_K} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		must.Do(t, model.SaveGGUF(path, transformers.GGUFOptions{Type: kind}))
		f := must.Open(gguf.Open(path))(t)
		want := map[string]gguf.Type{"blk.0.attn_norm.weight": gguf.F32, "blk.1.ffn_up.weight": kind, "token_embd.weight": kind, "output.weight": kind}
		if strings.HasPrefix(string(kind), "Q4") {
			want["token_embd.weight"], want["output.weight"] = gguf.Q8_0, gguf.Q8_0
		}
		if kind == gguf.Q4_K {
			want["blk.1.ffn_up.weight"] = gguf.Q5_0 // its rows have 32 values
		}
		for name, kind := range want {
			tensor, ok := f.Tensor(name)
			expect.True(t, ok && tensor.Type == kind, "%s: %s of type %s, want %s", kind, name, tensor.Type, kind)
		}
	}
}

// Weights and metadata can be changed during the export, for example to merge adapters.
func TestExportChanges(t *testing.T) {
	dir := ggufFolders(t)["qwen2-Q8_0"]
	c := readCase(t, "qwen2-Q8_0")
	change := map[string]func([]float32){
		"model.layers.0.mlp.up_proj.weight": func(w []float32) { w[0] += 1 },
		"model.embed_tokens.weight":         func(w []float32) { w[5] += 1 }, // unties the output layer
	}
	changed := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{DType: "fp32", Change: change}))(t)
	want := causalCase{Causal: changed}.read(t, [][]int32{c.IDs}, false)
	again := exported(t, loadFP32(t, dir), transformers.GGUFOptions{Type: gguf.F32, Change: change, Set: []gguf.Pair{{Key: "tokenizer.chat_template", Value: "own"}}})
	template, err := os.ReadFile(filepath.Join(again, "chat_template.jinja"))
	expect.True(t, err == nil && string(template) == "own", "the chat template is %q, %v", template, err)
	got := causalCase{Causal: loadFP32(t, again)}.read(t, [][]int32{c.IDs}, false)
	torchtest.Near(t, got, want, 1e-6, "logits")
}

// The error names what GGUF cannot represent.
func TestExportRefuses(t *testing.T) {
	shape := transformers.LlamaShape{Vocab: 99, Hidden: 32, Layers: 1, Heads: 1, KVHeads: 1, Intermediate: 32, RopeTheta: 1e4}
	dir := t.TempDir()
	must.Do(t, transformers.WriteLlama(dir, shape, "F32", 1))
	expect.Error(t, loadFP32(t, dir).SaveGGUF(filepath.Join(t.TempDir(), "m.gguf"), transformers.GGUFOptions{Type: gguf.F32}), "WordLevel")
	expect.Error(t, loadFP32(t, dir).SaveGGUF(filepath.Join(t.TempDir(), "m.gguf"), transformers.GGUFOptions{Type: gguf.Q6_K}), "Q6_K")
}
