package lora

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/outfile"
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
	// suffixBias is what lora_bias adds to the output, before the scale.
	suffixBias = ".lora_B.bias"
	// suffixTokens are rows that replace those of trainable_token_indices.
	suffixTokens = ".trainable_tokens_delta"
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
	if c.Method != "" || len(c.Tokens) > 0 || c.LoRABias {
		return nil, errors.New("only pairs and full modules can be saved")
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
		name := c.Prefix + p.Module
		if rule.adapts(name, p.Experts) && p.Experts > 0 {
			name = c.wrapper(name)
		}
		name = wrapper + name
		r, in, out := int64(p.Width()), int64(p.In), int64(p.Out)
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
		case !r.adapts(r.Prefix+p.Module, p.Experts):
			return fmt.Errorf("module %s is not selected by target_modules (%s) and the fields that restrict them", p.Module, r.TargetModules)
		}
	}
	return r.allows(extra)
}

// allows checks that full tensors match an adapter's config.
func (r *rule) allows(extra []safetensors.Tensor) error {
	for _, t := range extra {
		tied := r.WeightTying && len(r.ModulesToSave) > 0 // to one of them, by the model's names
		if !tied && !r.savesWhole(t.Name) && !isTable(t.Name) && !r.trainsBias(t.Name) {
			return fmt.Errorf("tensor %.120q belongs neither to a LoRA pair nor to modules_to_save (%s)", t.Name, strings.Join(r.ModulesToSave, ", "))
		}
	}
	// PEFT lists head names that the model may lack, so a name without tensors is an error only if all are.
	if len(r.ModulesToSave) > 0 && len(extra) == 0 {
		return fmt.Errorf("no tensor matches modules_to_save (%s)", strings.Join(r.ModulesToSave, ", "))
	}
	return nil
}

// trainsBias reports whether a tensor is a bias, or a norm, that the adapter stores in full.
func (r *rule) trainsBias(name string) bool {
	module, isBias := strings.CutSuffix(name, ".bias")
	switch {
	case r.Method == lnTuning:
		return r.means(strings.TrimSuffix(module, ".weight"))
	case r.Bias == biasAll:
		return isBias
	}
	return isBias && r.Bias != "" && r.means(module)
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

// pair reads the pair of a linear layer, or of an embedding in the orientation [width, tokens].
func (t tensors) pair(module string, r *rule) (Pair, error) {
	parameter := r.parameter(module)
	rank, scale := r.size(cmp.Or(parameter, module))
	p := Pair{R: rank, Scale: scale}
	partA, partB := suffixA, suffixB
	if t.has(suffixEmbeddingA) || t.has(suffixEmbeddingB) {
		partA, partB = suffixEmbeddingA, suffixEmbeddingB
	}
	var a, b []int
	var err error
	if p.A, a, err = t.read(partA, 2); err == nil && parameter != "" && a[0]%rank == 0 {
		p.Experts, rank = a[0]/rank, a[0]
	} else if err == nil && a[0] != rank {
		err = fmt.Errorf("tensor %.120q has shape %v, want [%d in] from r and rank_pattern", t.names[partA], a, rank)
	}
	if err != nil {
		return p, err
	}
	if p.B, b, err = t.read(partB, 2); err == nil && b[1] != rank {
		err = fmt.Errorf("tensor %.120q has shape %v, want [out %d] from r and rank_pattern", t.names[partB], b, rank)
	}
	if err != nil {
		return p, err
	}
	p.In, p.Out = a[1], b[0]
	if !r.DoRA {
		return p, nil
	}
	var m []int
	if p.Magnitude, m, err = t.read(suffixM, 1); err == nil && m[0] != p.Out {
		err = fmt.Errorf("tensor %.120q has shape %v, want [%d], the rows of %s", t.names[suffixM], m, p.Out, t.names[partB])
	}
	return p, err
}

// Shape is the shape [Out, In] of the weight of a linear module, or of each expert if Experts is not 0.
type Shape struct{ Out, In, Experts int }

// String describes the shape for errors.
func (s Shape) String() string {
	if s.Experts > 0 {
		return fmt.Sprintf("[%d %d %d]", s.Experts, s.Out, s.In)
	}
	return fmt.Sprintf("[%d %d]", s.Out, s.In)
}

// Fits checks that the adapter is exactly what its configuration describes for a model with the given linear modules:
// canonical name to shape. Missing, extra and misshapen pairs are errors with the module's name.
func (a Adapter) Fits(shapes map[string]Shape) error {
	rule, err := a.Config.rule()
	if err != nil {
		return fmt.Errorf("lora: %w", err)
	}
	names := slices.SortedFunc(maps.Keys(shapes), compareNames)
	have := map[string]bool{}
	for _, p := range a.Pairs {
		shape, ok := shapes[p.Module]
		if !ok {
			return fmt.Errorf("lora: the adapter has module %s, which the model lacks or cannot adapt (it has %s)", p.Module, summary(names))
		}
		if own := (Shape{p.Out, p.In, p.Experts}); shape != own {
			return fmt.Errorf("lora: module %s: the adapter is for a weight of shape %v, the model has %v", p.Module, own, shape)
		}
		have[p.Module] = true
	}
	for _, change := range a.Changes {
		have[strings.TrimSuffix(change.Tensor, ".weight")] = true
	}
	for _, name := range names {
		if rule.adapts(a.Config.Prefix+name, shapes[name].Experts) && !have[name] {
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
