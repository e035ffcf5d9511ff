package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// adapter is low-rank pairs on linear layers of a frozen model, and modules of it that are trained in full.
type adapter struct {
	config lora.Config
	frozen bool           // used, not trained; the core has quicker passes of few tokens for these
	layers []adaptedLayer // none without an adapter
	full   []fullTensor   // of config.ModulesToSave; the model owns them
	// start has the pairs of InitPiSSA, which the model's weights lack, in the order of layers; else nil.
	start []lora.Pair
}

// adaptedLayer is a linear layer with its pair.
type adaptedLayer struct {
	transformers.Linear
	r         int
	scale     float64    // what b·a is multiplied by
	a, b      *torch.Var // [r, in], [out, r]; of experts as lora.Pair has them
	magnitude *torch.Var // [out] with DoRA, else nil
}

// attach puts pairs on the layers of the model.
func (a *adapter) attach(model *torch.Model, linears []transformers.Linear, pairs []lora.Pair) error {
	layers := layerNames(linears)
	for _, pair := range pairs {
		l, err := newAdaptedLayer(pair, a.frozen)
		if err != nil {
			return fmt.Errorf("policy: adapter of %s: %w", pair.Module, err)
		}
		l.Layer = layers[pair.Module]
		a.layers = append(a.layers, l)
		if err := model.Adapt(l.Layer, l.a, l.b, l.magnitude, l.scale); err != nil {
			return fmt.Errorf("policy: %w", err)
		}
	}
	return nil
}

// layerNames are the core's names of linear layers, by their modules.
func layerNames(linears []transformers.Linear) map[string]string {
	layers := map[string]string{}
	for _, linear := range linears {
		layers[linear.Name] = linear.Layer
	}
	return layers
}

// newAdaptedLayer makes the tensors of a pair: constants if it is frozen, else parameters.
func newAdaptedLayer(pair lora.Pair, frozen bool) (adaptedLayer, error) {
	hold := torch.Parameter
	if frozen {
		hold = torch.Constant
	}
	a, err := hold(pair.A, int64(pair.Width()), int64(pair.In))
	if err != nil {
		return adaptedLayer{}, err
	}
	b, err := hold(pair.B, int64(pair.Out), int64(pair.Width()))
	if err != nil {
		a.Close()
		return adaptedLayer{}, err
	}
	l := adaptedLayer{
		Linear: transformers.Linear{Name: pair.Module, In: pair.In, Out: pair.Out, Experts: pair.Experts}, r: pair.R, scale: pair.Scale, a: a, b: b,
	}
	if pair.Magnitude != nil {
		if l.magnitude, err = hold(pair.Magnitude, int64(pair.Out)); err != nil {
			torch.CloseAll(a, b)
		}
	}
	return l, err
}

// vars are A, B and, with DoRA, the magnitudes.
func (l adaptedLayer) vars() []*torch.Var {
	if l.magnitude == nil {
		return []*torch.Var{l.a, l.b}
	}
	return []*torch.Var{l.a, l.b, l.magnitude}
}

func (l adaptedLayer) pair() (lora.Pair, error) {
	a, err := l.a.Read()
	if err != nil {
		return lora.Pair{}, err
	}
	b, err := l.b.Read()
	pair := lora.Pair{Module: l.Name, R: l.r, In: l.In, Out: l.Out, Experts: l.Experts, Scale: l.scale, A: a, B: b}
	if err == nil && l.magnitude != nil {
		pair.Magnitude, err = l.magnitude.Read()
	}
	return pair, err
}

// params are those of each layer, then the weights that are trained in full.
func (a *adapter) params() []*torch.Var {
	var params []*torch.Var
	for _, l := range a.layers {
		params = append(params, l.vars()...)
	}
	for _, t := range a.full {
		params = append(params, t.v)
	}
	return params
}

// size is the number of weights of the pairs.
func (a *adapter) size() (n int64) {
	for _, l := range a.layers {
		n += int64(l.r * max(l.Experts, 1) * (l.In + l.Out))
		if l.magnitude != nil {
			n += int64(l.Out)
		}
	}
	return n
}

// fullSize is the number of weights that are trained in full.
func (a *adapter) fullSize() (n int64) {
	for _, t := range a.full {
		size := int64(1)
		for _, d := range t.spec.Shape {
			size *= d
		}
		n += size
	}
	return n
}

