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
	r     int
	scale float64    // what b·a is multiplied by
	a, b  *torch.Var // [r, in], [out, r]
}

// fullTensor is a weight that is trained in full.
type fullTensor struct {
	spec transformers.TensorSpec
	v    *torch.Var
}

// name is what PEFT calls the tensor in files.
func (t fullTensor) name() string { return t.spec.Candidates[0] }

// fullSpecs are the tensors of c.ModulesToSave.
func (c Config) fullSpecs() ([]transformers.TensorSpec, error) {
	if len(c.ModulesToSave) == 0 {
		return nil, nil
	}
	model, err := transformers.LoadCausalConfig(c.Dir)
	if err != nil {
		return nil, err
	}
	specs := map[string][]transformers.TensorSpec{} // by module
	var names []string
	for _, spec := range model.TensorNames() {
		name := spec.Candidates[0]
		module := name[:strings.LastIndexByte(name, '.')]
		if specs[module] = append(specs[module], spec); len(specs[module]) == 1 {
			names = append(names, module)
		}
	}
	chosen, err := lora.MatchSaved(names, c.ModulesToSave)
	var all []transformers.TensorSpec
	for _, module := range chosen {
		for _, spec := range specs[module] {
			if spec.Transposed || len(spec.Joined) > 0 {
				return nil, fmt.Errorf("policy: module %s cannot be trained in full beside an adapter: files store its weight transposed or joined with others", module)
			}
			all = append(all, spec)
		}
	}
	return all, err
}

// chosenLinears are the linear layers that the targets of a config without patterns match. experts are names of modules that
// have none.
func chosenLinears(linears []transformers.Linear, experts []string, c lora.Config) ([]transformers.Linear, error) {
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
	for _, target := range c.TargetModules.Names {
		if slices.Contains(experts, target) {
			return nil, fmt.Errorf("policy: target %s also means experts, which take no adapters here; choose attention's, or name the layer before it", target)
		}
	}
	return each(lora.Except(chosen, c.ModulesToSave), func(name string) transformers.Linear { return byName[name] }), nil
}

