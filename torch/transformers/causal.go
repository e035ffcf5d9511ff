package transformers

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// Causal is a loaded causal language model.
type Causal struct {
	Dir    string
	Config *Config
	Model  *torch.Model
	// Head is the weight of the output layer [V, H], which is the embedding if they are tied. HeadBias is its bias
	// [V], or nil.
	Head, HeadBias *torch.Var
	Weights        map[string]*torch.Var // by the core's names, see rltrain.h
	Parameters     int64                 // number of weights, tied ones counted once
	Trainable      bool                  // all Weights but constants are parameters
	// Generation is the content of generation_config.json.
	Generation GenerationConfig

	trained []string                   // see CausalOptions
	quants  map[string]torch.QuantType // of quantised weights, by the names of their specs
	packed  packedHead                 // what generation multiplies by in place of Head, if the file has it in few bits
	shared  bool                       // the weights belong to another model
	pooled  bool                       // see CausalOptions
	untied  bool                       // a change has split the tied embedding and output layer of Dir
}

// CausalOptions says how weights are stored.
type CausalOptions struct {
	// DType of embedding and linear weights: "fp32", "bf16" or "fp16". "" means bf16 on a GPU that prefers it (see
	// [torch.PrefersBF16]), else as stored: blocks of a GGUF file stay if the core has their type (see
	// [torch.QuantType]), else become bf16. "nf4" and "int8" quantise the layers' linear weights on loading and keep
	// the others as stored. Norms, biases and learned positions are always float32.
	DType string
	// Trainable makes every weight a float32 parameter in separate memory.
	Trainable bool
	// Trained are weights, by the core's names, of which this holds though the others are frozen. A tied embedding or
	// output layer becomes a weight of its own.
	Trained []string
	// Change changes weights on loading, as float32 in the shape of their TensorSpec, given a name of the tensor in the
	// folder: adapters are merged here. If only one of a tied embedding and output layer is changed, or each
	// separately, they become two weights.
	Change map[string]func(weight []float32)
	// Scored accepts the folder of a sequence or token classifier: see Config.
	Scored bool
	// Pooled is for a classifier of the hidden states: those are not divided as they are for logits.
	Pooled bool
}

var dtypeOptions = map[string]torch.DType{"fp32": torch.F32, "bf16": torch.BF16, "fp16": torch.F16}

// LoadCausal reads the model folder of a causal language model. Weights that keep their dtype are mapped, not copied,
// so the files must not change while the model is in use. Errors name the file and the invalid field or tensor.
func LoadCausal(dir string, o CausalOptions) (*Causal, error) {
	quant, err := o.check()
	if err != nil {
		return nil, err
	}
	config, err := LoadCausalConfig(dir)
	if err != nil {
		return nil, err
	}
	generation, err := LoadGenerationConfig(dir, config)
	if err != nil {
		return nil, err
	}
	files, err := safetensors.OpenModel(dir)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	if config.Scored = o.Scored; o.Scored && !slices.ContainsFunc(config.headSpec().Candidates, func(name string) bool { return slices.Contains(files.Names(), name) }) {
		config.TieWordEmbeddings = true // a classifier has no output layer
	}
	names, err := config.Resolve(files)
	if err != nil {
		return nil, err
	}
	changes, err := config.changes(o.Change)
	if err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", dir, err)
	}
	untied := config.TieWordEmbeddings && (o.splits(changes, "embed.weight") || o.splits(changes, "head.weight"))
	if untied {
		config.TieWordEmbeddings = false
		names["head.weight"] = names["embed.weight"]
	}
	if o.DType == "" && !o.Trainable {
		bf16, err := torch.PrefersBF16()
		if err != nil {
			return nil, err
		}
		if bf16 {
			o.DType = "bf16"
		}
	}
	c := &Causal{Dir: dir, Config: config, Weights: map[string]*torch.Var{}, Trainable: o.Trainable, trained: o.Trained, Generation: generation, quants: map[string]torch.QuantType{}, pooled: o.Pooled, untied: untied}
	for _, spec := range config.TensorNames() {
		if spec.Group == "tied" {
			continue
		}
		if err := c.load(files, names[spec.Name], spec, changes[spec.Name], o, quant); err != nil {
			c.Close()
			return nil, err
		}
		if !constant(spec.Name) {
			c.Parameters += spec.elements()
		}
	}
	if err := c.build(); err != nil {
		c.Close()
		return nil, fmt.Errorf("transformers: %s: %w", dir, err)
	}
	return c, nil
}

