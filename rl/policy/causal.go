package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// CausalLM is a policy whose actions are tokens: a causal language model with an adapter on frozen weights, or with all
// weights trained.
type CausalLM struct {
	*backbone                 // its adapter is empty if all weights are trained
	Templates *chat.Templates // nil if the folder has no chat template
	Template  TemplateSettings

	model    *transformers.Causal
	merged   map[string]func([]float32) // changes of the weights that an adapter made, by name; nil for none
	note     string                     // of Note
	eos      []int32                    // ids that end a text, the one that training appends first
	added    []int32                    // those of eos that the model's files do not name
	endToken string                     // of EndAt; "" without it
	template []byte                     // of SetTemplate or an adapter's folder; nil if the model's folder has the templates
	version  uint64                     // counts the changes of the weights
	shared   bool                       // the tokenizer and the model's weights are another policy's
	probed   probed                     // what the chat template drops
}

// NewCausalLM makes a policy on a pretrained model. Its adapter changes nothing yet and is a function of the seed.
func NewCausalLM(c Config) (*CausalLM, error) {
	// Reading a large vocabulary takes about as long as opening the native core, which the weights wait for.
	p := &CausalLM{backbone: &backbone{source: c.Dir}, model: &transformers.Causal{}, merged: c.merged, Template: c.Template}
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Tokenizer, failed = tokenizer.Load(c.Dir)
	}()
	full, err := c.fullSpecs()
	if err == nil {
		err = p.load(c, full)
	}
	<-done
	if err = cmp.Or(err, failed); err == nil {
		err = p.loadText(c.Dir)
	}
	if err == nil {
		err = p.adapt(c)
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	torch.ReleaseMemory() // of reading the vocabulary, before the packed weights need memory
	return p, nil
}

// load reads the model's weights, of which those of full are trained.
func (p *CausalLM) load(c Config, full []transformers.TensorSpec) error {
	options := transformers.CausalOptions{DType: c.DType, Trainable: c.Full, Change: c.merged, Scored: c.scored, Pooled: c.pooled}
	for _, spec := range full {
		options.Trained = append(options.Trained, spec.Name)
	}
	var failed error
	if c.Init == InitPiSSA {
		config, err := transformers.LoadCausalConfig(c.Dir)
		if err != nil {
			return err
		}
		if p.adapter.start, options.Change, err = pissa(config, c.lora(c.causal(config), config), &failed); err != nil {
			return err
		}
	}
	model, err := transformers.LoadCausal(c.Dir, options)
	if err != nil {
		return cmp.Or(failed, err)
	}
	p.use(model, cmp.Or(c.BaseModel, c.Dir)) // Close frees it, also after failed
	if failed != nil {
		return failed
	}
	for _, spec := range full {
		p.adapter.full = append(p.adapter.full, fullTensor{spec, model.Weights[spec.Name]})
	}
	return nil
}

