package lora

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// ConfigFile is the name of an adapter's configuration. A folder without it is not an adapter.
const ConfigFile = "adapter_config.json"

const (
	// WeightsFile is the name of an adapter's weights.
	WeightsFile = "adapter_model.safetensors"
	pickleFile  = "adapter_model.bin" // written by PEFT before 0.7
	// wrapper precedes every module name of a model wrapped by PEFT.
	wrapper = "base_model.model."
	suffixA = ".lora_A.weight"
	suffixB = ".lora_B.weight"
	suffixM = ".lora_magnitude_vector"
)

// Save writes an adapter that PEFT can load. It creates dir if needed and replaces each of the two files atomically. extra
// are the tensors of c.ModulesToSave by their names in the model, such as "classifier.weight". The pairs must match c: each
// a target, with the rank and scale that c gives its module.
func Save(dir string, c Config, pairs []Pair, extra []safetensors.Tensor) error {
	tensors, err := c.tensors(pairs, extra)
	if err != nil {
		return fmt.Errorf("lora: saving %s: %w", dir, err)
	}
	if c, err = c.recorded(dir); err != nil {
		return fmt.Errorf("lora: saving %s: %w", dir, err)
	}
	config, err := c.marshal()
	if err != nil {
		return fmt.Errorf("lora: saving %s: %w", dir, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	metadata := map[string]string{}
	if c.BaseHash != "" {
		metadata[baseHashKey] = c.BaseHash
	}
	if err := safetensors.Write(filepath.Join(dir, WeightsFile), tensors, metadata); err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	path := filepath.Join(dir, ConfigFile)
	if err := outfile.Write(path, config, 0o644); err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	return nil
}

// tensors returns the tensors of the file, with their full names.
func (c Config) tensors(pairs []Pair, extra []safetensors.Tensor) ([]safetensors.Tensor, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if classifier := c.TaskType == SequenceClassification; classifier != (c.Prefix != "") {
		return nil, fmt.Errorf("prefix %q does not fit task_type %s", c.Prefix, c.TaskType)
	}
	rule, err := c.rule()
	if err != nil {
		return nil, err
	}
	var list []safetensors.Tensor
	for _, p := range pairs {
		if err := p.check(); err != nil {
			return nil, err
		}
		name := wrapper + c.Prefix + p.Module
		r, in, out := int64(p.R), int64(p.In), int64(p.Out)
		list = append(list,
			safetensors.FromFloat32s(name+suffixA, []int64{r, in}, p.A),
			safetensors.FromFloat32s(name+suffixB, []int64{out, r}, p.B))
		if p.Magnitude != nil {
			list = append(list, safetensors.FromFloat32s(name+suffixM, []int64{out}, p.Magnitude))
		}
	}
	for _, t := range extra {
		t.Name = wrapper + t.Name
		list = append(list, t)
	}
	return list, rule.describes(pairs, extra)
}

// describes checks that an adapter's tensors match its config.
func (r *rule) describes(pairs []Pair, extra []safetensors.Tensor) error {
	if len(pairs) == 0 {
		return fmt.Errorf("no LoRA pair matches target_modules (%s)", r.TargetModules)
	}
	for _, p := range pairs {
		rank, scale := r.size(r.Prefix + p.Module)
		switch {
		case p.R != rank:
			return fmt.Errorf("module %s has rank %d, but r and rank_pattern give %d", p.Module, p.R, rank)
		case p.Scale != scale:
			return fmt.Errorf("module %s has scale %g, but lora_alpha, alpha_pattern and the rank give %g", p.Module, p.Scale, scale)
		case (p.Magnitude != nil) != r.DoRA:
			return fmt.Errorf("module %s: use_dora is %t, but the module's magnitude vector exists: %t", p.Module, r.DoRA, p.Magnitude != nil)
		case !r.means(r.Prefix + p.Module):
			return fmt.Errorf("module %s is not selected by target_modules (%s) and the fields that restrict them", p.Module, r.TargetModules)
		}
	}
	for _, t := range extra {
		tied := r.WeightTying && len(r.ModulesToSave) > 0 // to one of them, by the model's names
		if !tied && !r.savesWhole(t.Name) && !isTable(t.Name) {
			return fmt.Errorf("tensor %.120q belongs neither to a LoRA pair nor to modules_to_save (%s)", t.Name, strings.Join(r.ModulesToSave, ", "))
		}
	}
	// PEFT lists head names that the model may lack, so a name without tensors is an error only if all are.
	if len(r.ModulesToSave) > 0 && len(extra) == 0 {
		return fmt.Errorf("no tensor matches modules_to_save (%s)", strings.Join(r.ModulesToSave, ", "))
	}
	return nil
}

// savesWhole reports whether a tensor belongs to ModulesToSave. PEFT accepts any suffix of a module's name here, not only
// after a dot.
func (c Config) savesWhole(name string) bool {
	for i, r := range name {
		if r == '.' && slices.ContainsFunc(c.ModulesToSave, func(m string) bool { return strings.HasSuffix(name[:i], m) }) {
			return true
		}
	}
	return false
}

// Load reads an adapter written by Save or PEFT: its config, its pairs sorted by name (numbers by value), and the tensors of
// modules_to_save by their names in the model. If an embedding or output layer is stored with its adapter, both are merged
// into one tensor. Unsupported features and missing, extra or misshapen tensors are errors that name the file and the field
// or tensor. [Config.Fits] checks whether the pairs fit a model.
func Load(dir string) (Config, []Pair, map[string]safetensors.Tensor, error) {
	path := filepath.Join(dir, ConfigFile)
	data, err := smallfile.Read(path)
	if err != nil {
		return Config{}, nil, nil, fmt.Errorf("lora: %w", err)
	}
	c, err := parseConfig(data)
	if err != nil {
		return Config{}, nil, nil, fmt.Errorf("lora: %s: %w", path, err)
	}
	if c, err = c.located(dir); err != nil {
		return Config{}, nil, nil, fmt.Errorf("lora: %s: %w", path, err)
	}
	f, err := openTensors(dir)
	if err != nil {
		return Config{}, nil, nil, err
	}
	defer f.Close()
	c.BaseHash = f.Metadata()[baseHashKey]
	c, pairs, extra, err := readTensors(c, f)
	if err != nil {
		return Config{}, nil, nil, fmt.Errorf("lora: %s: %w", f.Path(), err)
	}
	return c, pairs, extra, nil
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

func readTensors(c Config, f *safetensors.File) (Config, []Pair, map[string]safetensors.Tensor, error) {
	// modules has a bit for each tensor of a pair.
	modules := map[string]int{}
	suffixes := []string{suffixA, suffixB}
	if c.DoRA {
		suffixes = append(suffixes, suffixM)
	}
	var list []safetensors.Tensor
	for _, full := range f.Names() {
		name, ok := strings.CutPrefix(full, wrapper)
		if !ok {
			return c, nil, nil, fmt.Errorf("tensor %.120q does not start with %s", full, wrapper)
		}
		i := slices.IndexFunc(suffixes, func(suffix string) bool { return strings.HasSuffix(name, suffix) })
		if i >= 0 {
			modules[strings.TrimSuffix(name, suffixes[i])] |= 1 << i
			continue
		}
		t, err := readTensor(f, full, name)
		if err != nil {
			return c, nil, nil, err
		}
		list = append(list, t)
	}
	names := slices.SortedFunc(maps.Keys(modules), compareNames)
	var err error
	if c.Prefix, err = findPrefix(c.TaskType, names); err != nil {
		return c, nil, nil, err
	}
	rule, err := c.rule()
	if err != nil {
		return c, nil, nil, err
	}
	var pairs []Pair
	for _, name := range names {
		for i, suffix := range suffixes {
			if modules[name]&(1<<i) == 0 {
				return c, nil, nil, fmt.Errorf("tensor %.120q is missing", wrapper+name+suffix)
			}
		}
		p, err := readPair(f, name, rule)
		if err != nil {
			return c, nil, nil, err
		}
		p.Module = strings.TrimPrefix(name, c.Prefix)
		pairs = append(pairs, p)
	}
	extra := map[string]safetensors.Tensor{}
	for _, t := range list {
		extra[t.Name] = t
	}
	all := pairs
	if pairs, err = mergeStored(f, c, rule, slices.Clone(pairs), extra); err != nil {
		return c, nil, nil, err
	}
	if len(all) == 0 && len(extra) > 0 && len(c.ModulesToSave) == 0 {
		return c, nil, extra, nil // it adapts only embeddings
	}
	return c, pairs, extra, rule.describes(all, slices.SortedFunc(maps.Values(extra), func(a, b safetensors.Tensor) int { return strings.Compare(a.Name, b.Name) }))
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

func readTensor(f *safetensors.File, full, name string) (safetensors.Tensor, error) {
	e, _ := f.Lookup(full)
	data, err := f.Bytes(full)
	return safetensors.Tensor{Name: name, DType: e.DType, Shape: e.Shape, Data: data}, err
}

// readPair reads the pair of a module; its tensors exist.
func readPair(f *safetensors.File, module string, r *rule) (Pair, error) {
	rank, scale := r.size(module)
	p := Pair{R: rank, Scale: scale}
	nameA, nameB := wrapper+module+suffixA, wrapper+module+suffixB
	a, _ := f.Lookup(nameA)
	b, _ := f.Lookup(nameB)
	if len(a.Shape) != 2 || a.Shape[0] != int64(rank) || a.Shape[1] < 1 {
		return p, fmt.Errorf("tensor %.120q has shape %v, want [%d in] from r and rank_pattern", nameA, a.Shape, rank)
	}
	if len(b.Shape) != 2 || b.Shape[1] != int64(rank) || b.Shape[0] < 1 {
		return p, fmt.Errorf("tensor %.120q has shape %v, want [out %d] from r and rank_pattern", nameB, b.Shape, rank)
	}
	p.In, p.Out = int(a.Shape[1]), int(b.Shape[0])
	var err error
	if p.A, err = f.Float32s(nameA); err != nil {
		return p, err
	}
	if p.B, err = f.Float32s(nameB); err != nil || !r.DoRA {
		return p, err
	}
	nameM := wrapper + module + suffixM
	if m, _ := f.Lookup(nameM); len(m.Shape) != 1 || m.Shape[0] != b.Shape[0] {
		return p, fmt.Errorf("tensor %.120q has shape %v, want [%d], the rows of %s", nameM, m.Shape, b.Shape[0], nameB)
	}
	p.Magnitude, err = f.Float32s(nameM)
	return p, err
}

// Fits checks that pairs are exactly the adapter that c describes for a model with the given linear modules: canonical name
// to [out, in]. Missing, extra and misshapen pairs are errors with the module's name.
func (c Config) Fits(pairs []Pair, shapes map[string][2]int) error {
	rule, err := c.rule()
	if err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	names := slices.SortedFunc(maps.Keys(shapes), compareNames)
	have := map[string]bool{}
	for _, p := range pairs {
		shape, ok := shapes[p.Module]
		if !ok {
			return fmt.Errorf("lora: the adapter has module %s, which the model lacks or cannot adapt (it has %s)", p.Module, summary(names))
		}
		if shape != [2]int{p.Out, p.In} {
			return fmt.Errorf("lora: module %s: the adapter is for a weight of shape %v, the model has %v", p.Module, [2]int{p.Out, p.In}, shape)
		}
		have[p.Module] = true
	}
	for _, name := range names {
		if rule.means(c.Prefix+name) && !have[name] {
			return fmt.Errorf("lora: target_modules select module %s, but the adapter has no tensors for it", name)
		}
	}
	return nil
}

// compareNames compares names by component, numbers by value, so that layer 10 follows layer 9.
func compareNames(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		if number(x) && number(y) && len(x) != len(y) {
			return len(x) - len(y)
		}
		return strings.Compare(x, y)
	})
}

func number(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