// build creates the model from the weights.
func (c *Causal) build() (err error) {
	c.Head, c.HeadBias = c.Weights["head.weight"], c.Weights["head.bias"]
	if c.Head == nil {
		c.Head = c.Weights["embed.weight"]
	}
	weights := c.Weights
	if c.packed.rows != nil {
		weights = maps.Clone(weights)
		delete(weights, "head.weight")
		weights[quantName("head.weight", c.packed.quant)] = c.packed.rows
	}
	core := c.Config.Core()
	if c.pooled {
		core.LogitDivisor = 0
	}
	c.Model, err = torch.NewModel(core, weights)
	return err
}

// Share returns another model on the same weights, for other adapters. own, by the core's names, takes the place of some of
// them; nil = none. Close it before c; it leaves all weights open.
func (c *Causal) Share(own map[string]*torch.Var) (*Causal, error) {
	shared := *c
	shared.Model, shared.shared = nil, true
	shared.Weights = maps.Clone(c.Weights)
	for name := range own {
		delete(shared.Weights, quantName(name, c.quants[name]))
	}
	maps.Copy(shared.Weights, own)
	if err := shared.build(); err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", c.Dir, err)
	}
	return &shared, nil
}

// Close frees the model and its weights.
func (c *Causal) Close() {
	if c.Model != nil {
		c.Model.Close()
	}
	if c.shared {
		return
	}
	for _, v := range c.Weights {
		v.Close()
	}
	if c.packed.rows != nil {
		c.packed.rows.Close()
	}
}

// EOS returns the tokens that end a text, from config.json and generation_config.json, sorted.
func (c *Causal) EOS() []int32 {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(c.Config.EOS, c.Generation.EOS))))
}

// trains reports whether the weight with the core's name is a parameter.
func (o CausalOptions) trains(name string) bool {
	return (o.Trainable || slices.Contains(o.Trained, name)) && !constant(name)
}

// constant reports whether training leaves the weight with the core's name as it is.
func constant(name string) bool { return strings.HasSuffix(name, ".scalar.weight") }

// splits reports whether the options give one of a tied embedding and output layer values that the other lacks.
func (o CausalOptions) splits(changes map[string]func([]float32), name string) bool {
	return changes[name] != nil || slices.Contains(o.Trained, name)
}

// Trains reports whether the weight with the core's name is a parameter.
func (c *Causal) Trains(name string) bool {
	return CausalOptions{Trainable: c.Trainable, Trained: c.trained}.trains(name)
}

// load adds one weight to c according to the options, quantised to quant unless that is "".
func (c *Causal) load(files *safetensors.Model, name string, spec TensorSpec, change func([]float32), o CausalOptions, quant torch.QuantType) error {
	stored, v, err := o.blocks(files, name, spec, c.Config.head(spec), change)
	if err != nil {
		return err
	}
	if stored != "" && !spec.layer() {
		c.packed, stored = packedHead{stored, v}, ""
	}
	switch {
	case stored != "":
		quant = stored
	default:
		if v, err = o.load(files, name, spec, change); err != nil {
			return err
		}
		if quant == "" || !spec.layer() || o.trains(spec.Name) {
			c.Weights[spec.Name] = v
			return nil
		}
		if v, err = quantize(v, spec, quant); err != nil {
			return err
		}
	}
	c.Weights[quantName(spec.Name, quant)] = v
	c.quants[spec.Name] = quant
	return nil
}

