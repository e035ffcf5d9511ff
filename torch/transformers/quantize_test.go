package transformers_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TestQuantizeOnLoading: a model quantised on loading is close to the stored one. Save writes the dequantised weights,
// which give the same model without blocks.
func TestQuantizeOnLoading(t *testing.T) {
	for _, name := range []string{"llama", "gpt2", "phi3", "gpt_neox", "gemma2"} {
		t.Run(name, func(t *testing.T) {
			plain := openCausal(t, name, transformers.CausalOptions{DType: "fp32"})
			c := openCausal(t, name, transformers.CausalOptions{DType: "int8"})
			expect.Equal(t, []torch.QuantType{torch.Int8}, c.Quantised(), "quantised")
			expect.Same(t, plain.Parameters, c.Parameters, "%d parameters, want %d", c.Parameters, plain.Parameters)
			want, got := plain.read(t, c.sequences, false), c.read(t, c.sequences, false)
			e := torchtest.RelativeError(got, want)
			expect.True(t, e <= 0.05 && e != 0, "logits differ by %g", e)
			rounding := torchtest.RelativeError(openCausal(t, name, transformers.CausalOptions{DType: "bf16"}).read(t, c.sequences, false), want)
			dir := t.TempDir()
			must.Do(t, c.Save(dir, transformers.SaveOptions{}))
			again := causalCase{Causal: loadFP32(t, dir)}.read(t, c.sequences, false)
			// On processors with fast bf16, a quantised model computes in it: the saved model must be as close as the
			// bf16 model is to itself in fp32.
			e = torchtest.RelativeError(got, again)
			expect.True(t, e <= 1.2*rounding, "logits of what was saved differ by %g, bf16's rounding is %g", e, rounding)
		})
	}
}

// TestBlocksStayAsStored: GGUF blocks of types that the core has are not dequantised on loading; others are.
func TestBlocksStayAsStored(t *testing.T) {
	for name, dir := range ggufFolders(t) {
		t.Run(name, func(t *testing.T) {
			torchtest.NoLeaks(t)
			_, kind, _ := strings.Cut(name, "-")
			quant := torch.QuantType(strings.ToLower(kind))
			c := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{}))(t)
			expect.Same(t, quant.Known(), slices.Contains(c.Quantised(), quant), "quantised as %v", c.Quantised())
			plain := loadFP32(t, dir)
			ids := [][]int32{readCase(t, name).IDs}
			e := torchtest.RelativeError(causalCase{Causal: c}.read(t, ids, false), causalCase{Causal: plain}.read(t, ids, false))
			expect.True(t, e <= 0.03, "logits differ by %g", e)
			wide := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{DType: "bf16"}))(t)
			// Identical if the processor has bf16 products, else the layers' blocks are not rounded.
			diff := cmp.Diff(generated(t, wide, ids[0], 8, 0), generated(t, c, ids[0], 8, 0), cmpopts.EquateApprox(0, 0.03))
			expect.True(t, !quant.Known() || diff == "", "generated tokens with bf16 weights (-), with blocks (+):\n%s", diff)
		})
	}
}

// generated returns the events of greedy decoding with an adapter: n tokens and their log-probs.
func generated(t *testing.T, c *transformers.Causal, prompt []int32, n, adapter int) (all []torch.Event) {
	e := must.Open(torch.NewEngine(c.Model, torch.EngineConfig{Slots: 1}))(t)
	must.Get(e.Submit(torch.Request{Prompt: prompt, Samples: 1, MaxNew: n, Seed: 1, Adapter: adapter}))(t)
	for e.Unfinished() > 0 {
		all = append(all, must.Get(e.Step(torch.StepTokens()))(t)...)
	}
	return all
}

// TestQuantizeRefuses weights that do not fit blocks; the error names the weight.
func TestQuantizeRefuses(t *testing.T) {
	dir := folder(t, "llama", func(map[string]safetensors.Tensor) {})
	expect.Failure(transformers.LoadCausal(dir, transformers.CausalOptions{DType: "nf4"}))(t, "layers.0.q.weight has 24 inputs, which nf4 cannot hold")
	expect.Failure(transformers.LoadCausal(filepath.Join("testdata", "causal", "llama"), transformers.CausalOptions{DType: "int8", Trainable: true}))(t, "dtype int8 is not possible")
}

// writePlain writes a small model in bfloat16.
func writePlain(t *testing.T, dir string) {
	t.Helper()
	shape := transformers.LlamaShape{Vocab: 50, Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, Intermediate: 128, RopeTheta: 1e4}
	must.Do(t, transformers.WriteLlama(dir, shape, safetensors.BF16, 3))
}

func logitsOf(t *testing.T, dir, dtype string) []float32 {
	t.Helper()
	c := must.Open(transformers.LoadCausal(dir, transformers.CausalOptions{DType: dtype}))(t)
	return causalCase{Causal: c}.read(t, [][]int32{{3, 1, 4, 1, 5, 9}, {2, 6}}, false)
}

