package lora

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// An Adapter is what [Load] reads.
type Adapter struct {
	Config Config
	Pairs  []Pair // sorted by name, numbers by value
	// Extra are the tensors that replace the model's, by their names in it: those of modules_to_save, biases, and resized
	// or adapted embeddings and output layers.
	Extra map[string]safetensors.Tensor
	// Changes are what the adapter does beyond Pairs and Extra.
	Changes []Change
}

// MergedOnly names what of the adapter can be merged into the weights but not kept beside them, "" for nothing.
func (a Adapter) MergedOnly() string {
	c := a.Config
	switch {
	case c.Method != "":
		return "an adapter of peft_type " + c.Method
	case c.DoRA:
		return "magnitudes of DoRA"
	case len(c.ModulesToSave) > 0:
		return "full modules (modules_to_save: " + strings.Join(c.ModulesToSave, ", ") + ")"
	case len(c.Tokens) > 0:
		return "token embeddings (trainable_token_indices)"
	case c.LoRABias:
		return "biases of pairs (lora_bias)"
	case c.Bias != "" && len(a.Extra) > 0:
		return fmt.Sprintf("biases of the model (bias: %s)", c.Bias)
	case len(a.Extra) > 0:
		return "full modules"
	}
	return ""
}

// Load reads an adapter written by Save or PEFT. If an embedding or output layer is stored with its adapter, both are merged
// into one tensor of Extra. Unsupported features and missing, extra or misshapen tensors are errors that name the file and
// the field or tensor. [Adapter.Fits] checks whether it fits a model.
func Load(dir string) (Adapter, error) {
	path := filepath.Join(dir, ConfigFile)
	data, err := smallfile.Read(path)
	if err != nil {
		return Adapter{}, fmt.Errorf("lora: %w", err)
	}
	c, err := parseConfig(data)
	if err == nil {
		c, err = c.located(dir)
	}
	if err != nil {
		return Adapter{}, fmt.Errorf("lora: %s: %w", path, err)
	}
	f, err := openTensors(dir)
	if err != nil {
		return Adapter{}, err
	}
	defer f.Close()
	c.BaseHash = f.Metadata()[baseHashKey]
	a := Adapter{Config: c, Extra: map[string]safetensors.Tensor{}}
	if err := a.read(f); err != nil {
		return Adapter{}, fmt.Errorf("lora: %s: %w", f.Path(), err)
	}
	return a, nil
}