// initialPairs makes a randomly initialised pair for each linear layer that the targets of a config without patterns match.
func initialPairs(linears []transformers.Linear, experts []string, c lora.Config, init string, rng *rand.Rand) ([]lora.Pair, error) {
	chosen, err := chosenLinears(linears, experts, c)
	if err != nil {
		return nil, err
	}
	start := lora.Init
	if init == InitOrthogonal {
		if c.R%2 != 0 {
			return nil, fmt.Errorf("policy: an orthogonal start needs an even rank, not %d", c.R)
		}
		start = lora.InitOrthogonal
	}
	pairs := make([]lora.Pair, len(chosen))
	for i, linear := range chosen {
		pairs[i] = start(linear.Name, linear.In, linear.Out, c.R, c.Scale(), rng)
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

// params are A and B of each layer, then the weights that are trained in full.
func (a *adapter) params() []*torch.Var {
	var params []*torch.Var
	for _, l := range a.layers {
		params = append(params, l.a, l.b)
	}
	for _, t := range a.full {
		params = append(params, t.v)
	}
	return params
}

// size is the number of weights of the pairs.
func (a *adapter) size() (n int64) {
	for _, l := range a.layers {
		n += int64(l.r * (l.In + l.Out))
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
			pairs[i] = a.joined(pairs[i], a.start[i])
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
		if err := errors.Join(l.a.Write(pair.A), l.b.Write(pair.B)); err != nil {
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
func (a *adapter) changes() (map[string]func([]float32), error) {
	pairs, err := a.pairs()
	if err != nil {
		return nil, err
	}
	changes := map[string]func([]float32){}
	for _, pair := range pairs {
		changes[pair.Module+".weight"] = pair.MergeInto
	}
	return changes, nil
}

func (a *adapter) close() {
	for _, l := range a.layers {
		torch.CloseAll(l.a, l.b)
	}
}

// savedAdapter is the adapter of a folder.
type savedAdapter struct {
	lora.Adapter
	dir string
}

func readAdapter(dir string) (savedAdapter, error) {
	a, err := lora.Load(dir)
	return savedAdapter{a, dir}, err
}

// base finds the model that the adapter is for, at the revision that it names.
func (a savedAdapter) base(ctx context.Context, client *hub.Client) (hub.Model, error) {
	name, revision := a.Config.BaseModel, a.Config.Revision
	// A folder has no revisions.
	if _, err := os.Stat(name); err != nil && revision != "" && revision != "main" {
		name += "@" + revision
	}
	model, err := client.Model(ctx, name, hub.Weights)
	if err == nil {
		err = cmp.Or(model.CheckBase(), a.Config.CheckBase(model.Dir))
	}
	if err != nil {
		return hub.Model{}, fmt.Errorf("%s: base_model_name_or_path: %w", filepath.Join(a.dir, lora.ConfigFile), err)
	}
	return model, nil
}

// fits checks the shapes against a model called name.
func (a savedAdapter) fits(model *transformers.Config, name string) error {
	return a.wrap(fits(model, a.Adapter), name)
}

func (a savedAdapter) wrap(err error, model string) error {
	if err != nil {
		return fmt.Errorf("%s does not fit %s: %w", a.dir, model, err)
	}
	return nil
}

// fitsLanguageModel is FitsLanguageModel of a model called name.
func (a savedAdapter) fitsLanguageModel(model *transformers.Config, name string) error {
	return a.wrap(FitsLanguageModel(model, a.Adapter), name)
}

// besideHead is an error if a classifier's adapter has more than pairs and the tensors of its head. With bare, the head is in
// another file.
func (a savedAdapter) besideHead(bare bool) error {
	pairs := a.Adapter
	if !bare {
		pairs.Extra, pairs.Config.ModulesToSave = nil, nil
	}
	if only := pairs.MergedOnly(); only != "" {
		return fmt.Errorf("%s has %s; a classifier's adapter can have low-rank pairs and the head only", a.dir, only)
	}
	return nil
}

// fullModules says whether the adapter is pairs and full modules that can be trained further.
func (a savedAdapter) fullModules() bool {
	rest := a.Adapter
	rest.Extra, rest.Config.ModulesToSave = nil, nil
	return len(a.Config.ModulesToSave) > 0 && !a.Config.WeightTying && rest.MergedOnly() == ""
}

// changes are what merging the adapter does to the weights of a model, which it fits, by name.
func (a savedAdapter) changes(model *transformers.Config) (map[string]func([]float32), error) {
	all := map[string]func([]float32){}
	add := func(name string, change func([]float32)) {
		if before := all[name]; before != nil {
			all[name] = func(weight []float32) { before(weight); change(weight) }
		} else {
			all[name] = change
		}
	}
	for name, tensor := range a.Extra {
		data, err := tensor.Float32s()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.dir, err)
		}
		add(name, func(weight []float32) { copy(weight, data) })
	}
	for _, pair := range a.Pairs {
		add(pair.Module+".weight", pair.MergeInto)
	}
	specs := tensorsOf(model)
	tokens := map[string]func([]float32){} // by the core's name
	for _, change := range a.Changes {
		spec, ok := specs[change.Tensor]
		if !ok { // it is optional
			continue
		}
		add(change.Tensor, change.Apply)
		tokens[spec.Name] = change.Apply
	}
	if embedding := tokens["embed.weight"]; embedding != nil && tokens["head.weight"] == nil && model.TieWordEmbeddings {
		for _, spec := range model.TensorNames() {
			if spec.Name == "head.weight" {
				add(spec.Candidates[0], embedding)
			}
		}
	}
	return all, nil
}

func fits(model *transformers.Config, a lora.Adapter) error {
	shapes := map[string][2]int{}
	for _, linear := range model.Linears() {
		shapes[strings.TrimPrefix(linear.Name, a.Config.Prefix)] = [2]int{linear.Out, linear.In}
	}
	return a.Fits(shapes)
}

// tensorsOf are the tensors of a model by each name that a folder may give them.
func tensorsOf(model *transformers.Config) map[string]transformers.TensorSpec {
	specs := map[string]transformers.TensorSpec{}
	for _, spec := range model.TensorNames() {
		for _, name := range spec.Candidates {
			specs[name] = spec
		}
	}
	return specs
}

// FitsLanguageModel checks that an adapter fits the model. Errors name what differs.
func FitsLanguageModel(model *transformers.Config, a lora.Adapter) error {
	if c := a.Config; c.TaskType != "" && c.TaskType != lora.CausalLM {
		return fmt.Errorf("task_type is %s; an adapter of a language model has %s", c.TaskType, lora.CausalLM)
	}
	if err := fits(model, a); err != nil {
		return err
	}
	specs := tensorsOf(model)
	for _, name := range slices.Sorted(maps.Keys(a.Extra)) {
		spec, ok := specs[name]
		switch {
		case !ok:
			return fmt.Errorf("modules_to_save: the adapter has tensor %.120q, the model has not", name)
		case spec.Transposed:
			return fmt.Errorf("modules_to_save: tensor %s is the weight of a Conv1D, which is not supported", name)
		case !slices.Equal(spec.Shape, a.Extra[name].Shape):
			return fmt.Errorf("modules_to_save: tensor %s has shape %v, the model's has %v: if the vocabulary was resized for the adapter, resize the model's too", name, a.Extra[name].Shape, spec.Shape)
		}
	}
	for _, change := range a.Changes {
		spec, ok := specs[change.Tensor]
		if !ok && !change.Optional {
			return fmt.Errorf("the adapter changes tensor %.120q, which the model lacks", change.Tensor)
		}
		if ok {
			if err := change.Fits(spec.Shape); err != nil {
				return err
			}
		}
	}
	return nil
}
