package transformers_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TestQuantizeOnLoading: a model quantised as it is read is near the one that is stored, and Save writes the dequantised
// weights, which make the same model without blocks.
func TestQuantizeOnLoading(t *testing.T) {
	for _, name := range []string{"llama", "gpt2", "phi3", "gpt_neox", "gemma2"} {
		t.Run(name, func(t *testing.T) {
			plain := openCausal(t, name, transformers.CausalOptions{DType: "fp32"})
			c := openCausal(t, name, transformers.CausalOptions{DType: "int8"})
			if got := c.Quantised(); !slices.Equal(got, []torch.QuantType{torch.Int8}) {
				t.Errorf("quantised as %v", got)
			}
			if c.Parameters != plain.Parameters {
				t.Errorf("%d parameters, want %d", c.Parameters, plain.Parameters)
			}
			want, got := plain.read(t, c.sequences, false), c.read(t, c.sequences, false)
			if e := torchtest.RelativeError(got, want); e > 0.03 || e == 0 {
				t.Errorf("logits differ by %g", e)
			}
			dir := t.TempDir()
			if err := c.Save(dir, transformers.SaveOptions{}); err != nil {
				t.Fatal(err)
			}
			saved, err := transformers.LoadCausal(dir, transformers.CausalOptions{DType: "fp32"})
			if err != nil {
				t.Fatal(err)
			}
			defer saved.Close()
			again := causalCase{Causal: saved}.read(t, c.sequences, false)
			// Products of quantised weights may round their inputs, those of float32 do not.
			if e := torchtest.RelativeError(got, again); e > 0.01 {
				t.Errorf("logits of what was saved differ by %g", e)
			}
		})
	}
}

// TestBlocksStayAsStored: blocks that the core has are not dequantised as a GGUF file is read, and others are.
func TestBlocksStayAsStored(t *testing.T) {
	for name, dir := range ggufFolders(t) {
		t.Run(name, func(t *testing.T) {
			torchtest.NoLeaks(t)
			_, kind, _ := strings.Cut(name, "-")
			quant := torch.QuantType(strings.ToLower(kind))
			c, err := transformers.LoadCausal(dir, transformers.CausalOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if got := c.Quantised(); slices.Contains(got, quant) != quant.Known() {
				t.Errorf("quantised as %v", got)
			}
			plain, err := transformers.LoadCausal(dir, transformers.CausalOptions{DType: "fp32"})
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			ids := [][]int32{readCase(t, name).IDs}
			if e := torchtest.RelativeError(causalCase{Causal: c}.read(t, ids, false), causalCase{Causal: plain}.read(t, ids, false)); e > 0.03 {
				t.Errorf("logits differ by %g", e)
			}
		})
	}
}

// TestQuantizeRefuses what blocks cannot hold, naming the weight.
func TestQuantizeRefuses(t *testing.T) {
	dir := folder(t, "llama", func(map[string]safetensors.Tensor) {})
	_, err := transformers.LoadCausal(dir, transformers.CausalOptions{DType: "nf4"})
	if err == nil || !strings.Contains(err.Error(), "layers.0.q.weight has 24 inputs, which nf4 cannot hold") {
		t.Errorf("error %v", err)
	}
	_, err = transformers.LoadCausal(filepath.Join("testdata", "causal", "llama"), transformers.CausalOptions{DType: "int8", Trainable: true})
	if err == nil || !strings.Contains(err.Error(), "dtype int8 is not possible") {
		t.Errorf("error %v", err)
	}
}
