package policy

import (
	"context"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// Classifier is a policy whose action is one of C labels: an encoder or a language model with an adapter, a vector z [H] for
// each text, and two linear heads on it. π(a|x) = softmax(W z + b), and V(x) = w·z + c. With PoolScore there is no W: what
// the language model thinks of each label's text takes the place of W z + b.
type Classifier struct {
	Labels    []string
	Pooling   string // transformers.PoolMean or PoolFamily; PoolLast or PoolScore on a language model
	MaxLength int    // tokens a text is cut at, special ones included
	BaseModel string // hub id or folder, as saved files name it

	dir       string              // that it was loaded from, "" for a new one
	model     *transformers.Model // nil on a language model
	lm        *CausalLM           // nil on an encoder; its adapter is the policy's
	words     labelWords          // with PoolScore
	tokenizer *tokenizer.Tokenizer
	adapter   adapter            // of an encoder: see lora
	head      transformers.Dense // [C, H], [C]
	dense     transformers.Dense // [H, H], [H]: the head's layer before; empty where it has none
	value     *valueHead         // nil where there is none
}

// LabelConfig says how a new Label is made.
type LabelConfig struct {
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
	Frozen    bool // the adapter is used and not trained

	// Prompt asks for PoolScore: it is what the model reads, with TextMark for the text, as text or as messages.
	Prompt func(asText bool) envs.Observation
}

// NewLabel makes a policy on a pretrained encoder or language model: adapters that change nothing yet, a random
// classification head, both functions of the seed.
func NewLabel(c LabelConfig) (*Classifier, error) {
	if isLanguageModel(c.Dir) {
		return newLanguageLabel(c)
	}
	if c.Prompt != nil {
		return nil, notALanguageModel(c.Dir)
	}
	model, err := transformers.Load(c.Dir)
	if err != nil {
		return nil, err
	}
	p, err := newLabel(model, c)
	if err != nil {
		model.Close()
		return nil, err
	}
	if p.tokenizer, err = tokenizer.Load(c.Dir); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// RandomLabel is a policy without a tokenizer on an encoder of random weights, for benchmarks and
// tests.
func RandomLabel(config *transformers.Config, c LabelConfig) (*Classifier, error) {
	model, err := transformers.Random(config, c.Seed)
	if err != nil {
		return nil, err
	}
	p, err := newLabel(model, c)
	if err != nil {
		model.Close()
	}
	return p, err
}

func newLabel(model *transformers.Model, c LabelConfig) (*Classifier, error) {
	p := &Classifier{
		Labels: c.Labels, Pooling: c.Pooling, MaxLength: c.MaxLength, BaseModel: c.BaseModel,
		model: model,
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
	p.adapter.frozen = c.Frozen
	p.adapter.config = lora.Config{
		BaseModel: p.BaseModel, Revision: c.Revision, R: c.R, Alpha: c.Alpha, Dropout: c.Dropout, TargetModules: lora.Modules{Names: targets},
		TaskType: lora.FeatureExtraction,
	}
	if p.Pooling == transformers.PoolFamily {
		if name := model.Config.PoolerName(); name != "" && model.Pooler == nil {
			return nil, fmt.Errorf("policy: %s has no %s weights, which pooling %q needs; choose pooling %q", model.Dir, name, transformers.PoolFamily, transformers.PoolMean)
		}
		p.adapter.config.TaskType, p.adapter.config.Prefix = lora.SequenceClassification, model.Config.Prefix()
		p.adapter.config.ModulesToSave = []string{"classifier"}
	}
	pairs, err := initialPairs(p.model.Config.Linears(), p.adapter.config, rl.Stream(c.Seed, rl.StreamInit, 0))
	if err != nil {
		return nil, err
	}
	if err := p.adapter.attach(p.model.Encoder, p.model.Config.Linears(), pairs); err != nil {
		p.closeTrainable()
		return nil, err
	}
	if err := p.initHeads(c.Seed); err != nil {
		p.closeTrainable()
		return nil, err
	}
	return p, nil
}

// initHeads draws the classification head as torch.nn.Linear does, uniform in ±1/√H, or takes that of the
// folder where it has one for these labels.
func (p *Classifier) initHeads(seed uint64) error {
	var heads [][]float32
	if p.model != nil && p.Pooling == transformers.PoolFamily && p.model.Head != nil {
		if err := p.sameLabels(); err != nil {
			return err
		}
		var err error
		if heads, err = p.folderHead(); err != nil {
			return err
		}
	} else {
		rng := rl.Stream(seed, rl.StreamInit, 1)
		bound := 1 / math.Sqrt(float64(p.width()))
		for _, part := range p.headParts() {
			data := make([]float32, part.size())
			for i := range data {
				data[i] = float32((2*rng.Float64() - 1) * bound)
			}
			heads = append(heads, data)
		}
	}
	return p.setHeads(heads)
}

// folderHead is the head that came with the model, in the order of headParts.
func (p *Classifier) folderHead() ([][]float32, error) {
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
func (p *Classifier) headParts() []headPart {
	classes, width := int64(len(p.Labels)), int64(p.width())
	switch p.Pooling {
	case PoolScore:
		return nil
	case PoolLast:
		return []headPart{{scoreWeight, []int64{classes, width}, &p.head.Weight}}
	}
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
func (p *Classifier) sameLabels() error {
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

// setHeads makes parameters of the classification head's values, in the order of headParams.
func (p *Classifier) setHeads(heads [][]float32) error {
	for i, part := range p.headParts() {
		v, err := torch.Parameter(heads[i], part.dims...)
		if err != nil {
			return fmt.Errorf("policy: heads: %w", err)
		}
		*part.v = v
	}
	if p.Pooling == PoolLast { // a score layer has no bias
		var err error
		if p.head.Bias, err = torch.Constant(make([]float32, len(p.Labels)), int64(len(p.Labels))); err != nil {
			return fmt.Errorf("policy: heads: %w", err)
		}
	}
	return nil
}

// lora is the adapter that is trained.
func (p *Classifier) lora() *adapter {
	if p.lm != nil {
		return &p.lm.adapter
	}
	return &p.adapter
}

// width is H.
func (p *Classifier) width() int {
	if p.lm != nil {
		return p.lm.model.Config.Core().HiddenSize
	}
	return p.model.Config.HiddenSize
}

// IsReward tells a reward model, which has one output, from a classifier.
func (p *Classifier) IsReward() bool { return len(p.Labels) == 1 }

// Close frees the policy.
func (p *Classifier) Close() {
	p.closeTrainable()
	if p.lm != nil {
		p.lm.Close() // with the tokenizer
		return
	}
	if p.tokenizer != nil {
		_ = p.tokenizer.Close()
	}
	p.model.Close()
}

func (p *Classifier) closeTrainable() {
	p.adapter.close()
	p.head.Close()
	p.dense.Close()
	p.value.close()
}

// headParams are the weights of the classification head.
func (p *Classifier) headParams() []*torch.Var {
	var params []*torch.Var
	for _, part := range p.headParts() {
		params = append(params, *part.v)
	}
	return params
}

// Parameters counts the weights: all of them, and those that training changes (a value head included).
func (p *Classifier) Parameters() (total, trainable int64) {
	trainable = p.lora().size()
	for _, part := range p.headParts() {
		trainable += part.size()
	}
	trainable += p.value.size(p.width())
	if p.lm != nil {
		return p.lm.model.Parameters + trainable, trainable
	}
	return p.model.Parameters + trainable, trainable
}

// Trainable says whether the policy has an adapter: a merged model has none.
func (p *Classifier) Trainable() bool { return len(p.lora().layers) > 0 }

// Params implements run.Weights: the adapter, the classification head, the value head.
func (p *Classifier) Params() []*torch.Var {
	return append(append(p.lora().params(), p.headParams()...), p.value.params()...)
}

// Changed implements run.Weights. Nothing keeps a copy of a classifier's weights.
func (p *Classifier) Changed() {}

// AddValueHead implements Policy.
func (p *Classifier) AddValueHead() (err error) {
	if p.value == nil {
		p.value, err = newValueHead(p.dir, int64(p.width()))
	}
	return err
}

// Fresh implements Policy. The head of a classifier is part of the policy, and the base model has none; without a head the
// base model is a policy.
func (p *Classifier) Fresh() (bool, error) {
	if p.Pooling == PoolScore {
		return p.lm.Fresh()
	}
	return false, nil
}

// Groups implements Policy. Biases do not decay.
func (p *Classifier) Groups() []Group {
	groups := []Group{{Role: Body, Params: p.lora().params(), Decay: true}}
	for _, part := range p.headParts() {
		groups = append(groups, Group{Role: Head, Params: []*torch.Var{*part.v}, Decay: len(part.dims) > 1})
	}
	return append(groups, p.value.groups()...)
}

// Forward implements Policy.
func (p *Classifier) Forward(s *torch.Scope, b *rl.Batch, pass Pass) Output {
	dropout := torch.Dropout{}
	if pass.Dropout {
		dropout = torch.Dropout{P: p.lora().config.Dropout, Keys: b.Dropout}
	}
	texts, of := b.Sequences, []int64(nil)
	if !pass.Dropout {
		texts, of = different(texts)
	}
	z, labels := p.read(s, texts, torch.Pass{Adapter: !pass.Base, Dropout: dropout})
	labels = s.LogSoftmax(labels)
	if of != nil {
		index := s.Ints(of, int64(len(of)))
		z, labels = s.Rows(z, index), s.Rows(labels, index)
	}
	out := Output{
		LogProbs: s.Pick(labels, s.Ints(b.Actions, int64(len(b.Actions)))),
		Entropy:  s.Neg(s.SumLast(s.Mul(s.Exp(labels), labels))),
		Labels:   labels,
		Rank:     func(s *torch.Scope) []int64 { return ranks(s.Read(labels), b.Actions, len(p.Labels)) },
	}
	if pass.Values {
		out.Values = values(s, z, *p.value, pass)
	}
	return out
}

// ranks counts for each row of logProbs [S, C] the labels that are likelier than its action; of equals the first is.
func ranks(logProbs []float32, actions []int64, classes int) []int64 {
	out := make([]int64, len(actions))
	for i, action := range actions {
		row := logProbs[i*classes : (i+1)*classes]
		for k, l := range row {
			if l > row[action] || l == row[action] && int64(k) < action {
				out[i]++
			}
		}
	}
	return out
}

// read is the vector z of each sequence, [S, H], and the labels' logits, [S, C].
func (p *Classifier) read(s *torch.Scope, sequences [][]int32, pass torch.Pass) (z, logits torch.Tensor) {
	switch p.Pooling {
	case PoolScore:
		return p.scoreLabels(s, sequences, pass)
	case PoolLast:
		z = p.lm.lastStates(s, sequences, pass)
	case transformers.PoolMean:
		z = s.SegmentMean(s.Hidden(p.model.Encoder, torch.Pack(sequences), pass))
	default:
		z = p.model.Features(s, torch.Pack(sequences), pass, &p.dense)
	}
	return z, s.Linear(z, p.head.Weight.T(), p.head.Bias.T())
}

// Probs is π(·|x) of each sequence, in order. It stops early with ctx's error.
func (p *Classifier) Probs(ctx context.Context, sequences [][]int32) ([][]float32, error) {
	classes := len(p.Labels)
	all := make([][]float32, 0, len(sequences))
	for _, part := range rl.MicroBatches(len(sequences), predictTokens, func(i int) int { return len(sequences[i]) + p.headTokens() }) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if part[0] == part[1] {
			break
		}
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			_, logits := p.read(s, sequences[part[0]:part[1]], torch.Pass{Adapter: true})
			flat := s.Read(s.Exp(s.LogSoftmax(logits)))
			for range part[1] - part[0] {
				all = append(all, flat[:classes:classes])
				flat = flat[classes:]
			}
			return nil
		}); err != nil {
			return nil, fmt.Errorf("predicting: %w", err)
		}
	}
	return all, nil
}
