package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// CausalLM is a policy whose actions are tokens: a causal language model, with an adapter on frozen
// weights or trained whole.
type CausalLM struct {
	BaseModel string // hub id or folder, as saved files name it
	Tokenizer *tokenizer.Tokenizer
	Templates *chat.Templates // nil where the folder has no chat template

	dir     string // that it was loaded from
	model   *transformers.Causal
	adapter adapter                    // empty where the policy is trained whole
	merged  map[string]func([]float32) // changes of model's weights that an adapter made, by name; nil for none
	eos     []int32                    // ids that end a text, the one that training appends first
	value   *valueHead                 // nil where there is none
	version uint64                     // counts the changes of the weights
	shared  bool                       // the tokenizer and the model's weights are another policy's
}

// TokenConfig says how a Token is made of a model folder.
type TokenConfig struct {
	Dir       string // model folder
	BaseModel string // what saved files call it; "" = Dir
	Revision  string // commit of BaseModel, as saved files name it; "" = none
	DType     string // of frozen weights: "fp32", "bf16", "fp16"; "" = as transformers.CausalOptions has it
	Full      bool   // train all weights, in fp32, instead of an adapter
	R         int    // of the adapter; 0 = none: the policy can only be used
	Alpha     float64
	Dropout   float64
	Targets   []string // endings of module names; empty = the family's
	Seed      uint64

	merged map[string]func([]float32) // an adapter's changes of the weights
}

// NewToken makes a policy on a pretrained model; an adapter changes nothing yet and is a function of
// the seed.
func NewToken(c TokenConfig) (*CausalLM, error) {
	// Reading a large vocabulary takes about as long as opening the native core, which the weights wait for.
	p := &CausalLM{BaseModel: c.BaseModel, dir: c.Dir, model: &transformers.Causal{}, merged: c.merged}
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Tokenizer, failed = tokenizer.Load(c.Dir)
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
	torch.ReleaseMemory() // what reading the vocabulary has left, before packed weights come beside it
	return p, nil
}

