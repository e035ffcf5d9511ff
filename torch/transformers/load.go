package transformers

import (
	"fmt"

	"rltrain/torch"
	"rltrain/torch/safetensors"
)

// Model is a model folder, loaded: the encoder on memory-mapped weights, and the optional parts that its
// pooling or head may need.
type Model struct {
	Dir     string
	Config  *Config
	Encoder *torch.Model
	// Pooler is the dense layer [H, H] on the first token, and Head the classifier [C, H]; nil where the
	// folder has none.
	Pooler, Head *Dense
	// Parameters is the number of weights of the encoder and, where there is one, the pooler.
	Parameters int64
}

// Dense is a linear layer's weight [out, in] and bias [out].
type Dense struct{ Weight, Bias *torch.Var }

// Close frees d; a nil d is fine.
func (d *Dense) Close() {
	if d != nil {
		torch.CloseAll(d.Weight, d.Bias)
	}
}

// Close frees the model.
func (m *Model) Close() {
	m.Encoder.Close()
	m.Pooler.Close()
	m.Head.Close()
}

// Load reads a model folder. Weights are mapped, not copied, where the file holds F32; the files must not
// change while the model lives. Errors name the file, and the field or tensor that is wrong.
func Load(dir string) (*Model, error) {
	config, err := LoadConfig(dir)
	if err != nil {
		return nil, err
	}
	files, err := safetensors.OpenModel(dir)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	names, err := Resolve(config, files)
	if err != nil {
		return nil, err
	}
	weights := make(map[string]*torch.Var, len(names))
	defer func() {
		for _, v := range weights {
			v.Close()
		}
	}()
	m := &Model{Dir: dir, Config: config}
	for canonical, name := range names {
		v, err := mapAs(files, name, torch.F32)
		if err != nil {
			return nil, err
		}
		weights[canonical] = v
		_, entry, _ := files.Entry(name)
		if canonical != "classifier.weight" && canonical != "classifier.bias" {
			m.Parameters += entry.Size / entry.DType.Size()
		}
	}
	m.Encoder, err = newEncoder(config, weights)
	if err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", dir, err)
	}
	take := func(layer string) *Dense {
		weight, ok := weights[layer+".weight"]
		if !ok {
			return nil
		}
		d := &Dense{Weight: weight, Bias: weights[layer+".bias"]}
		delete(weights, layer+".weight")
		delete(weights, layer+".bias")
		return d
	}
	m.Pooler, m.Head = take("pooler.dense"), take("classifier")
	return m, nil
}

// dtypes are the stored types that weights may have; Resolve has refused the others.
var dtypes = map[safetensors.DType]torch.DType{"F32": torch.F32, "F16": torch.F16, "BF16": torch.BF16}

// mapAs is a tensor of a folder: mapped where it is stored as dtype, else a converted copy. A tensor that is
// not aligned to its elements, which the format allows, is copied too.
func mapAs(files *safetensors.Model, name string, dtype torch.DType) (*torch.Var, error) {
	path, entry, _ := files.Entry(name)
	v, err := torch.Map(path, entry.Offset, dtypes[entry.DType], entry.Shape...)
	if err == nil && (dtypes[entry.DType] != dtype || entry.Offset%entry.DType.Size() != 0) {
		mapped := v
		v, err = mapped.To(dtype)
		mapped.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("transformers: %s: tensor %s: %w", path, name, err)
	}
	return v, nil
}

func newEncoder(c *Config, weights map[string]*torch.Var) (*torch.Model, error) {
	return torch.NewEncoder(torch.EncoderConfig{
		VocabSize: c.VocabSize, HiddenSize: c.HiddenSize, Layers: c.NumHiddenLayers, Heads: c.NumAttentionHeads,
		IntermediateSize: c.IntermediateSize, MaxPositions: c.MaxPositionEmbeddings,
		TokenTypes: c.TypeVocabSize, NormEps: c.LayerNormEps,
	}, weights)
}