// fresh says whether the model without the adapter is what it is with it: every B is 0, and no other weight is trained
// or changed.
func (a *adapter) fresh() (bool, error) {
	if len(a.full) > 0 || a.start != nil {
		return false, nil
	}
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

// pairs are the pairs of all layers, as they change the model in files.
func (a *adapter) pairs() ([]lora.Pair, error) {
	pairs := make([]lora.Pair, len(a.layers))
	for i, l := range a.layers {
		var err error
		if pairs[i], err = l.pair(); err != nil {
			return nil, err
		}
		if a.start != nil {
			pairs[i] = joined(pairs[i], a.start[i], a.stored().Scale())
		}
	}
	return pairs, nil
}

// stored is the configuration as files have it.
func (a *adapter) stored() lora.Config {
	if a.start == nil {
		return a.config
	}
	return doubled(a.config)
}

// save writes the adapter as PEFT does, with extra tensors.
func (a *adapter) save(dir string, extra []safetensors.Tensor) error {
	pairs, err := a.pairs()
	if err != nil {
		return err
	}
	for _, t := range a.full {
		values, err := t.v.Read()
		if err != nil {
			return err
		}
		extra = append(extra, safetensors.FromFloat32s(t.name(), t.spec.Shape, values))
	}
	return lora.Save(dir, a.stored(), pairs, extra)
}

// load puts back the values that save, or CausalLM.saveScored, wrote, and returns the extra tensors. With prefixed the
// file's names lack the prefix that its configuration names.
func (a *adapter) load(dir string, prefixed bool) (extra map[string]safetensors.Tensor, err error) {
	saved, err := lora.Load(dir)
	if err != nil {
		return nil, err
	}
	loaded := map[string]lora.Pair{}
	for _, pair := range saved.Pairs {
		if prefixed {
			pair.Module = saved.Config.Prefix + pair.Module
		}
		loaded[pair.Module] = pair
	}
	for _, l := range a.layers {
		pair, ok := loaded[l.Name]
		if !ok {
			return nil, fmt.Errorf("%s: no adapter of %s", dir, l.Name)
		}
		if a.start != nil {
			if pair, err = divided(pair, l.r); err != nil {
				return nil, fmt.Errorf("%s: adapter of %s: %w", dir, l.Name, err)
			}
		}
		err := errors.Join(l.a.Write(pair.A), l.b.Write(pair.B))
		if l.magnitude != nil {
			err = errors.Join(err, l.magnitude.Write(pair.Magnitude))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: adapter of %s: %w", dir, l.Name, err)
		}
	}
	return saved.Extra, a.writeFull(dir, saved.Extra)
}

// writeFull puts back the weights that are trained in full and removes them from tensors, which are a folder's.
func (a *adapter) writeFull(dir string, tensors map[string]safetensors.Tensor) error {
	for _, t := range a.full {
		tensor, ok := tensors[t.name()]
		if !ok {
			return fmt.Errorf("%s: no tensor %s, which modules_to_save mean", dir, t.name())
		}
		values, err := tensor.Float32s()
		if err == nil {
			err = t.v.Write(values)
		}
		if err != nil {
			return fmt.Errorf("%s: tensor %s: %w", dir, t.name(), err)
		}
		delete(tensors, t.name())
	}
	return nil
}

// changes are what merging the adapter does to the model's weights, by name.
func (a *adapter) changes(model *transformers.Config) (map[string]func([]float32), error) {
	pairs, err := a.pairs()
	if err != nil {
		return nil, err
	}
	changes := map[string]func([]float32){}
	merge(model, pairs, func(name string, change func([]float32)) { changes[name] = change })
	return changes, nil
}

// merge adds what merging pairs does to the weights of a model, by name.
func merge(model *transformers.Config, pairs []lora.Pair, add func(name string, change func([]float32))) {
	layers, names := layerNames(model.ExpertLinears()), map[string]string{}
	for _, spec := range model.TensorNames() {
		names[spec.Name] = spec.Candidates[0]
	}
	for _, pair := range pairs {
		if pair.Experts == 0 {
			add(pair.Module+".weight", pair.MergeInto)
			continue
		}
		layer, kind, _ := strings.Cut(layers[pair.Module], ".experts.")
		parts := strings.Split(kind, "_") // gate and up, or down
		for e := range pair.Experts {
			for i, part := range parts {
				name := names[fmt.Sprintf("%s.experts.%d.%s.weight", layer, e, part)]
				add(name, func(weight []float32) { pair.OfExpert(e, i, len(parts), model.WovenExperts()).MergeInto(weight) })
			}
		}
	}
}

func (a *adapter) close() {
	for _, l := range a.layers {
		torch.CloseAll(l.vars()...)
	}
}
