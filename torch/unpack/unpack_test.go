package unpack_test

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/unpack"
)

// A folder is one case of the fixture: its configuration and its tensors. scripts/fixtures/packed.py writes it with the packages.
type folder struct {
	config      string
	dequantized safetensors.Tensor
	tensors     map[string]safetensors.Tensor // of the weight "layer"
}

func fixture(t *testing.T) map[string]folder {
	t.Helper()
	file := must.Get(safetensors.Open(filepath.Join("testdata", "packed.safetensors")))(t)
	defer file.Close()
	cases := map[string]folder{}
	for name, config := range file.Metadata() {
		if name != "format" {
			cases[name] = folder{config: config, tensors: map[string]safetensors.Tensor{}}
		}
	}
	for _, name := range file.Names() {
		of, part, _ := strings.Cut(name, ".")
		e, _ := file.Lookup(name)
		tensor := safetensors.Tensor{Name: "layer." + part, DType: e.DType, Shape: e.Shape, Data: must.Get(file.Bytes(name))(t)}
		if f := cases[of]; part == "dequantized" {
			f.dequantized = tensor
			cases[of] = f
		} else {
			f.tensors[part] = tensor
		}
	}
	return cases
}

// open writes the tensors to a model folder and unpacks them.
func (f folder) open(t *testing.T) (*safetensors.Model, error) {
	t.Helper()
	dir := t.TempDir()
	must.Do(t, safetensors.Write(filepath.Join(dir, "model.safetensors"), slices.Collect(maps.Values(f.tensors)), nil))
	m := must.Open(safetensors.OpenModel(dir))(t)
	formats, err := unpack.Read(json.RawMessage(f.config))
	if err == nil {
		err = unpack.Weights(m, formats)
	}
	return m, err
}

// TestPackages: each package's weights have the bits that the package dequantises them to, and nothing else stays in the folder.
func TestPackages(t *testing.T) {
	cases := fixture(t)
	expect.True(t, len(cases) == 21, "%d cases", len(cases))
	listed := cases["gptq_v2"] // which lists the group of each input
	listed.config = strings.Replace(listed.config, `"group_size": 32`, `"group_size": 48`, 1)
	cases["gptq_v2 with other groups"] = listed
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			m := must.Get(f.open(t))(t)
			weight := "layer.weight"
			if name == "mxfp4" {
				weight = "layer.gate_up_proj"
			}
			expect.Equal(t, m.Names(), []string{weight})
			_, e, _ := m.Entry(weight)
			want := f.dequantized
			expect.Equal(t, []any{e.DType, e.Shape}, []any{want.DType, want.Shape})
			expect.True(t, slices.Equal(must.Get(m.Bytes(weight))(t), want.Data), "bits differ from the package's")
			wide := must.Get(m.Float32s(weight))(t)
			parts := int(want.Shape[0])
			for at := range parts {
				expect.True(t, slices.Equal(must.Get(m.Part(weight, at, parts))(t), wide[at*len(wide)/parts:(at+1)*len(wide)/parts]), "part %d differs", at)
			}
			expect.Equal(t, must.Get(want.Float32s())(t), wide, "values")
		})
	}
}

