package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// adapter is low-rank pairs on linear layers of a frozen model.
type adapter struct {
	config lora.Config
	frozen bool           // used, not trained; the core has quicker passes of few tokens for these
	layers []adaptedLayer // none without an adapter
}

// adaptedLayer is a linear layer with its pair.
type adaptedLayer struct {
	transformers.Linear
	r     int
	scale float64    // what b·a is multiplied by
	a, b  *torch.Var // [r, in], [out, r]
}

// initialPairs makes a randomly initialised pair for each linear layer that the targets of a config without patterns match.
func initialPairs(linears []transformers.Linear, c lora.Config, rng *rand.Rand) ([]lora.Pair, error) {
	var names []string
	byName := map[string]transformers.Linear{}
	for _, linear := range linears {
		names = append(names, linear.Name)
		byName[linear.Name] = linear
	}
	chosen, err := lora.Match(names, c.TargetModules.Names)
	if err != nil {
		return nil, err
	}
	pairs := make([]lora.Pair, len(chosen))
	for i, name := range chosen {
		pairs[i] = lora.Init(name, byName[name].In, byName[name].Out, c.R, c.Scale(), rng)
	}
	return pairs, nil
}

// attach puts pairs on the layers of the model.
func (a *adapter) attach(model *torch.Model, linears []transformers.Linear, pairs []lora.Pair) error {
	layers := map[string]string{} // the core's names
	for _, linear := range linears {
		layers[linear.Name] = linear.Layer
	}
	for _, pair := range pairs {
		l, err := newAdaptedLayer(pair, a.frozen)
		if err != nil {
			return fmt.Errorf("policy: adapter of %s: %w", pair.Module, err)
		}
		a.layers = append(a.layers, l)
		if err := model.Adapt(layers[pair.Module], l.a, l.b, l.scale); err != nil {
			return fmt.Errorf("policy: %w", err)
		}
	}
	return nil
}

// newAdaptedLayer makes the tensors of a pair: constants if it is frozen, else parameters.
func newAdaptedLayer(pair lora.Pair, frozen bool) (adaptedLayer, error) {
	if pair.Magnitude != nil {
		return adaptedLayer{}, errors.New("DoRA is not supported here")
	}
	hold := torch.Parameter
	if frozen {
		hold = torch.Constant
	}
	a, err := hold(pair.A, int64(pair.R), int64(pair.In))
	if err != nil {
		return adaptedLayer{}, err
	}
	b, err := hold(pair.B, int64(pair.Out), int64(pair.R))
	if err != nil {
		a.Close()
		return adaptedLayer{}, err
	}
	return adaptedLayer{
		Linear: transformers.Linear{Name: pair.Module, In: pair.In, Out: pair.Out}, r: pair.R, scale: pair.Scale, a: a, b: b,
	}, nil
}

func (l adaptedLayer) pair() (lora.Pair, error) {
	a, err := l.a.Read()
	if err != nil {
		return lora.Pair{}, err
	}
	b, err := l.b.Read()
	return lora.Pair{Module: l.Name, R: l.r, In: l.In, Out: l.Out, Scale: l.scale, A: a, B: b}, err
}

// params are A and B of each layer.
func (a *adapter) params() []*torch.Var {
	var params []*torch.Var
	for _, l := range a.layers {
		params = append(params, l.a, l.b)
	}
	return params
}

// size is the number of trainable weights.
func (a *adapter) size() (n int64) {
	for _, l := range a.layers {
		n += int64(l.r * (l.In + l.Out))
	}
	return n
}

// fresh says whether the adapter changes nothing: every B is 0.
func (a *adapter) fresh() (bool, error) {
	for _, l := range a.layers {
		b, err := l.b.Read()
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(b, func(x float32) bool { return x != 0 }) {
			return false, nil
		}
	}
	return true, nil
}

// pairs are the pairs of all layers.
func (a *adapter) pairs() ([]lora.Pair, error) {
	pairs := make([]lora.Pair, len(a.layers))
	for i, l := range a.layers {
		var err error
		if pairs[i], err = l.pair(); err != nil {
			return nil, err
		}
	}
	return pairs, nil
}

// save writes the adapter as PEFT does, with extra tensors.
func (a *adapter) save(dir string, extra []safetensors.Tensor) error {
	pairs, err := a.pairs()
	if err != nil {
		return err
	}
	return lora.Save(dir, a.config, pairs, extra)
}

// load puts back the values that save, or CausalLM.saveScored, wrote, and returns the extra tensors. With prefixed the
// file's names lack the prefix that its configuration names.
func (a *adapter) load(dir string, prefixed bool) (extra map[string]safetensors.Tensor, err error) {
	config, pairs, extra, err := lora.Load(dir)
	if err != nil {
		return nil, err
	}
	loaded := map[string]lora.Pair{}
	for _, pair := range pairs {
		if prefixed {
			pair.Module = config.Prefix + pair.Module
		}
		loaded[pair.Module] = pair
	}
	for _, l := range a.layers {
		pair, ok := loaded[l.Name]
		if !ok {
			return nil, fmt.Errorf("%s: no adapter of %s", dir, l.Name)
		}
		if err := errors.Join(l.a.Write(pair.A), l.b.Write(pair.B)); err != nil {
			return nil, fmt.Errorf("%s: adapter of %s: %w", dir, l.Name, err)
		}
	}
	return extra, nil
}