// RandomToken is a policy without a tokenizer on a Llama of random weights of dtype, for benchmarks.
func RandomToken(shape transformers.LlamaShape, dtype torch.DType, c TokenConfig) (*CausalLM, error) {
	model, err := transformers.RandomLlama(shape, dtype, c.Seed)
	if err != nil {
		return nil, err
	}
	p := &CausalLM{BaseModel: c.BaseModel, model: model}
	if err := p.adapt(c); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// adapt puts on the adapter that c asks for.
func (p *CausalLM) adapt(c TokenConfig) error {
	if c.Full || c.R == 0 {
		return nil
	}
	targets := c.Targets
	if len(targets) == 0 {
		targets = p.model.Config.DefaultTargets()
	}
	p.adapter.config = lora.Config{
		BaseModel: p.BaseModel, Revision: c.Revision, R: c.R, Alpha: c.Alpha, Dropout: c.Dropout,
		TargetModules: lora.Modules{Names: targets}, TaskType: lora.CausalLM, FanInFanOut: p.model.Config.FanInFanOut(),
	}
	pairs, err := initialPairs(p.model.Config.Linears(), p.adapter.config, rl.Stream(c.Seed, rl.StreamInit, 0))
	if err != nil {
		return err
	}
	return p.adapter.attach(p.model.Model, p.model.Config.Linears(), pairs)
}

// loadText reads what goes with the tokenizer, and checks that it is the model's.
func (p *CausalLM) loadText(dir string) error {
	if err := p.Tokenizer.CheckModel(p.model.Config.Core().VocabSize); err != nil {
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
func (p *CausalLM) EOS() []int32 { return slices.Clone(p.eos) }

// Forward implements Policy. A token is predicted by the state before it.
func (p *CausalLM) Forward(s *torch.Scope, b *rl.Batch, pass Pass) Output {
	how := torch.Pass{Adapter: !pass.Base, Checkpoint: pass.Checkpoint}
	if pass.Dropout {
		how.Dropout = torch.Dropout{P: p.adapter.config.Dropout, Keys: b.Dropout}
	}
	packed, rows := p.pack(b.Sequences, b.Rows, how)
	how.Rows = rows
	hidden, _ := s.Hidden(p.model.Model, packed, how)
	logProbs, entropy, rank := p.head(s, hidden, b.Actions, pass.Temperature)
	out := Output{
		LogProbs: logProbs, Entropy: entropy, Rank: func(s *torch.Scope) []int64 { return s.ReadInts(rank) },
		head: head{p, hidden, pass.Temperature},
	}
	if pass.Values {
		out.Values = values(s, hidden, *p.value, pass)
	}
	return out
}

// pack lays sequences end to end, each up to the last of its rows, and only once what neighbours begin with, up to
// the first token that is read. It returns where the rows are then.
func (p *CausalLM) pack(ids [][]int32, rows []int64, pass torch.Pass) (torch.Packed, []int64) {
	if slices.ContainsFunc(p.model.Config.Core().Ropes, func(r torch.Rope) bool { return r.SwitchLength > 0 }) {
		return torch.Pack(ids), rows // a token's state depends on how long its sequence is
	}
	starts := make([]int, len(ids)+1)
	first, last := make([]int, len(ids)), make([]int, len(ids)) // rows of each sequence
	for i, sequence := range ids {
		starts[i+1] = starts[i] + len(sequence)
		first[i], last[i] = len(sequence)-1, -1
	}
	of := each(rows, func(row int64) int {
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
	return packed, each(rows, func(row int64) int64 { return place[row] })
}

// each is value of every item.
func each[T, V any](items []T, value func(item T) V) []V {
	out := make([]V, len(items))
	for i, item := range items {
		out[i] = value(item)
	}
	return out
}

func (p *CausalLM) head(s *torch.Scope, hidden torch.Tensor, targets []int64, temperature float64) (logProbs, entropy, rank torch.Tensor) {
	var bias *torch.Tensor
	if p.model.HeadBias != nil {
		b := p.model.HeadBias.T()
		bias = &b
	}
	return s.TokenLogProbs(hidden, p.model.Head.T(), bias, targets, torch.HeadOptions{
		Temperature: temperature, Softcap: p.model.Config.Core().LogitSoftcap,
	})
}

// Close frees the policy.
func (p *CausalLM) Close() {
	p.adapter.close()
	p.value.close()
	if p.Tokenizer != nil && !p.shared {
		_ = p.Tokenizer.Close()
	}
	p.model.Close()
}

// Params implements run.Weights: the adapter or all weights, then the value head.
func (p *CausalLM) Params() []*torch.Var { return append(p.body(), p.value.params()...) }

func (p *CausalLM) body() []*torch.Var {
	params := p.adapter.params()
	if p.model.Trainable {
		for _, name := range slices.Sorted(maps.Keys(p.model.Weights)) {
			params = append(params, p.model.Weights[name])
		}
	}
	return params
}

// Changed implements run.Weights: samplers take the weights over before they write on.
func (p *CausalLM) Changed() { p.version++ }

// AddValueHead implements Policy.
func (p *CausalLM) AddValueHead() (err error) {
	if p.value == nil {
		p.value, err = newValueHead(p.dir, int64(p.model.Config.Core().HiddenSize))
	}
	return err
}

// Fresh implements Policy.
func (p *CausalLM) Fresh() (bool, error) {
	if len(p.adapter.layers) == 0 {
		return false, nil
	}
	return p.adapter.fresh()
}

// Groups implements Policy. Norms and biases, which have one dimension, do not decay.
func (p *CausalLM) Groups() []Group {
	matrices, vectors := Group{Role: Body, Decay: true}, Group{Role: Body}
	for _, v := range p.body() {
		if shape, err := v.Shape(); err == nil && len(shape) == 1 {
			vectors.Params = append(vectors.Params, v)
		} else {
			matrices.Params = append(matrices.Params, v)
		}
	}
	return append([]Group{matrices, vectors}, p.value.groups()...)
}

// Trainable says whether there is something to train: an adapter that is not merged, or all weights.
func (p *CausalLM) Trainable() bool { return len(p.body()) > 0 }

// Full tells whether all weights are trained.
func (p *CausalLM) Full() bool { return p.model.Trainable }

// Parameters counts the weights: all of them, and those that training changes (a value head included).
func (p *CausalLM) Parameters() (total, trainable int64) {
	total, trainable = p.model.Parameters+p.adapter.size(), p.adapter.size()
	if p.model.Trainable {
		trainable = total
	}
	head := p.value.size(p.model.Config.Core().HiddenSize)
	return total + head, trainable + head
}

// MaxLength is the number of positions that the model has.
func (p *CausalLM) MaxLength() int { return p.model.Config.Core().MaxPositions }

// LengthWithin is how long a sequence may be where at most n tokens are asked for; 0 asks for no limit but the model's.
func (p *CausalLM) LengthWithin(n int) int {
	if n == 0 {
		return p.MaxLength()
	}
	return min(n, p.MaxLength())
}

// VocabSize is the number of token ids.
func (p *CausalLM) VocabSize() int { return p.model.Config.Core().VocabSize }