// RandomCausalLM is a policy without a tokenizer on transformers.RandomLlama, for benchmarks.
func RandomCausalLM(shape transformers.LlamaShape, dtype torch.DType, quant torch.QuantType, c Config) (*CausalLM, error) {
	model, err := transformers.RandomLlama(shape, dtype, quant, c.Seed)
	if err != nil {
		return nil, err
	}
	p := &CausalLM{backbone: &backbone{}}
	p.use(model, c.BaseModel)
	if err := p.adapt(c); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// use makes model the policy's, which closes it.
func (p *CausalLM) use(model *transformers.Causal, name string) {
	p.model = model
	p.BaseModel, p.dir, p.core, p.config, p.parameters = name, model.Dir, model.Model, model.Config, model.Parameters
}

// adapt puts on the adapter that c asks for.
func (p *CausalLM) adapt(c Config) error {
	if c.Full || c.R == 0 {
		return nil
	}
	if len(c.Parameters) > 0 && (c.Dropout > 0 || c.DoRA || c.Init == InitPiSSA || c.Init == InitOrthogonal) {
		return errors.New("policy: lora_target_parameters need lora_dropout 0 and the kaiming start, without use_dora")
	}
	p.adapter.frozen = c.Frozen
	if c.DoRA {
		return p.newAdapter(c, c.causal(p.config), func(pairs []lora.Pair) error { return magnitudes(p.model, pairs) })
	}
	return p.newAdapter(c, c.causal(p.config), nil)
}

// causal is what the configuration of a language model's adapter has of the model.
func (c Config) causal(model *transformers.Config) lora.Config {
	return lora.Config{TaskType: lora.CausalLM, FanInFanOut: model.FanInFanOut(), ModulesToSave: c.ModulesToSave}
}

// loadText reads the chat templates and the ids that end a text, and checks that the tokenizer fits the model.
func (p *CausalLM) loadText(dir string) error {
	if err := p.Tokenizer.CheckModel(p.config.Core().VocabSize); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	templates, err := chat.Load(dir)
	if err != nil && !errors.Is(err, chat.ErrNone) {
		return err
	}
	if p.Template.Now.IsZero() {
		p.Template.Now = time.Now()
	}
	if id, ok := p.Tokenizer.SpecialID("eos_token"); ok {
		p.eos = append(p.eos, id)
	}
	for _, id := range p.model.EOS() {
		if !slices.Contains(p.eos, id) {
			p.eos = append(p.eos, id)
		}
	}
	return p.useTemplates(templates, nil)
}

// useTemplates makes templates the policy's; own is the text to save, nil if the model's folder has it.
func (p *CausalLM) useTemplates(templates *chat.Templates, own []byte) error {
	p.Templates, p.template = templates, own
	end, err := turnEnd(p.Templates, p.Tokenizer, p.Template.Now)
	if err == nil && end >= 0 && !slices.Contains(p.eos, end) {
		p.eos, p.added = append(p.eos, end), append(p.added, end)
	}
	return err
}

// Experts is how many experts the model's layers have, 0 for none.
func (p *CausalLM) Experts() int { return p.config.NumExperts }

// EOS are the ids that end a text, the one that training appends first.
func (p *CausalLM) EOS() []int32 { return slices.Clone(p.eos) }

// AddedEOS are those of EOS that the model's files do not name as such. Save writes them to generation_config.json.
func (p *CausalLM) AddedEOS() []int32 { return slices.Clone(p.added) }

// Forward implements Policy. A token is predicted by the state before it.
func (p *CausalLM) Forward(s *torch.Scope, b *rl.Batch, pass Pass) Output {
	how := torch.Pass{Adapter: !pass.Base, Checkpoint: pass.Checkpoint}
	if pass.Dropout {
		how.Dropout = torch.Dropout{P: p.adapter.config.Dropout, Keys: b.Dropout}
	}
	if pass.Noise > 0 {
		how.Noise = p.noise(b, pass.Noise)
	}
	var load torch.Tensor
	if pass.Load {
		how.Load = &load
	}
	hidden := p.routed(s, b.Sequences, b.Rows, b.Routes, how)
	logProbs, entropy, rank := p.logProbs(s, hidden, b.Actions, pass.Temperature)
	out := Output{
		LogProbs: logProbs, Entropy: entropy, Load: load, Rank: func(s *torch.Scope) []int64 { return s.ReadInts(rank) },
		vocabulary: vocabulary{hidden, p.VocabSize(), func(s *torch.Scope, states torch.Tensor) torch.Tensor {
			return p.allLogProbs(s, states, pass.Temperature)
		}},
	}
	if pass.Values {
		out.Values = p.value.of(s, hidden, pass)
	}
	return out
}

// noise is uniform in ±alpha/√(L·E) for each of the E elements of a token's embedding, in a sequence of L tokens (Jain et al.
// 2023, "NEFTune", algorithm 1). It is a function of the sequence's key.
func (p *CausalLM) noise(b *rl.Batch, alpha float64) func(torch.Packed) []float32 {
	width := cmp.Or(p.config.Core().EmbeddingSize, p.width())
	return func(packed torch.Packed) []float32 {
		noise := make([]float32, len(packed.Tokens)*width)
		for i, key := range b.Dropout {
			rng := rand.New(rand.NewPCG(key, 1))
			bound := alpha / math.Sqrt(float64(len(b.Sequences[i])*width))
			for j := int(packed.CuSeqlens[i]) * width; j < int(packed.CuSeqlens[i+1])*width; j++ {
				noise[j] = float32((2*rng.Float64() - 1) * bound)
			}
		}
		return noise
	}
}

// states are the last layer's states of the rows of sequences that lie end to end, [len(rows), H].
func (p *CausalLM) states(s *torch.Scope, sequences [][]int32, rows []int64, how torch.Pass) torch.Tensor {
	return p.routed(s, sequences, rows, nil, how)
}

// routed are states with the experts of routes, nil if the router decides.
func (p *CausalLM) routed(s *torch.Scope, sequences [][]int32, rows []int64, routes []rl.Routes, how torch.Pass) torch.Tensor {
	packed, places, kept := p.pack(sequences, rows, how)
	how.Rows = kept
	if slices.ContainsFunc(routes, func(r rl.Routes) bool { return len(r) > 0 }) {
		packed.Routes = spread(routes, p.config.RouteWidth(), places, len(packed.Tokens))
	}
	states, _ := s.Hidden(p.core, packed, how)
	return states
}

// spread are the routes of n packed tokens, of which places are those of each sequence; nil for a model without experts.
func spread(routes []rl.Routes, width int, places [][]int64, n int) []int32 {
	if width == 0 {
		return nil
	}
	all := slices.Repeat([]int32{-1}, n*width)
	for i, own := range routes {
		for t, place := range places[i][:min(len(places[i]), len(own)/width)] {
			for j, expert := range own[t*width : (t+1)*width] {
				all[int(place)*width+j] = int32(expert)
			}
		}
	}
	return all
}

// pack puts sequences end to end, each up to the last of its rows. The common beginning of neighbours, up to the first row,
// is there once. It returns the places of each sequence's tokens, and the new places of the rows.
func (p *CausalLM) pack(ids [][]int32, rows []int64, pass torch.Pass) (packed torch.Packed, places [][]int64, moved []int64) {
	if slices.ContainsFunc(p.config.Core().Ropes, func(r torch.Rope) bool { return r.SwitchLength > 0 }) {
		return torch.Pack(ids), inPlace(ids), rows // a token's state depends on how long its sequence is
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
	cut := make([]int, len(ids)+1) // starts after cutting
	for i, sequence := range ids {
		if last[i] >= 0 {
			read[i] = sequence[:last[i]+1]
		}
		limits[i] = first[i] + 1 // the token after a row is no prompt any more
		cut[i+1] = cut[i] + len(read[i])
	}
	rows = slices.Clone(rows)
	for j, i := range of {
		rows[j] -= int64(starts[i] - cut[i])
	}
	if pass.Dropout.P > 0 || pass.Noise != nil {
		return torch.Pack(read), inPlace(read), rows
	}
	packed, place := torch.PackShared(read, limits)
	for i := range read {
		places = append(places, place[cut[i]:cut[i+1]])
	}
	return packed, places, each(rows, func(row int64) int64 { return place[row] })
}

// inPlace are the places of the tokens of sequences that lie end to end.
func inPlace(sequences [][]int32) (places [][]int64) {
	next := int64(0)
	for _, ids := range sequences {
		own := make([]int64, len(ids))
		for i := range own {
			own[i], next = next, next+1
		}
		places = append(places, own)
	}
	return places
}

// each is value of every item.
func each[T, V any](items []T, value func(item T) V) []V {
	out := make([]V, len(items))
	for i, item := range items {
		out[i] = value(item)
	}
	return out
}

// logProbs are log π of the targets, the entropy, and the targets' ranks at states [M, H], [M] each.
func (p *CausalLM) logProbs(s *torch.Scope, states torch.Tensor, targets []int64, temperature float64) (logProbs, entropy, rank torch.Tensor) {
	var bias *torch.Tensor
	if p.model.HeadBias != nil {
		b := p.model.HeadBias.T()
		bias = &b
	}
	return s.TokenLogProbs(states, p.model.Head.T(), bias, targets, torch.HeadOptions{
		Temperature: temperature, Softcap: p.config.Core().LogitSoftcap,
	})
}

// allLogProbs are log π of every token, [m, V], at states [m, H].
func (p *CausalLM) allLogProbs(s *torch.Scope, states torch.Tensor, temperature float64) torch.Tensor {
	var bias torch.Tensor
	if p.model.HeadBias != nil {
		bias = p.model.HeadBias.T()
	} else {
		bias = s.Floats(make([]float32, p.VocabSize()), int64(p.VocabSize()))
	}
	z := s.FrozenLinear(states, p.model.Head.T(), bias)
	if c := p.config.Core().LogitSoftcap; c > 0 {
		z = s.Scale(s.Tanh(s.Scale(z, 1/c)), c)
	}
	return s.LogSoftmax(s.Scale(z, 1/temperature))
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
			if p.model.Trains(name) {
				params = append(params, p.model.Weights[name])
			}
		}
	}
	return params
}

