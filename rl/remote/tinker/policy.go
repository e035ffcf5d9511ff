package tinker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Config configures a Policy.
type Config struct {
	URL      string // of the service, http://host:port
	Key      string
	Model    string // what the service calls the base model; "" = the only one that it has
	Rank     int    // of the adapter
	Seed     uint64
	From     string        // folder of a policy of this service to start from; "" = a new adapter
	Patience time.Duration // for a service that does not respond; 0 = 5 minutes
}

// Policy is a language model with an adapter on a service. Its base are the weights that it began with, which the service
// keeps as a second adapter. Forward gives log π and no entropy; a gradient of it goes to the service with the next Step of
// the optimizer.
type Policy struct {
	text    *policy.CausalLM // tokens and texts, without weights
	service *service
	ctx     context.Context
	config  Config
	name    string // of the base model there
	model   *model // that is trained
	base    *model // what it began as; nil until somebody asks
	start   string // path of the weights that it began with; "" = a new adapter
	open    []pass
	kept    map[int]string // paths of weights by number
	version uint64         // counts the changes of the weights
	sampler session
	spent   costs
}

// pass is a forward pass that may get a gradient.
type pass struct {
	logProbs *torch.Var // [M]
	examples []example
	places   []place
	now      [][]float32 // log π of all targets
}

// place is where an action is among the targets.
type place struct{ example, at int }

// costs count tokens since the last step.
type costs struct{ Forward, Backward, Prompt, Sampled int }

// New creates an adapter on the service. text has the tokenizer of its base model and stays the caller's. ctx must not end
// before the policy is closed.
func New(ctx context.Context, text *policy.CausalLM, c Config) (*Policy, error) {
	if c.Patience == 0 {
		c.Patience = 5 * time.Minute
	}
	p := &Policy{text: text, ctx: ctx, config: c, kept: map[int]string{}}
	var start saved
	if c.From != "" {
		var err error
		if start, err = readSaved(c.From); err != nil {
			return nil, err
		}
		p.start, p.config.Rank = start.Path, start.Rank
	}
	var err error
	if p.service, err = connect(ctx, c.URL, c.Key, c.Patience); err != nil {
		return nil, err
	}
	if err := p.begin(ctx); err != nil {
		p.service.close()
		return nil, err
	}
	return p, nil
}

// begin creates the model.
func (p *Policy) begin(ctx context.Context) (err error) {
	if p.name, err = p.service.find(ctx, p.config.Model, p.text.BaseModel); err != nil {
		return err
	}
	if p.model, err = p.create(ctx, 0); err != nil {
		return err
	}
	ids := p.probe(0)
	e := example{tokens: ids[:len(ids)-1], targets: ids[1:]}
	sums, err := p.model.examine(ctx, e)
	if err != nil || sums {
		return err
	}
	spare, err := p.create(ctx, 2)
	if err != nil {
		return err
	}
	defer spare.unload()
	err = spare.measureSums(ctx, e)
	p.model.averages = spare.averages
	return err
}

// create makes the number-th model of the session, with the weights of the start.
func (p *Policy) create(ctx context.Context, number int) (*model, error) {
	m, err := p.service.create(ctx, p.name, adapter{Rank: p.config.Rank, Seed: p.config.Seed, MLP: true, Attention: true}, number)
	if err == nil && p.start != "" {
		err = m.load(ctx, p.start, false)
	}
	return m, err
}

// find is the service's name of a base model.
func (s *service) find(ctx context.Context, name, local string) (string, error) {
	var can struct {
		Masks  bool `json:"loss_fn_masks"`
		Models []struct {
			Name string `json:"model_name"`
		} `json:"supported_models"`
	}
	if err := s.send(ctx, "GET", "get_server_capabilities", nil, &can); err != nil {
		return "", fmt.Errorf("%s: %w", s.url, err)
	}
	s.masks = can.Masks
	var names []string
	for _, m := range can.Models {
		names = append(names, m.Name)
	}
	switch {
	case name != "" && slices.Contains(names, name):
		return name, nil
	case name == "" && len(names) == 1:
		return names[0], nil
	case name == "" && slices.Contains(names, local):
		return local, nil
	}
	return "", fmt.Errorf("%s: the service has the models %s; choose one with engine_model", s.url, strings.Join(names, ", "))
}

// Name is what the service calls the base model.
func (p *Policy) Name() string { return p.name }

// Close ends the session. The service keeps what was saved.
func (p *Policy) Close() {
	p.drop()
	for _, m := range []*model{p.base, p.model} {
		if m != nil {
			m.unload()
		}
	}
	p.service.close()
}

// drop forgets the passes without a gradient.
func (p *Policy) drop() {
	for _, one := range p.open {
		one.logProbs.Close()
	}
	p.open = nil
}