// load returns one weight according to the options, dense.
func (o CausalOptions) load(files *safetensors.Model, name string, spec TensorSpec, change func([]float32)) (*torch.Var, error) {
	_, entry, _ := files.Entry(name)
	dtype, trained := torch.F32, o.trains(spec.Name)
	if spec.matrix() && !trained {
		if dtype = dtypes[entry.DType]; packed(entry) || isNF4(files, name) {
			dtype = torch.BF16
		}
		if asked, ok := dtypeOptions[o.DType]; ok {
			dtype = asked
		}
	}
	if !trained && change == nil && !isNF4(files, name) {
		return mapAs(files, name, dtype, spec)
	}
	data, err := spec.Read(files, name)
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(data)
	}
	if trained {
		return torch.Parameter(data, spec.Shape...)
	}
	return constantAs(data, spec.Shape, dtype)
}

// changes maps changes of tensors to the core's names.
func (c *Config) changes(change map[string]func([]float32)) (map[string]func([]float32), error) {
	changes := map[string]func([]float32){}
	for _, spec := range c.TensorNames() {
		for _, name := range spec.Candidates {
			if f := change[name]; f != nil {
				changes[spec.Name] = f
			}
		}
	}
	if len(changes) != len(change) {
		return nil, fmt.Errorf("%d of %d tensors to change are not the model's", len(change)-len(changes), len(change))
	}
	return changes, nil
}

// matrix reports whether a tensor is an embedding or linear weight. Embeddings of positions, types and distances do not count,
// nor do those that choose and weigh experts, nor convolutions.
func (s TensorSpec) matrix() bool {
	module := strings.TrimPrefix(path.Ext(strings.TrimSuffix(s.Name, ".weight")), ".")
	return len(s.Shape) == 2 && !slices.Contains([]string{"positions.weight", "types.weight", distanceWeight}, s.Name) && !slices.Contains(weighing, module)
}

func (s TensorSpec) elements() int64 {
	n := int64(1)
	for _, d := range s.Shape {
		n *= d
	}
	return n
}

// Read returns the tensor's values as float32, in the shape of the spec.
func (s TensorSpec) Read(files *safetensors.Model, name string) (data []float32, err error) {
	part := s.part(name)
	if isNF4(files, name) {
		data, err = nf4Values(files, name, s.stored(part))
	} else {
		data, err = files.Part(name, part.At, part.Len)
	}
	if err != nil || part.direct() {
		return data, err
	}
	return s.pick(data, part), nil
}

// pick returns the values of s in a part of a tensor.
func (s TensorSpec) pick(data []float32, part Joined) []float32 {
	rows, columns := int(s.Shape[0]), int(s.elements()/s.Shape[0])
	if part.Turned {
		data = transpose(data, columns, rows*part.Every)
	}
	if part.Every == 1 {
		return data
	}
	own := make([]float32, 0, rows*columns)
	for row := part.First; row < rows*part.Every; row += part.Every {
		own = append(own, data[row*columns:(row+1)*columns]...)
	}
	return own
}

// put writes the values of s to a part of a tensor.
func (s TensorSpec) put(values, to []float32, part Joined) {
	rows, columns := int(s.Shape[0]), int(s.elements()/s.Shape[0])
	for i, v := range values {
		row, column := part.First+i/columns*part.Every, i%columns
		if part.Turned {
			to[column*rows*part.Every+row] = v
		} else {
			to[row*columns+column] = v
		}
	}
}

// transpose turns m [rows, columns] into [columns, rows].
func transpose(m []float32, rows, columns int) []float32 {
	t := make([]float32, len(m))
	for r := range rows {
		for c, v := range m[r*columns : (r+1)*columns] {
			t[c*rows+r] = v
		}
	}
	return t
}
