package transformers_test

import (
	stdcmp "cmp"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
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

func readCase(t *testing.T, name string) (c ggufCase) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(ggufCases(), name+".json"))
	if err == nil {
		err = json.Unmarshal(data, &c)
	}
	must.Do(t, err)
	return c
}

// A GGUF file gives the logits of transformers' from_pretrained(gguf_file=…), for each architecture.
func TestGGUFLogits(t *testing.T) {
	for name, dir := range ggufFolders(t) {
		t.Run(name, func(t *testing.T) {
			torchtest.NoLeaks(t)
			want := readCase(t, name)
			model := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{DType: "fp32"}))(t)
			logits := causalCase{Causal: model}.read(t, [][]int32{want.IDs}, false)
			for i, p := range want.Positions {
				for j, w := range want.Logits[i] {
					got := logits[p*model.Config.VocabSize+j]
					expect.Require(t, math.Abs(float64(got-w)) <= 1e-4, "position %d, token %d: logit %g, want %g", p, j, got, w)
				}
			}
		})
	}
}

// The tokenizer of a GGUF file gives transformers' tokens.
func TestGGUFTokens(t *testing.T) {
	for name, dir := range ggufFolders(t) {
		t.Run(name, func(t *testing.T) {
			tk := must.Open(tokenizer.Load(dir))(t)
			for _, c := range readCase(t, name).Texts {
				expect.Equal(t, c.IDs, must.Get(tk.EncodeRaw(c.Text, true))(t), c.Text)
			}
		})
	}
}
