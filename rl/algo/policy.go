package algo

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"rltrain/lora"
	"rltrain/rl"
	"rltrain/torch"
	"rltrain/torch/transformers"
)

// LabelPolicy is a policy whose action is one of C labels: an encoder with an adapter, a pooled vector z
// [H] for each text, and two linear heads on it. π(a|x) = softmax(W z + b), and V(x) = w·z + c.
//
// The value head reads z without sending its gradient back: its first errors, of a head that starts at
// zero, would otherwise pull the adapter away from what supervised training found.
type LabelPolicy struct {
	Labels    []string
	Pooling   string // transformers.PoolMean or PoolFamily
	MaxLength int    // tokens a text is cut at, special ones included
	BaseModel string // hub id or folder, as saved files name it

	model     *transformers.Model
	tokenizer *transformers.Tokenizer
	adapter   lora.Config
	layers    []adaptedLayer
	head      transformers.Dense // [C, H], [C]
	dense     transformers.Dense // [H, H], [H]: the head's layer before; empty where it has none
	value     transformers.Dense // [1, H], [1]
	tokens    int                // a batch of predictions holds about this many
}

// adaptedLayer is a linear layer with its trainable low-rank pair.
type adaptedLayer struct {
	transformers.Linear
	r     int
	scale float64    // what b·a is multiplied by
	a, b  *torch.Var // [r, in], [out, r]
}

// PolicyConfig says how a new LabelPolicy is made.
type PolicyConfig struct {
	Dir       string // model folder
	BaseModel string // what saved files call it; "" = Dir
	Revision  string // commit of BaseModel, as saved files name it; "" = none
	Labels    []string
	Pooling   string // PoolMean, PoolFamily; "" = as the folder says
	MaxLength int    // 0 = as many as the model has positions
	R         int
	Alpha     float64
	Dropout   float64
	Targets   []string // endings of layer names; empty = the family's
	Seed      uint64
}

// Purposes of random streams: the first id after the seed.
const (
	streamInit = iota + 1
	streamShuffle
	streamDropout
	streamRollout
	streamMinibatch
	streamAction
	streamReplay
	streamEvaluation
)

// predictTokens bounds a batch of predictions: large enough for full matrix products, small enough that
// its activations stay in tens of megabytes.
const predictTokens = 4096