// TestRefused: what is not known, or does not fit, is an error that names it.
func TestRefused(t *testing.T) {
	cases := fixture(t)
	for _, c := range []struct {
		of, old, new string
		drop         string              // this part
		change       *safetensors.Tensor // a part in the place of another
		want         string
	}{
		{of: "awq", old: "awq", new: "hqq", want: `quant_method "hqq" is not supported, want one of awq, bitsandbytes, compressed-tensors, fp8, gptq, mxfp4`},
		{of: "awq", old: "gemm", new: "gemv", want: `version "gemv" is not supported`},
		{of: "awq", old: `"bits": 4`, new: `"bits": 3`, want: "bits is 3, want 4"},
		{of: "awq", old: `"group_size": 32`, new: `"group_size": 16`, want: "layer: 64 inputs with 2 scales do not fit group_size [16]"},
		{of: "awq", drop: "scales", want: "tensor layer.qweight: layer.scales is missing"},
		{of: "gptq4", old: `"bits": 4`, new: `"bits": 5`, want: "bits is 5, want 2, 3, 4 or 8"},
		{of: "gptq4", old: `"bits": 4`, new: `"bits": 8`, want: "layer.qweight has shape [8 32], want [16 32]"},
		{of: "gptq4", old: `"sym": false`, new: `"checkpoint_format": "marlin"`, want: `checkpoint_format "marlin" is not supported`},
		{of: "gptq4", change: &safetensors.Tensor{Name: "layer.scales", DType: "I16", Shape: []int64{1}, Data: make([]byte, 2)}, want: "layer.scales has dtype I16"},
		{of: "gptq4", change: &safetensors.Tensor{Name: "layer.qzeros", DType: "I32", Shape: []int64{1, 4}, Data: make([]byte, 16)}, want: "layer.qzeros has shape [1 4], want [2 4]"},
		{of: "fp8", old: "[4, 16]", new: "[4]", want: "weight_block_size is [4], want two sizes"},
		{of: "fp8", old: "[4, 16]", new: "[6, 16]", want: "layer.weight_scale_inv has shape [3 2], want [2 2]"},
		{of: "packed4", old: "pack-quantized", new: "nvfp4-pack-quantized", want: `format "nvfp4-pack-quantized" is not supported`},
		{of: "packed4", old: `"num_bits": 4`, new: `"num_bits": 7`, want: "which is none of a weight [24 64] in [7] bits"},
		{of: "packed4", old: `"ignore"`, new: `"sparsity_config": {"format": "sparse-24"}, "ignore"`, want: `sparsity_config.format "sparse-24"`},
		{of: "packed4", old: `"ignore"`, new: `"transform_config": {"config_groups": {"a": {}}}, "ignore"`, want: "the weights are rotated"},
		{of: "packed4", drop: "weight_shape", want: "tensor layer.weight_packed: layer.weight_shape is missing"},
		{of: "bnb8", change: &safetensors.Tensor{Name: "layer.SCB", DType: "F32", Shape: []int64{1}, Data: make([]byte, 4)}, want: "layer.SCB has shape [1], want [6]"},
		{of: "mxfp4", change: &safetensors.Tensor{Name: "layer.gate_up_proj_scales", DType: "U8", Shape: []int64{3, 10, 1}, Data: make([]byte, 30)}, want: "layer.gate_up_proj_blocks has shape [3 10 2 16], want [3 10 1 16]"},
		{of: "mxfp4", drop: "gate_up_proj_scales", want: "layer.gate_up_proj_scales is missing"},
		{of: "bnb8", old: "load_in_8bit", new: "load_in_4bit", want: `bnb_4bit_quant_type is "", want nf4`},
	} {
		f := cases[c.of]
		f.config = strings.Replace(f.config, c.old, c.new, 1)
		f.tensors = maps.Clone(f.tensors)
		delete(f.tensors, c.drop)
		if c.change != nil {
			f.tensors[strings.TrimPrefix(c.change.Name, "layer.")] = *c.change
		}
		expect.Failure(f.open(t))(t, c.want)
	}
}

// TestBadContent: what only the data shows is an error when the weight is read.
func TestBadContent(t *testing.T) {
	cases := fixture(t)
	for of, c := range map[string]struct {
		part string
		want string
	}{
		"gptq4": {"g_idx", "layer.g_idx: input 0 is in group 9 of 2"},
		"bnb8":  {"weight_format", "weight_format is that of a GPU's tiles"},
	} {
		f := cases[of]
		bad := f.tensors[c.part]
		bad.Data = slices.Clone(bad.Data)
		bad.Data[0] = 9
		f.tensors[c.part] = bad
		expect.Failure(must.Get(f.open(t))(t).Bytes("layer.weight"))(t, c.want)
	}
}