// Changed implements run.Weights: samplers take the new weights over before they generate.
func (p *CausalLM) Changed() { p.version++ }

// Version counts the changes of the weights.
func (p *CausalLM) Version() uint64 { return p.version }

// Groups implements Policy. Norms and biases, which have one dimension, do not decay.
func (p *CausalLM) Groups() ([]Group, error) {
	hidden, matrices, vectors := Group{Role: Body, Decay: true, Hidden: true}, Group{Role: Body, Decay: true}, Group{Role: Body}
	layers := map[*torch.Var]bool{}
	for name, v := range p.model.Weights {
		layers[v] = p.model.Trainable && strings.HasPrefix(name, "layers.")
	}
	for _, v := range p.body() {
		shape, err := v.Shape()
		if err != nil {
			return nil, err
		}
		group := &matrices
		switch {
		case len(shape) == 1:
			group = &vectors
		case len(shape) == 2 && layers[v]:
			group = &hidden
		}
		group.Params = append(group.Params, v)
	}
	return append([]Group{hidden, matrices, vectors}, p.value.groups()...), nil
}

// Trainable says whether there is something to train: an adapter that is not merged, or all weights.
func (p *CausalLM) Trainable() bool { return len(p.body()) > 0 }

// Full says whether all weights are trained.
func (p *CausalLM) Full() bool { return p.model.Trainable }

// Parameters counts the weights: all of them, and those that training changes (a value head included).
func (p *CausalLM) Parameters() (total, trainable int64) {
	total, trainable = p.parameters+p.adapter.size(), p.adapter.size()+p.adapter.fullSize()
	if p.model.Trainable {
		trainable = total
	}
	head := p.value.size()
	return total + head, trainable + head
}

// MaxLength is the number of the model's positions.
func (p *CausalLM) MaxLength() int { return p.config.Core().MaxPositions }

// LimitLength is the longest sequence within a limit of n tokens and the model's own; n = 0 is no limit.
func (p *CausalLM) LimitLength(n int) int {
	if n == 0 {
		return p.MaxLength()
	}
	return min(n, p.MaxLength())
}

// VocabSize is the number of token ids.
func (p *CausalLM) VocabSize() int { return p.config.Core().VocabSize }
