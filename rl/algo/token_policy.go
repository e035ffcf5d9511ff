package algo

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"

	"rltrain/lora"
	"rltrain/rl"
	"rltrain/torch"
	"rltrain/torch/transformers"
	"rltrain/torch/transformers/chat"
)

// TokenPolicy is a policy whose actions are tokens: a causal language model, with an adapter on frozen
// weights or trained whole.
type TokenPolicy struct {
	BaseModel string // hub id or folder, as saved files name it
	Tokenizer *transformers.Tokenizer
	Templates *chat.Templates // nil where the folder has no chat template

	dir     string // that it was loaded from
	model   *transformers.Causal
	adapter lora.Config
	layers  []adaptedLayer             // none where the policy is trained whole
	merged  map[string]func([]float32) // changes of model's weights that an adapter made, by name; nil for none
	eos     []int32                    // ids that end a text, the one that training appends first
	value   *transformers.Dense        // the value head, [1, H] and [1]; nil where there is none
}

// TokenPolicyConfig says how a TokenPolicy is made of a model folder.
type TokenPolicyConfig struct {
	Dir       string // model folder
	BaseModel string // what saved files call it; "" = Dir
	Revision  string // commit of BaseModel, as saved files name it; "" = none
	DType     string // of frozen weights: "fp32", "bf16", "fp16"; "" = as stored
	Full      bool   // train all weights, in fp32, instead of an adapter
	R         int    // of the adapter; 0 = none: the policy can only be used
	Alpha     float64
	Dropout   float64
	Targets   []string // endings of module names; empty = the family's
	Seed      uint64

	merged map[string]func([]float32) // an adapter's changes of the weights
}

// NewTokenPolicy makes a policy on a pretrained model; an adapter changes nothing yet and is a function of
// the seed.
func NewTokenPolicy(c TokenPolicyConfig) (*TokenPolicy, error) {
	// Reading a large vocabulary takes about as long as opening the native core, which the weights wait for.
	p := &TokenPolicy{BaseModel: c.BaseModel, dir: c.Dir, model: &transformers.Causal{}, merged: c.merged}
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Tokenizer, failed = transformers.LoadTokenizer(c.Dir)
	}()
	model, err := transformers.LoadCausal(c.Dir, transformers.CausalOptions{DType: c.DType, Trainable: c.Full, Change: c.merged})
	if err == nil {
		p.model = model
	}
	<-done
	if err := cmp.Or(err, failed); err != nil {
		p.Close()
		return nil, err
	}
	if p.BaseModel == "" {
		p.BaseModel = c.Dir
	}
	if err := p.loadText(c.Dir); err != nil {
		p.Close()
		return nil, err
	}
	if err := p.adapt(c); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// RandomTokenPolicy is a policy without a tokenizer on a Llama of random weights of dtype, for benchmarks.
