package transformers

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// Quantizable are the dtypes of CausalOptions that quantise.
var Quantizable = []torch.QuantType{torch.NF4, torch.Int8}

// check refuses an unknown DType or one that does not fit. quant is the type that it quantises to, "" for none.
func (o CausalOptions) check() (quant torch.QuantType, err error) {
	for _, t := range Quantizable {
		if string(t) == o.DType {
			quant = t
		}
	}
	if _, ok := dtypeOptions[o.DType]; !ok && quant == "" && o.DType != "" {
		return "", fmt.Errorf("transformers: dtype %.40q, want fp32, bf16, fp16, nf4 or int8", o.DType)
	}
	if o.Trainable && o.DType != "" && o.DType != "fp32" {
		return "", fmt.Errorf("transformers: all weights are trained in float32: dtype %s is not possible", o.DType)
	}
	if quant == "" {
		return "", nil
	}
	device, err := torch.DeviceInUse()
	if err == nil && device != "cpu" {
		err = fmt.Errorf("transformers: %s weights run on the CPU only: load the model without quantisation on %s, or use --device cpu", quant, device)
	}
	return quant, err
}

// layer reports whether a spec is a linear weight of a layer, as opposed to the embedding or the output layer.
func (s TensorSpec) layer() bool { return s.matrix() && strings.HasPrefix(s.Name, "layers.") }

// quantName is the core's name of a quantised weight.
func quantName(name string, quant torch.QuantType) string {
	return strings.TrimSuffix(name, "weight") + string(quant)
}

// packed reports whether a GGUF file stores a tensor in blocks.
func packed(e safetensors.Entry) bool { return e.Converted != nil && e.Converted.Tensor.Type.Packed() }

// packedHead is an output layer in few bits. Training and the embedding use the dense bfloat16 weight with the same values.
type packedHead struct {
	quant torch.QuantType
	rows  *torch.Var
}

// head reports whether the output layer multiplies by a spec's weight.
func (c *Config) head(spec TensorSpec) bool {
	return spec.Name == "head.weight" || spec.Name == "embed.weight" && c.TieWordEmbeddings
}

// blocks returns the stored blocks of a layer's or the output layer's weight if a GGUF file has it in a type of the core,
// or bitsandbytes in NF4. The type is "" if the weight is stored or wanted in another way.
func (o CausalOptions) blocks(files *safetensors.Model, name string, spec TensorSpec, head bool, change func([]float32)) (torch.QuantType, *torch.Var, error) {
	_, entry, _ := files.Entry(name)
	nf4 := isNF4(files, name) && torch.NF4.RowBytes(spec.Shape[1]) > 0
	if !packed(entry) && !nf4 || !spec.layer() && !head || spec.Transposed || change != nil || o.DType != "" || o.trains(spec.Name) {
		return "", nil, nil
	}
	if nf4 {
		v, err := nf4Rows(files, name, spec.Shape, spec.Shape[1])
		if err != nil {
			return "", nil, fmt.Errorf("transformers: %w", err)
		}
		return torch.NF4, v, nil
	}
	quant := torch.QuantType(strings.ToLower(string(entry.Converted.Tensor.Type)))
	if !quant.Known() {
		return "", nil, nil
	}
	p, _ := files.Packed(name)
	v, err := quant.Blocks(p.Blocks, spec.Shape[0], spec.Shape[1])
	if err != nil {
		return "", nil, fmt.Errorf("transformers: tensor %s: %w", name, err)
	}
	return quant, v, nil
}

// quantize replaces v by its rows of blocks.
func quantize(v *torch.Var, spec TensorSpec, quant torch.QuantType) (*torch.Var, error) {
	defer v.Close()
	if in := spec.Shape[1]; quant.RowBytes(in) == 0 {
		return nil, fmt.Errorf("transformers: %s has %d inputs, which %s cannot hold: it takes multiples of 64; use int8", spec.Name, in, quant)
	}
	rows, err := v.Quantize(quant)
	if err != nil {
		return nil, fmt.Errorf("transformers: quantising %s: %w", spec.Name, err)
	}
	return rows, nil
}

// quantizeValues is the rows of blocks of a weight that is not stored anywhere.
func quantizeValues(data []float32, spec TensorSpec, quant torch.QuantType) (*torch.Var, error) {
	if !slices.Contains(Quantizable, quant) {
		blocks, err := gguf.Type(strings.ToUpper(string(quant))).Quantize(data)
		if err != nil {
			return nil, fmt.Errorf("transformers: quantising %s: %w", spec.Name, err)
		}
		return quant.Blocks(blocks, spec.Shape[0], spec.Shape[1])
	}
	v, err := torch.Constant(data, spec.Shape...)
	if err != nil {
		return nil, err
	}
	return quantize(v, spec, quant)
}

// Quantised returns the types of the layers' linear weights, in order; none if they are not quantised.
func (c *Causal) Quantised() []torch.QuantType {
	return slices.Compact(slices.Sorted(maps.Values(c.quants)))
}

// dequantized returns the weight of a quantised layer as products use it, in the shape of its spec.
func (c *Causal) dequantized(spec TensorSpec) (data []float32, err error) {
	err = c.Dense(spec.Name, spec.Shape[1], func(weight *torch.Var) error {
		data, err = weight.Read()
		return err
	})
	return data, err
}

// Dense calls use with the weight of that name and number of inputs, as products use it if it is quantised.
func (c *Causal) Dense(name string, in int64, use func(weight *torch.Var) error) error {
	quant, ok := c.quants[name]
	if !ok {
		return use(c.Weights[name])
	}
	dense, err := c.Weights[quantName(name, quant)].DequantizeAsUsed(quant, in)
	if err != nil {
		return err
	}
	defer dense.Close()
	return use(dense)
}