// Forward implements policy.Policy.
func (p *Policy) Forward(s *torch.Scope, b *rl.Batch, how policy.Pass) policy.Output {
	if how.Values || how.Load || how.Temperature != 1 {
		s.Fail(errors.New("a policy on a service has log-probabilities at temperature 1 alone"))
	}
	one, logProbs, err := p.pass(b, how.Base)
	if err != nil {
		s.Fail(err)
	}
	m := int64(len(logProbs))
	if !s.Records() || how.Base {
		return policy.Output{LogProbs: s.Floats(logProbs, m)}
	}
	if one.logProbs, err = torch.Parameter(logProbs, m); err != nil {
		s.Fail(err)
	}
	p.open = append(p.open, one)
	return policy.Output{LogProbs: one.logProbs.T()}
}

// pass evaluates the actions of a batch, [M].
func (p *Policy) pass(b *rl.Batch, base bool) (one pass, logProbs []float32, err error) {
	m := p.model
	if base {
		if p.base == nil {
			if p.base, err = p.create(p.ctx, 1); err != nil {
				return one, nil, err
			}
		}
		m = p.base
	}
	one.examples, one.places = layOut(b)
	for _, e := range one.examples {
		p.spent.Forward += len(e.tokens)
	}
	if one.now, err = m.forward(p.ctx, one.examples); err != nil {
		return one, nil, err
	}
	for _, at := range one.places {
		logProbs = append(logProbs, one.now[at.example][at.at])
	}
	return one, logProbs, nil
}

// layOut makes examples of a batch. Tokens without an action have the next token as their target, which the mask leaves out. A token
// with several actions is in several examples.
func layOut(b *rl.Batch) (examples []example, places []place) {
	begin, row := int64(0), 0
	for i, ids := range b.Sequences {
		first := len(examples)
		taken := []map[int]bool{}
		for range b.Lengths[i] {
			at, k := int(b.Rows[row]-begin), 0
			for k < len(taken) && taken[k][at] {
				k++
			}
			if k == len(taken) {
				taken = append(taken, map[int]bool{})
				examples = append(examples, example{tokens: ids, targets: append(slices.Clone(ids[1:]), ids[0]), mask: make([]float32, len(ids))})
			}
			taken[k][at] = true
			examples[first+k].targets[at], examples[first+k].mask[at] = int32(b.Actions[row]), 1
			places = append(places, place{first + k, at})
			row++
		}
		begin += int64(len(ids))
		for k := range taken { // nothing after the last action
			last := 0
			for at := range taken[k] {
				last = max(last, at)
			}
			e := &examples[first+k]
			e.tokens, e.targets, e.mask = e.tokens[:last+1], e.targets[:last+1], e.mask[:last+1]
		}
	}
	return examples, places
}

// Params implements run.Weights: the log-probabilities that may get a gradient, since the weights are on the service.
func (p *Policy) Params() (all []*torch.Var) {
	for _, one := range p.open {
		all = append(all, one.logProbs)
	}
	return all
}

// Changed implements run.Weights.
func (p *Policy) Changed() { p.version++ }

// Groups implements policy.Policy: the service has the optimizer.
func (p *Policy) Groups() ([]policy.Group, error) { return nil, nil }

// AddValueHead implements policy.Policy.
func (p *Policy) AddValueHead() error {
	return errors.New("a policy on a service has no value head: choose an algorithm without one, such as grpo or rloo")
}

// Fresh implements policy.Policy: the base are the weights that training begins with.
func (p *Policy) Fresh() (bool, error) { return true, nil }

// Parameters counts no weights: they are on the service.
func (p *Policy) Parameters() (total, trainable int64) { return 0, 0 }

// ActivationBytes is 0: passes run on the service.
func (p *Policy) ActivationBytes(bool) int64 { return 0 }

// CacheBytes is 0: the service samples.
func (p *Policy) CacheBytes() int64 { return 0 }

// Measure adds what the service computed since the last call, in tokens.
func (p *Policy) Measure(m rl.Meter) {
	for name, n := range map[string]int{"forward": p.spent.Forward, "backward": p.spent.Backward, "prompt": p.spent.Prompt, "sampled": p.spent.Sampled} {
		m.Total("engine/"+name+"_tokens", float64(n))
	}
	p.spent = costs{}
}

// Validate measures the loss on samples. Accuracy and entropy are unknown.
func (p *Policy) Validate(ctx context.Context, samples []*rl.Sample) (policy.Validation, error) {
	_, logProbs, err := p.pass(rl.NewBatch(samples), false)
	if err != nil {
		return policy.Validation{}, fmt.Errorf("validating: %w", err)
	}
	sum := 0.0
	for _, l := range logProbs {
		sum -= float64(l)
	}
	return policy.Validation{Loss: sum / float64(max(1, len(logProbs))), Labels: len(logProbs), Partial: true}, ctx.Err()
}