func openTensors(dir string) (*safetensors.File, error) {
	f, err := safetensors.Open(filepath.Join(dir, WeightsFile))
	if errors.Is(err, fs.ErrNotExist) {
		var older error
		if f, older = safetensors.OpenBin(filepath.Join(dir, pickleFile)); !errors.Is(older, fs.ErrNotExist) {
			err = older
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lora: %w", err)
	}
	return f, nil
}

// parts are the ends of the names of tensors that adapt a module.
func (c Config) parts() []string {
	if c.Method != "" {
		return methods[c.Method].parts
	}
	parts := []string{suffixA, suffixB, suffixEmbeddingA, suffixEmbeddingB}
	if c.DoRA {
		parts = append(parts, suffixM)
	}
	if c.LoRABias {
		parts = append(parts, suffixBias)
	}
	return parts
}

// read adds the tensors of a file.
func (a *Adapter) read(f *safetensors.File) error {
	c := &a.Config
	modules := map[string]tensors{}
	parts := c.parts()
	for _, full := range f.Names() {
		name, ok := strings.CutPrefix(full, wrapper)
		if !ok && slices.Contains(methods[c.Method].shared, full) {
			continue
		} else if !ok {
			return fmt.Errorf("tensor %.120q does not start with %s", full, wrapper)
		}
		i := slices.IndexFunc(parts, func(part string) bool { return strings.HasSuffix(name, part) })
		if i >= 0 {
			module := strings.TrimSuffix(name, parts[i])
			if modules[module].names == nil {
				modules[module] = tensors{file: f, names: map[string]string{}}
			}
			modules[module].names[parts[i]] = full
			continue
		}
		if module, ok := strings.CutSuffix(name, suffixTokens); ok && len(c.Tokens) > 0 {
			change, err := c.changeTokens(f, full, strings.TrimSuffix(module, ".token_adapter"))
			if err != nil {
				return err
			}
			a.Changes = append(a.Changes, change)
			continue
		}
		t, err := readTensor(f, full, inModel(name))
		if err != nil {
			return err
		}
		a.Extra[t.Name] = t
	}
	names := slices.SortedFunc(maps.Keys(modules), compareNames)
	var err error
	if c.Prefix, err = findPrefix(c.TaskType, names); err != nil {
		return err
	}
	rule, err := c.rule()
	if err != nil {
		return err
	}
	if c.Method != "" {
		return a.readMethod(f, rule, names, modules)
	}
	return a.readPairs(f, rule, names, modules)
}

// inModel is the model's name of a tensor that PEFT stores in full.
func inModel(name string) string {
	for _, inserted := range []string{".base_layer.bias", ".token_adapter.base_layer.weight", ".ln_tuning_layers.weight", ".ln_tuning_layers.bias"} {
		if module, ok := strings.CutSuffix(name, inserted); ok {
			return module + inserted[strings.LastIndexByte(inserted, '.'):]
		}
	}
	return name
}

// readPairs adds the pairs of LoRA.
func (a *Adapter) readPairs(f *safetensors.File, rule *rule, names []string, modules map[string]tensors) error {
	c := &a.Config
	embeddings := map[string]Pair{}
	names, experts, err := a.joinExperts(rule, names, modules)
	if err == nil {
		rule, err = c.rule()
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		p, err := modules[name].pair(name, rule)
		if err != nil {
			return err
		}
		if modules[name].has(suffixEmbeddingA) {
			if !rule.means(name) {
				return fmt.Errorf("tensor %.120q belongs to no module of target_modules (%s)", wrapper+name+suffixEmbeddingA, rule.TargetModules)
			}
			p.Module = name
			embeddings[name] = p
			continue
		}
		p.Module = strings.TrimPrefix(cmp.Or(c.parameter(name), name), c.Prefix)
		a.Pairs = append(a.Pairs, p)
		if c.LoRABias {
			bias, _, err := modules[name].read(suffixBias, 1)
			if err != nil {
				return err
			}
			a.Changes = append(a.Changes, addBias(name, bias, p.Scale))
		}
	}
	for _, p := range experts {
		p.Module = strings.TrimPrefix(p.Module, c.Prefix)
		a.Pairs = append(a.Pairs, p)
	}
	slices.SortFunc(a.Pairs, func(a, b Pair) int { return compareNames(a.Module, b.Module) })
	all := a.Pairs
	if a.Pairs, err = mergeStored(f, *c, slices.Clone(all), embeddings, a.Extra); err != nil {
		return err
	}
	if len(all) == 0 && len(a.Extra) > 0 && len(c.ModulesToSave) == 0 {
		return nil // it adapts only embeddings
	}
	return rule.describes(all, slices.SortedFunc(maps.Values(a.Extra), func(a, b safetensors.Tensor) int { return strings.Compare(a.Name, b.Name) }))
}

// tensors adapt one module.
type tensors struct {
	file  *safetensors.File
	names map[string]string // by their parts
}

func (t tensors) has(part string) bool { return t.names[part] != "" }

// read returns the values and the shape of a part, which has the given number of dimensions.
func (t tensors) read(part string, dimensions int) ([]float32, []int, error) {
	full := t.names[part]
	if full == "" {
		for known, other := range t.names { // one at least
			full = strings.TrimSuffix(other, known) + part
		}
		return nil, nil, fmt.Errorf("tensor %.120q is missing", full)
	}
	return readMatrix(t.file, full, dimensions)
}

// readMatrix is the values and the shape of a tensor with the given number of dimensions.
func readMatrix(f *safetensors.File, full string, dimensions int) ([]float32, []int, error) {
	e, ok := f.Lookup(full)
	if !ok {
		return nil, nil, fmt.Errorf("tensor %.120q is missing", full)
	}
	var shape []int
	for _, d := range e.Shape {
		shape = append(shape, int(d))
	}
	if len(shape) != dimensions || slices.Contains(shape, 0) {
		return nil, nil, fmt.Errorf("tensor %.120q has shape %v, want %d sizes above 0", full, e.Shape, dimensions)
	}
	values, err := f.Float32s(full)
	return values, shape, err
}

func readTensor(f *safetensors.File, full, name string) (safetensors.Tensor, error) {
	e, _ := f.Lookup(full)
	data, err := f.Bytes(full)
	return safetensors.Tensor{Name: name, DType: e.DType, Shape: e.Shape, Data: data}, err
}

// findPrefix returns the first name component of a sequence classifier's modules, which must be the same for all.
func findPrefix(task string, names []string) (string, error) {
	if task != SequenceClassification || len(names) == 0 {
		return "", nil
	}
	first, _, ok := strings.Cut(names[0], ".")
	if !ok {
		return "", fmt.Errorf("module %.120q has no prefix, which %s requires", names[0], task)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, first+".") {
			return "", fmt.Errorf("module %.120q does not start with %q as the others do", name, first+".")
		}
	}
	return first + ".", nil
}
