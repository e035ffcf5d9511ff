package transformers

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// Model is a loaded encoder: memory-mapped weights and the optional parts that its pooling or head needs.
type Model struct {
	Dir     string
	Config  *Config
	Encoder *torch.Model
	// Pooler is the frozen dense layer [H, H] of pooling "family" and PoolerNorm the norm [H] after it; nil if there
	// is none.
	Pooler, PoolerNorm *Dense
	// Head computes the logits [C, H], and Dense is the layer [H, H] before it. Head is nil if the folder has no head,
	// Dense also if the head has one layer.
	Dense, Head *Dense
	// Parameters counts the weights of the encoder and of the pooler, if there is one.
	Parameters int64
}

// Dense is a linear layer with weight [out, in] and bias [out], or a norm with both [H].
type Dense struct{ Weight, Bias *torch.Var }

// Close frees d; d may be nil.
func (d *Dense) Close() {
	if d != nil {
		torch.CloseAll(d.Weight, d.Bias)
	}
}

// Close frees the model.
func (m *Model) Close() {
	m.Encoder.Close()
	for _, d := range []*Dense{m.Pooler, m.PoolerNorm, m.Dense, m.Head} {
		d.Close()
	}
}

// Load reads the folder of an encoder. Weights are float32 except the encoder's embedding and linear layers, which have
// dtype "fp32", "bf16" or "fp16"; "" means bf16 on a GPU that prefers it (see [torch.PrefersBF16]), else float32.
// Weights are mapped, not copied, if the file has their type, so the files must not change while the model is in use.
// Errors name the file and the invalid field or tensor.
func Load(dir, dtype string) (*Model, error) {
	matrices, known := dtypeOptions[dtype]
	if !known && dtype != "" {
		return nil, fmt.Errorf("transformers: dtype %.40q, want fp32, bf16 or fp16", dtype)
	}
	config, err := LoadConfig(dir)
	if err != nil {
		return nil, err
	}
	if !known {
		bf16, err := torch.PrefersBF16()
		if err != nil {
			return nil, err
		}
		if matrices = torch.F32; bf16 {
			matrices = torch.BF16
		}
	}
	return load(dir, config, matrices)
}

// load reads the folder of a model; matrices is the type of the encoder's matrices.
func load(dir string, config *Config, matrices torch.DType) (*Model, error) {
	files, err := safetensors.OpenModel(dir)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	names, err := config.Resolve(files)
	if err != nil {
		return nil, err
	}
	weights, rest := map[string]*torch.Var{}, map[string]*torch.Var{} // of the encoder, of the head
	defer func() {
		for _, v := range slices.AppendSeq(slices.Collect(maps.Values(weights)), maps.Values(rest)) {
			v.Close()
		}
	}()
	m := &Model{Dir: dir, Config: config}
	for _, spec := range config.TensorNames() {
		name, ok := names[spec.Name]
		if !ok {
			continue
		}
		dtype := torch.F32
		if spec.Group == "" && spec.matrix() {
			dtype = matrices
		}
		v, err := mapAs(files, name, dtype, spec)
		if err != nil {
			return nil, err
		}
		if spec.Group == "" {
			weights[spec.Name] = v
		} else {
			rest[spec.Name] = v
		}
		if spec.Group != "head" {
			m.Parameters += spec.elements()
		}
	}
	if err := config.spreadDistances(weights); err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", dir, err)
	}
	m.Encoder, err = torch.NewModel(config.Core(), weights)
	if err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", dir, err)
	}
	if err := m.takeHead(rest); err != nil {
		m.Close()
		return nil, fmt.Errorf("transformers: %s: %w", dir, err)
	}
	return m, nil
}

// takeHead moves the pooler and the head out of rest.
func (m *Model) takeHead(rest map[string]*torch.Var) error {
	dense, out := m.Config.HeadLayers()
	parts := map[string]**Dense{dense: &m.Dense, out: &m.Head}
	for i, row := range families[m.Config.ModelType].encoder.pooler {
		parts[row.module] = []**Dense{&m.Pooler, &m.PoolerNorm}[i]
	}
	for module, into := range parts {
		weight, ok := rest[module+".weight"]
		if !ok {
			continue
		}
		bias := rest[module+".bias"]
		if bias == nil { // modernbert's may have none
			var err error
			if bias, err = torch.Constant(make([]float32, m.Config.HiddenSize), int64(m.Config.HiddenSize)); err != nil {
				return err
			}
		}
		*into = &Dense{Weight: weight, Bias: bias}
		delete(rest, module+".weight")
		delete(rest, module+".bias")
	}
	return nil
}

// dtypes are the stored types of weights; Resolve refuses others.
var dtypes = map[safetensors.DType]torch.DType{"F32": torch.F32, "F16": torch.F16, "BF16": torch.BF16}

// mapAs returns a tensor of a folder, or the part of it that is the model's, as dtype: mapped if it is stored that way, else a converted copy. Tensors that
// are not aligned, have strides or are quantised are copied too.
func mapAs(files *safetensors.Model, name string, dtype torch.DType, spec TensorSpec) (*torch.Var, error) {
	path, entry, _ := files.Entry(name)
	part := spec.part(name)
	if !part.direct() || part.Len > 1 && !entry.Direct() {
		data, err := spec.Read(files, name)
		if err != nil {
			return nil, err
		}
		return constantAs(data, spec.Shape, dtype)
	}
	entry.Shape = spec.Shape // in files, convolutions have a dimension of 1 and experts one of their own
	if part.Len > 1 {
		entry.Offset += int64(part.At) * spec.elements() * entry.DType.Size()
	}
	if !entry.Direct() {
		return torch.Fill(dtype, entry.Shape, func(write func([]float32) error) error { return files.Each(name, write) })
	}
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

// constantAs makes a tensor of data, rounded to nearest.
func constantAs(data []float32, shape []int64, dtype torch.DType) (*torch.Var, error) {
	return torch.Fill(dtype, shape, func(write func([]float32) error) error {
		for part := range slices.Chunk(data, 1<<18) {
			if err := write(part); err != nil {
				return err
			}
		}
		return nil
	})
}