// NewLabelPolicy makes a policy on a pretrained encoder: adapters that change nothing yet, a random
// classification head and a value head of zeros, all three functions of the seed.
func NewLabelPolicy(c PolicyConfig) (*LabelPolicy, error) {
	model, err := transformers.Load(c.Dir)
	if err != nil {
		return nil, err
	}
	p, err := newLabelPolicy(model, c)
	if err != nil {
		model.Close()
		return nil, err
	}
	if p.tokenizer, err = transformers.LoadTokenizer(c.Dir); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// RandomLabelPolicy is a policy without a tokenizer on an encoder of random weights, for benchmarks and
// tests.
func RandomLabelPolicy(config *transformers.Config, c PolicyConfig) (*LabelPolicy, error) {
	model, err := transformers.Random(config, c.Seed)
	if err != nil {
		return nil, err
	}
	p, err := newLabelPolicy(model, c)
	if err != nil {
		model.Close()
	}
	return p, err
}

func newLabelPolicy(model *transformers.Model, c PolicyConfig) (*LabelPolicy, error) {
	p := &LabelPolicy{
		Labels: c.Labels, Pooling: c.Pooling, MaxLength: c.MaxLength, BaseModel: c.BaseModel,
		model: model, tokens: predictTokens,
	}
	if p.BaseModel == "" {
		p.BaseModel = model.Dir
	}
	if p.Pooling == "" {
		pooling, err := transformers.PoolingOf(model.Dir)
		if err != nil {
			return nil, err
		}
		p.Pooling = pooling
	}
	if limit := model.Config.MaxLength(); p.MaxLength == 0 || p.MaxLength > limit {
		p.MaxLength = limit
	}
	targets := c.Targets
	if len(targets) == 0 {
		targets = model.Config.DefaultTargets()
	}
	p.adapter = lora.Config{
		BaseModel: p.BaseModel, Revision: c.Revision, R: c.R, Alpha: c.Alpha, Dropout: c.Dropout, TargetModules: lora.Modules{Names: targets},
		TaskType: lora.FeatureExtraction,
	}
	if p.Pooling == transformers.PoolFamily {
		if name := model.Config.PoolerName(); name != "" && model.Pooler == nil {
			return nil, fmt.Errorf("policy: %s has no %s weights, which pooling %q needs; choose pooling %q", model.Dir, name, transformers.PoolFamily, transformers.PoolMean)
		}
		p.adapter.TaskType, p.adapter.Prefix = lora.SequenceClassification, model.Config.Prefix()
		p.adapter.ModulesToSave = []string{"classifier"}
	}
	pairs, err := initialPairs(p.model.Config.Linears(), p.adapter, rl.Stream(c.Seed, streamInit, 0))
	if err != nil {
		return nil, err
	}
	if err := p.attach(pairs); err != nil {
		p.closeTrainable()
		return nil, err
	}
	if err := p.initHeads(c.Seed); err != nil {
		p.closeTrainable()
		return nil, err
	}
	return p, nil
}

// initialPairs draws a pair for each linear layer that the targets of a config without patterns mean.
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

// attach puts pairs on the encoder's layers as parameters.
func (p *LabelPolicy) attach(pairs []lora.Pair) error {
	layers := map[string]string{} // the core's names
	for _, linear := range p.model.Config.Linears() {
		layers[linear.Name] = linear.Layer
	}
	for _, pair := range pairs {
		l, err := newAdaptedLayer(pair)
		if err != nil {
			return err
		}
		p.layers = append(p.layers, l)
		if err := p.model.Encoder.Adapt(layers[pair.Module], l.a, l.b, l.scale); err != nil {
			return fmt.Errorf("policy: %w", err)
		}
	}
	return nil
}

// newAdaptedLayer makes the parameters of a pair.
func newAdaptedLayer(pair lora.Pair) (adaptedLayer, error) {
	if pair.Magnitude != nil {
		return adaptedLayer{}, fmt.Errorf("policy: adapter of %s: it is of DoRA, which is not supported here", pair.Module)
	}
	a, err := torch.Parameter(pair.A, int64(pair.R), int64(pair.In))
	if err != nil {
		return adaptedLayer{}, fmt.Errorf("policy: adapter of %s: %w", pair.Module, err)
	}
	b, err := torch.Parameter(pair.B, int64(pair.Out), int64(pair.R))
	if err != nil {
		a.Close()
		return adaptedLayer{}, fmt.Errorf("policy: adapter of %s: %w", pair.Module, err)
	}
	return adaptedLayer{
		Linear: transformers.Linear{Name: pair.Module, In: pair.In, Out: pair.Out}, r: pair.R, scale: pair.Scale, a: a, b: b,
	}, nil
}

// initHeads draws the classification head as torch.nn.Linear does, uniform in ±1/√H, or takes that of the
// folder where it has one for these labels.
func (p *LabelPolicy) initHeads(seed uint64) error {
	var heads [][]float32
	if p.Pooling == transformers.PoolFamily && p.model.Head != nil {
		if err := p.sameLabels(); err != nil {
			return err
		}
		var err error
		if heads, err = p.folderHead(); err != nil {
			return err
		}
	} else {
		rng := rl.Stream(seed, streamInit, 1)
		bound := 1 / math.Sqrt(float64(p.model.Config.HiddenSize))
		for _, part := range p.headParts() {
			data := make([]float32, part.size())
			for i := range data {
				data[i] = float32((2*rng.Float64() - 1) * bound)
			}
			heads = append(heads, data)
		}
	}
	return p.setHeads(append(heads, make([]float32, p.model.Config.HiddenSize), make([]float32, 1)))
}

// folderHead is the head that came with the model, in the order of headParts.
func (p *LabelPolicy) folderHead() ([][]float32, error) {
	vars := []*torch.Var{p.model.Head.Weight, p.model.Head.Bias}
	if dense := p.model.Dense; dense != nil {
		vars = append(vars, dense.Weight, dense.Bias)
	}
	var heads [][]float32
	for _, v := range vars {
		data, err := v.Read()
		if err != nil {
			return nil, err
		}
		heads = append(heads, data)
	}
	return heads, nil
}

// headPart is a tensor of a head.
type headPart struct {
	name string // in files
	dims []int64
	v    **torch.Var
}

func (h headPart) size() int64 {
	n := int64(1)
	for _, d := range h.dims {
		n *= d
	}
	return n
}

// headParts are the tensors of the classification head, in the order of headParams: that of the family, or
// one layer on the mean.
func (p *LabelPolicy) headParts() []headPart {
	classes, width := int64(len(p.Labels)), int64(p.model.Config.HiddenSize)
	dense, out := "", "head"
	if p.Pooling == transformers.PoolFamily {
		dense, out = p.model.Config.HeadLayers()
	}
	parts := []headPart{
		{out + ".weight", []int64{classes, width}, &p.head.Weight}, {out + ".bias", []int64{classes}, &p.head.Bias},
	}
	if dense != "" {
		parts = append(parts, headPart{dense + ".weight", []int64{width, width}, &p.dense.Weight},
			headPart{dense + ".bias", []int64{width}, &p.dense.Bias})
	}
	return parts
}

// sameLabels refuses to drop a trained head in silence.
func (p *LabelPolicy) sameLabels() error {
	have := p.model.Config.ID2Label
	same := len(have) == len(p.Labels)
	for i := 0; same && i < len(have); i++ {
		same = have[i] == p.Labels[i]
	}
	if !same {
		return fmt.Errorf("policy: %s has a classification head for %d labels %.80q, the data has %d labels %.80q; use data with those labels, or a folder without a head", p.model.Dir, len(have), have, len(p.Labels), p.Labels)
	}
	return nil
}

// setHeads makes parameters of the heads' values, in the order of headParams and valueParams.
func (p *LabelPolicy) setHeads(heads [][]float32) error {
	parts := append(p.headParts(), headPart{dims: []int64{1, int64(p.model.Config.HiddenSize)}, v: &p.value.Weight},
		headPart{dims: []int64{1}, v: &p.value.Bias})
	for i, part := range parts {
		v, err := torch.Parameter(heads[i], part.dims...)
		if err != nil {
			return fmt.Errorf("policy: heads: %w", err)
		}
		*part.v = v
	}
	return nil
}

// Close frees the policy.
func (p *LabelPolicy) Close() {
	p.closeTrainable()
	if p.tokenizer != nil {
		_ = p.tokenizer.Close()
	}
	p.model.Close()
}

func (p *LabelPolicy) closeTrainable() {
	for _, l := range p.layers {
		torch.CloseAll(l.a, l.b)
	}
	p.head.Close()
	p.dense.Close()
	p.value.Close()
}

// adapterParams are A and B of each adapted layer; headParams those of the classification head, valueParams
// those of the value head.
func (p *LabelPolicy) adapterParams() []*torch.Var {
	var params []*torch.Var
	for _, l := range p.layers {
		params = append(params, l.a, l.b)
	}
	return params
}

func (p *LabelPolicy) headParams() []*torch.Var {
	var params []*torch.Var
	for _, part := range p.headParts() {
		params = append(params, *part.v)
	}
	return params
}

func (p *LabelPolicy) valueParams() []*torch.Var { return []*torch.Var{p.value.Weight, p.value.Bias} }

// Parameters counts the weights: all of them, and those that training changes (value head included).
func (p *LabelPolicy) Parameters() (total, trainable int64) {
	for _, l := range p.layers {
		trainable += int64(l.r * (l.In + l.Out))
	}
	for _, part := range p.headParts() {
		trainable += part.size()
	}
	trainable += int64(p.model.Config.HiddenSize + 1)
	return p.model.Parameters + trainable, trainable
}

// Trainable says whether the policy has an adapter: a merged model has none.
func (p *LabelPolicy) Trainable() bool { return len(p.layers) > 0 }

// features is the pooled vector of each sequence, [S, H].
func (p *LabelPolicy) features(s *torch.Scope, sequences [][]int32, dropout torch.Dropout) torch.Tensor {
	packed := torch.Pack(sequences)
	hidden, cu := s.Hidden(p.model.Encoder, packed, torch.Pass{Adapter: true, Dropout: dropout})
	if p.Pooling == transformers.PoolMean {
		return s.SegmentMean(hidden, cu)
	}
	return p.model.Features(s, packed, hidden, cu, &p.dense)
}

// logProbs is log π(a|x) of every label, [S, C], from the pooled vectors z [S, H].
func (p *LabelPolicy) logProbs(s *torch.Scope, z torch.Tensor) torch.Tensor {
	return s.LogSoftmax(s.Linear(z, p.head.Weight.T(), p.head.Bias.T()))
}

// values is V(x), [S], from the pooled vectors z [S, H].
func (p *LabelPolicy) values(s *torch.Scope, z torch.Tensor) torch.Tensor {
	return s.Squeeze(s.Linear(s.Detach(z), p.value.Weight.T(), p.value.Bias.T()))
}

// Probs is π(·|x) of each sequence, in order. It stops early with ctx's error.
func (p *LabelPolicy) Probs(ctx context.Context, sequences [][]int32) ([][]float32, error) {
	classes := len(p.Labels)
	all := make([][]float32, 0, len(sequences))
	for begin := 0; begin < len(sequences); {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		end, tokens := begin, 0
		for end < len(sequences) && (end == begin || tokens+len(sequences[end]) <= p.tokens) {
			tokens += len(sequences[end])
			end++
		}
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			flat := s.Read(s.Exp(p.logProbs(s, p.features(s, sequences[begin:end], torch.Dropout{}))))
			for i := begin; i < end; i++ {
				all = append(all, flat[:classes:classes])
				flat = flat[classes:]
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("predicting: %w", err)
		}
		begin = end
	}
	return all, nil
}