// changes are what merging the adapter does to the model's weights, by name.
func (a *adapter) changes() (map[string]func([]float32), error) {
	pairs, err := a.pairs()
	if err != nil {
		return nil, err
	}
	return mergeChanges(pairs), nil
}

func mergeChanges(pairs []lora.Pair) map[string]func([]float32) {
	changes := map[string]func([]float32){}
	for _, pair := range pairs {
		changes[pair.Module+".weight"] = pair.MergeInto
	}
	return changes
}

func (a *adapter) close() {
	for _, l := range a.layers {
		torch.CloseAll(l.a, l.b)
	}
}

// savedAdapter is the adapter of a folder, as lora.Load reads it.
type savedAdapter struct {
	dir    string
	config lora.Config
	pairs  []lora.Pair
	extra  map[string]safetensors.Tensor // tensors saved with the pairs
}

func readAdapter(dir string) (a savedAdapter, err error) {
	a.dir = dir
	a.config, a.pairs, a.extra, err = lora.Load(dir)
	return a, err
}

// base finds the model that the adapter is for, at the revision that it names.
func (a savedAdapter) base(ctx context.Context, client *hub.Client) (hub.Model, error) {
	name, revision := a.config.BaseModel, a.config.Revision
	// A folder has no revisions.
	if _, err := os.Stat(name); err != nil && revision != "" && revision != "main" {
		name += "@" + revision
	}
	model, err := client.Model(ctx, name, hub.Weights)
	if err == nil {
		err = cmp.Or(model.CheckBase(), a.config.CheckBase(model.Dir))
	}
	if err != nil {
		return hub.Model{}, fmt.Errorf("%s: base_model_name_or_path: %w", filepath.Join(a.dir, lora.ConfigFile), err)
	}
	return model, nil
}

// fits checks the shapes against a model whose layers have prefix before the adapter's names; name is the model's.
func (a savedAdapter) fits(model *transformers.Config, prefix, name string) error {
	return a.wrap(fits(model, a.config, a.pairs, prefix), name)
}

func (a savedAdapter) wrap(err error, model string) error {
	if err != nil {
		return fmt.Errorf("%s does not fit %s: %w", a.dir, model, err)
	}
	return nil
}

// fitsLanguageModel is FitsLanguageModel of a model called name.
func (a savedAdapter) fitsLanguageModel(model *transformers.Config, name string) error {
	return a.wrap(FitsLanguageModel(model, a.config, a.pairs, a.extra), name)
}

// mergedOnly names what of the adapter can only be merged into the weights, "" for nothing.
func (a savedAdapter) mergedOnly() string {
	switch {
	case a.config.DoRA:
		return "magnitudes of DoRA"
	case len(a.config.ModulesToSave) > 0:
		return "full modules (modules_to_save: " + strings.Join(a.config.ModulesToSave, ", ") + ")"
	case len(a.extra) > 0:
		return "full modules"
	}
	return ""
}

// changes are what merging the adapter does to a model's weights, by name.
func (a savedAdapter) changes() (map[string]func([]float32), error) {
	all := mergeChanges(a.pairs)
	for name, tensor := range a.extra {
		data, err := tensor.Float32s()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.dir, err)
		}
		all[name] = func(weight []float32) { copy(weight, data) }
	}
	return all, nil
}

func fits(model *transformers.Config, c lora.Config, pairs []lora.Pair, prefix string) error {
	shapes := map[string][2]int{}
	for _, linear := range model.Linears() {
		shapes[strings.TrimPrefix(linear.Name, prefix)] = [2]int{linear.Out, linear.In}
	}
	return c.Fits(pairs, shapes)
}

// FitsLanguageModel checks that an adapter, as lora.Load reads it, fits the model. Errors name what differs.
func FitsLanguageModel(model *transformers.Config, c lora.Config, pairs []lora.Pair, extra map[string]safetensors.Tensor) error {
	if c.TaskType != "" && c.TaskType != lora.CausalLM {
		return fmt.Errorf("task_type is %s; an adapter of a language model has %s", c.TaskType, lora.CausalLM)
	}
	if err := fits(model, c, pairs, ""); err != nil {
		return err
	}
	have := map[string]transformers.TensorSpec{}
	for _, spec := range model.TensorNames() {
		for _, name := range spec.Candidates {
			have[name] = spec
		}
	}
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		spec, ok := have[name]
		switch {
		case !ok:
			return fmt.Errorf("modules_to_save: the adapter has tensor %.120q, the model has not", name)
		case spec.Transposed:
			return fmt.Errorf("modules_to_save: tensor %s is the weight of a Conv1D, which is not supported", name)
		case !slices.Equal(spec.Shape, extra[name].Shape):
			return fmt.Errorf("modules_to_save: tensor %s has shape %v, the model's has %v: if the vocabulary was resized for the adapter, resize the model's too", name, extra[name].Shape, spec.Shape)
		}
	}
	return nil
}