func RandomTokenPolicy(shape transformers.LlamaShape, dtype torch.DType, c TokenPolicyConfig) (*TokenPolicy, error) {
	model, err := transformers.RandomLlama(shape, dtype, c.Seed)
	if err != nil {
		return nil, err
	}
	p := &TokenPolicy{BaseModel: c.BaseModel, model: model}
	if err := p.adapt(c); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// adapt puts on the adapter that c asks for.
func (p *TokenPolicy) adapt(c TokenPolicyConfig) error {
	if c.Full || c.R == 0 {
		return nil
	}
	targets := c.Targets
	if len(targets) == 0 {
		targets = p.model.Config.DefaultTargets()
	}
	p.adapter = lora.Config{
		BaseModel: p.BaseModel, Revision: c.Revision, R: c.R, Alpha: c.Alpha, Dropout: c.Dropout,
		TargetModules: lora.Modules{Names: targets}, TaskType: lora.CausalLM, FanInFanOut: p.model.Config.FanInFanOut(),
	}
	pairs, err := initialPairs(p.model.Config.Linears(), p.adapter, rl.Stream(c.Seed, streamInit, 0))
	if err != nil {
		return err
	}
	return p.attach(pairs)
}

// loadText reads what goes with the tokenizer, and checks that it is the model's.
func (p *TokenPolicy) loadText(dir string) error {
	if err := p.Tokenizer.CheckModel(p.model.Config.Decoder().VocabSize); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	templates, err := chat.Load(dir)
	if err != nil && !errors.Is(err, chat.ErrNone) {
		return err
	}
	p.Templates = templates
	if id, ok := p.Tokenizer.SpecialID("eos_token"); ok {
		p.eos = append(p.eos, id)
	}
	for _, id := range p.model.EOS() {
		if !slices.Contains(p.eos, id) {
			p.eos = append(p.eos, id)
		}
	}
	return nil
}

// EOS are the ids that end a text: the tokenizer's, those of config.json and of generation_config.json.
func (p *TokenPolicy) EOS() []int32 { return slices.Clone(p.eos) }

// A Sequence is a stream of tokens, some of which a loss reads.
type Sequence struct {
	IDs []int32
	// Labels tells of each token whether it is one that training predicts; never of the first.
	Labels []bool
}

func (q Sequence) labels() int {
	n := 0
	for _, label := range q.Labels {
		if label {
			n++
		}
	}
	return n
}

// scored is what a policy says about the labels of a packed batch, [M] each, in the order of the tokens.
type scored struct {
	logProbs torch.Tensor // log π(x_t|x_<t)
	entropy  torch.Tensor // of π(·|x_<t), in nats
	rank     torch.Tensor // how many tokens were likelier; int64, without gradient
	hidden   torch.Tensor // the states that predict the tokens, [M, H]
}

// score runs the policy on sequences and reads the labels off it; temperature divides the logits.
func (p *TokenPolicy) score(s *torch.Scope, sequences []Sequence, pass torch.Pass, temperature float64) scored {
	ids := make([][]int32, len(sequences))
	var rows, targets []int64
	begin := 0
	for i, q := range sequences {
		ids[i] = q.IDs
		for t, label := range q.Labels {
			if label {
				// What comes before a token predicts it.
				rows, targets = append(rows, int64(begin+t-1)), append(targets, int64(q.IDs[t]))
			}
		}
		begin += len(q.IDs)
	}
	return p.scoreRows(s, ids, rows, targets, pass, temperature)
}

// scoreRows runs the policy on sequences and reads the tokens targets [M] off the positions rows [M] of the
// sequences laid end to end.
func (p *TokenPolicy) scoreRows(s *torch.Scope, ids [][]int32, rows, targets []int64, pass torch.Pass, temperature float64) scored {
	packed, rows := p.pack(ids, rows, pass)
	all, _ := s.Hidden(p.model.Model, packed, pass)
	m := int64(len(rows))
	hidden := s.Rows(all, s.Ints(rows, m))
	logProbs, entropy, rank := p.head(s, hidden, s.Ints(targets, m), temperature)
	return scored{logProbs, entropy, rank, hidden}
}

// pack lays sequences end to end, each up to the last of its rows, and only once what neighbours begin with, up to
// the first token that is read. It returns where the rows are then.
func (p *TokenPolicy) pack(ids [][]int32, rows []int64, pass torch.Pass) (torch.Packed, []int64) {
	if slices.ContainsFunc(p.model.Config.Decoder().Ropes, func(r torch.Rope) bool { return r.SwitchLength > 0 }) {
		return torch.Pack(ids), rows // a token's state depends on how long its sequence is
	}
	starts := make([]int, len(ids)+1)
	first, last := make([]int, len(ids)), make([]int, len(ids)) // rows of each sequence
	for i, sequence := range ids {
		starts[i+1] = starts[i] + len(sequence)
		first[i], last[i] = len(sequence)-1, -1
	}
	of := gather(rows, func(row int64) int {
		return sort.Search(len(ids), func(i int) bool { return starts[i+1] > int(row) })
	})
	for j, i := range of {
		at := int(rows[j]) - starts[i]
		first[i], last[i] = min(first[i], at), max(last[i], at)
	}
	read, limits := slices.Clone(ids), make([]int, len(ids))
	moved := make([]int, len(ids)+1) // starts after cutting
	for i, sequence := range ids {
		if last[i] >= 0 {
			read[i] = sequence[:last[i]+1]
		}
		limits[i] = first[i] + 1 // the token after a row is no prompt any more
		moved[i+1] = moved[i] + len(read[i])
	}
	rows = slices.Clone(rows)
	for j, i := range of {
		rows[j] -= int64(starts[i] - moved[i])
	}
	if pass.Dropout.P > 0 {
		return torch.Pack(read), rows
	}
	packed, place := torch.PackShared(read, limits)
	return packed, gather(rows, func(row int64) int64 { return place[row] })
}

func (p *TokenPolicy) head(s *torch.Scope, hidden, targets torch.Tensor, temperature float64) (logProbs, entropy, rank torch.Tensor) {
	var bias *torch.Tensor
	if p.model.HeadBias != nil {
		b := p.model.HeadBias.T()
		bias = &b
	}
	return s.TokenLogProbs(hidden, p.model.Head.T(), bias, targets, torch.HeadOptions{
		Temperature: temperature, Softcap: p.model.Config.Decoder().LogitSoftcap,
	})
}

// Close frees the policy.
func (p *TokenPolicy) Close() {
	for _, l := range p.layers {
		torch.CloseAll(l.a, l.b)
	}
	p.value.Close()
	if p.Tokenizer != nil {
		_ = p.Tokenizer.Close()
	}
	p.model.Close()
}

// params are the trainable weights, in the order of snapshots: the policy's and the value head's.
func (p *TokenPolicy) params() []*torch.Var { return append(p.policyParams(), p.valueParams()...) }

func (p *TokenPolicy) policyParams() []*torch.Var {
	var params []*torch.Var
	for _, l := range p.layers {
		params = append(params, l.a, l.b)
	}
	if p.model.Trainable {
		for _, name := range slices.Sorted(maps.Keys(p.model.Weights)) {
			params = append(params, p.model.Weights[name])
		}
	}
	return params
}

// Full tells whether all weights are trained.
func (p *TokenPolicy) Full() bool { return p.model.Trainable }

// Parameters counts the weights: all of them, and those that training changes.
func (p *TokenPolicy) Parameters() (total, trainable int64) {
	total = p.model.Parameters
	if p.model.Trainable {
		return total, total
	}
	for _, l := range p.layers {
		trainable += int64(l.r * (l.In + l.Out))
	}
	return total + trainable, trainable
}

// MaxLength is the number of positions that the model has.
func (p *TokenPolicy) MaxLength() int { return p.model.Config.Decoder().MaxPositions }

// VocabSize is the number of token ids.
func (p *TokenPolicy) VocabSize() int { return p.model.Config.Decoder().VocabSize }

// Optimizer is AdamW over the trainable weights, matrices and vectors, and further groups; norms and biases,
// which have one dimension, do not decay.
func (p *TokenPolicy) Optimizer(weightDecay float64, further ...torch.ParamGroup) (*torch.AdamW, error) {
	var matrices, vectors []*torch.Var
	for _, v := range p.policyParams() {
		shape, err := v.Shape()
		if err != nil {
			return nil, err
		}
		if len(shape) > 1 {
			matrices = append(matrices, v)
		} else {
			vectors = append(vectors, v)
		}
	}
	if len(matrices) == 0 {
		return nil, errors.New("the policy has nothing to train: it was loaded without an adapter, or with one that is merged")
	}
	groups := append([]torch.ParamGroup{{Params: matrices, WeightDecay: weightDecay}, {Params: vectors}}, further...)
	return torch.NewAdamW(torch.AdamEps, groups...), nil
}

func (p *TokenPolicy) attach(pairs []lora.Pair) error {
	layers := map[string]string{}
	for _, linear := range p.model.Config.Linears() {
		layers[linear.Name] = linear.Layer
	}
	for _, pair := range pairs {
		l, err := newAdaptedLayer(pair)
		if err != nil {
			return err
		}
		p.layers = append(p.layers, l)
		if err := p.model.Model.Adapt(layers[pair.Module], l.a, l.b, l.scale); err != nil {
			return fmt.Errorf("policy: %w", err)
		}
	}
	return nil
}
