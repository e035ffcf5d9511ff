package transformers_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TestBinLoadsAsSafetensors: the same weights in pytorch_model.bin, in one file or in shards, make a bit-identical
// model. scripts/fixtures/pickles.py writes them.
func TestBinLoadsAsSafetensors(t *testing.T) {
	torchtest.NoLeaks(t)
	var states [2][]float32
	for i, dir := range []string{"encoders", "bin"} {
		model := must.Open(transformers.Load(filepath.Join("testdata", dir, "distilbert_odd"), ""))(t)
		states[i] = hiddenOf(t, model.Encoder)
	}
	torchtest.Near(t, states[0], states[1], 0, "the encoders")
	for _, options := range []transformers.CausalOptions{{}, {Trainable: true}, {DType: "bf16"}} {
		for i, dir := range []string{"causal", "bin"} {
			model := must.Open(transformers.LoadCausal(filepath.Join("testdata", dir, "llama_dynamic"), options))(t)
			states[i] = hiddenOf(t, model.Model)
		}
		torchtest.Near(t, states[0], states[1], 0, fmt.Sprintf("with %+v, the language models", options))
	}
}

func hiddenOf(t *testing.T, model *torch.Model) (data []float32) {
	t.Helper()
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		hidden, _ := s.Hidden(model, torch.Pack([][]int32{{5, 6, 7, 8}, {9}}), torch.Pass{})
		data = s.Read(hidden)
	})
	return data
}

// TestBinSavesAsSafetensors: a model loaded from pytorch_model.bin is saved in safetensors.
func TestBinSavesAsSafetensors(t *testing.T) {
	torchtest.NoLeaks(t)
	from := must.Open(transformers.LoadCausal(filepath.Join("testdata", "bin", "llama_dynamic"), transformers.CausalOptions{}))(t)
	dir := t.TempDir()
	must.Do(t, from.Save(dir, transformers.SaveOptions{}))
	again := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{}))(t)
	torchtest.Near(t, hiddenOf(t, from.Model), hiddenOf(t, again.Model), 0, "the saved model")
}