// TestBitsandbytesFolder: NF4 weights stored by bitsandbytes give a model bit-identical to quantising the weights on
// loading, and Save writes a folder without quantisation.
func TestBitsandbytesFolder(t *testing.T) {
	torchtest.NoLeaks(t)
	plain, stored := filepath.Join(t.TempDir(), "plain"), t.TempDir()
	writePlain(t, plain)
	var tensors []safetensors.Tensor
	for name, tensor := range tensorsOf(t, plain) {
		if !strings.Contains(name, "_proj.") {
			tensors = append(tensors, tensor)
			continue
		}
		tensors = append(tensors, nf4Tensors(t, tensor)...)
	}
	must.Do(t, safetensors.Write(filepath.Join(stored, "model.safetensors"), tensors, nil))
	config := must.Read(t, filepath.Join(plain, "config.json"))
	must.Write(t, filepath.Join(stored, "config.json"), strings.Replace(config, "{", `{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4"},`, 1))
	want := logitsOf(t, plain, "nf4")
	expect.Equal(t, want, logitsOf(t, stored, ""), "logits")
	c := must.Open(transformers.LoadCausal(stored, transformers.CausalOptions{}))(t)
	saved := t.TempDir()
	must.Do(t, c.Save(saved, transformers.SaveOptions{}))
	// Saving rounds to bfloat16 what processors without its products take for float32.
	got := logitsOf(t, saved, "")
	expect.True(t, torchtest.MaxDiff(got, want) <= 2e-3, "logits of what was saved differ by %g", torchtest.MaxDiff(got, want))
	for name, tensor := range tensorsOf(t, saved) {
		expect.Same(t, safetensors.BF16, tensor.DType, "%s was saved as", name)
	}
}

// TestPackedFolder: a folder whose layers a package quantised gives the model of the values, with adapters' changes, and Save
// writes these values.
func TestPackedFolder(t *testing.T) {
	torchtest.NoLeaks(t)
	plain, stored, saved := filepath.Join(t.TempDir(), "plain"), t.TempDir(), t.TempDir()
	writePlain(t, plain)
	var dense, packed []safetensors.Tensor
	for name, tensor := range tensorsOf(t, plain) {
		if !strings.Contains(name, "_proj.") {
			dense, packed = append(dense, tensor), append(packed, tensor)
			continue
		}
		values := must.Get(tensor.Float32s())(t)
		codes := make([]byte, len(values))
		for i, v := range values {
			code := int8(max(-127, min(127, v*1024)))
			codes[i], values[i] = byte(code), float32(code)/1024
		}
		scale := make([]float32, tensor.Shape[0])
		for i := range scale {
			scale[i] = 1. / 1024
		}
		dense = append(dense, safetensors.FromFloat32sAs(safetensors.BF16, name, tensor.Shape, values))
		packed = append(packed, safetensors.Tensor{Name: name, DType: safetensors.I8, Shape: tensor.Shape, Data: codes},
			safetensors.FromFloat32sAs(safetensors.BF16, name+"_scale", []int64{tensor.Shape[0], 1}, scale))
	}
	must.Do(t, safetensors.Write(filepath.Join(plain, "model.safetensors"), dense, nil))
	must.Do(t, safetensors.Write(filepath.Join(stored, "model.safetensors"), packed, nil))
	config := must.Read(t, filepath.Join(plain, "config.json"))
	must.Write(t, filepath.Join(stored, "config.json"), strings.Replace(config, "{", `{"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized"},`, 1))
	for _, dtype := range []string{"", "fp32", "int8", "nf4"} {
		expect.Equal(t, logitsOf(t, stored, dtype), logitsOf(t, plain, dtype))
	}
	must.Do(t, must.Open(transformers.LoadCausal(stored, transformers.CausalOptions{}))(t).Save(saved, transformers.SaveOptions{}))
	expect.Equal(t, tensorsOf(t, saved), tensorsOf(t, plain))
	expect.Equal(t, logitsOf(t, saved, ""), logitsOf(t, plain, ""))
}

// nf4Tensors returns a weight as bitsandbytes stores it.
func nf4Tensors(t *testing.T, w safetensors.Tensor) []safetensors.Tensor {
	t.Helper()
	v := must.Open(torch.Constant(must.Get(w.Float32s())(t), w.Shape...))(t)
	rows := must.Get(must.Open(v.Quantize(torch.NF4))(t).ReadBytes())(t)
	var codes, absmax []byte
	for block := range slices.Chunk(rows, 36) {
		absmax = append(absmax, block[:4]...)
		codes = append(codes, block[4:]...)
	}
	state := fmt.Appendf(nil, `{"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [%d, %d]}`, w.Shape[0], w.Shape[1])
	return []safetensors.Tensor{
		{Name: w.Name, DType: "U8", Shape: []int64{int64(len(codes)), 1}, Data: codes},
		{Name: w.Name + ".absmax", DType: safetensors.F32, Shape: []int64{int64(len(absmax) / 4)}, Data: absmax},
		{Name: w.Name + ".quant_map", DType: safetensors.F32, Shape: []int64{16}, Data: make([]byte, 64)},
		{Name: w.Name + ".quant_state.bitsandbytes__nf4", DType: "U8", Shape: []int64{int64(len(state))}, Data: state},
	}
}
