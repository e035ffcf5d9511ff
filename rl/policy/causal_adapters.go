package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/run"
)

// WithAdapter is p's model with the adapter of a folder instead of p's own. Both share the weights and the tokenizer, which
// the new policy's Close leaves alone: close p after it. A chat template and ends in the folder are the new policy's. WithAdapter
// refuses an adapter that replaces weights, since it needs a model of its own.
func (p *CausalLM) WithAdapter(dir string) (*CausalLM, error) {
	if p.merged != nil {
		return nil, fmt.Errorf("%s has an adapter merged into its weights and takes no other one", p.BaseModel)
	}
	saved, err := readAdapter(dir)
	if err != nil {
		return nil, err
	}
	if err := saved.fitsLanguageModel(p.config, p.BaseModel); err != nil {
		return nil, err
	}
	if only := saved.MergedOnly(); only != "" {
		return nil, fmt.Errorf("%s has %s, and only low-rank pairs can share a model; write a full model with rltrain merge", dir, only)
	}
	q, err := p.with(dir, saved.Adapter)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(q.readTemplate(dir), q.readEnds(dir)); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// with is p's model with the pairs of an adapter, which came from the folder source.
func (p *CausalLM) with(source string, a lora.Adapter) (*CausalLM, error) {
	q, err := p.share(source)
	if err != nil {
		return nil, err
	}
	q.adapter.frozen = true
	if err := q.attach(a.Config, a.Pairs); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// Snapshot is p as it is now: its adapter's pairs, and a policy with a copy of them for Sampler.Load. Close the copy before the
// model that p shares.
func (p *CausalLM) Snapshot() (a lora.Adapter, frozen *CausalLM, err error) {
	if !p.Adapted() || len(p.adapter.full) > 0 {
		return a, nil, errors.New("only low-rank pairs can share a model")
	}
	a.Config = p.adapter.stored()
	if a.Pairs, err = p.adapter.pairs(); err != nil {
		return a, nil, err
	}
	frozen, err = p.with("", a)
	return a, frozen, err
}

// WithNewAdapter is p's model with a new adapter to train, which c describes, instead of p's own. Both share the weights and
// the tokenizer, which the new policy's Close leaves alone: close p after it.
func (p *CausalLM) WithNewAdapter(c Config) (*CausalLM, error) {
	q, err := p.share("")
	if err == nil {
		if err = q.adapt(c); err != nil {
			q.Close()
		}
	}
	return q, err
}

// Copy is a policy with p's weights as they are now, in the order of p's Params. If p has an adapter, both share the model: close p
// after the copy.
func (p *CausalLM) Copy() (*CausalLM, error) {
	switch {
	case p.model.Trainable:
		return p.copyModel()
	case len(p.adapter.full) > 0:
		return nil, errors.New("a copy of the policy would share the modules of modules_to_save, which training changes")
	}
	pairs := make([]lora.Pair, len(p.adapter.layers))
	for i, l := range p.adapter.layers {
		var err error
		if pairs[i], err = l.pair(); err != nil {
			return nil, err
		}
	}
	q, err := p.share("")
	if err == nil {
		if err = q.attach(p.adapter.config, pairs); err != nil {
			q.Close()
		}
	}
	return q, err
}

// copyModel is Copy of a policy all of whose weights are trained.
func (p *CausalLM) copyModel() (*CausalLM, error) {
	weights, err := run.TakeSnapshot(p)
	if err != nil {
		return nil, err
	}
	q, err := NewCausalLM(Config{Dir: p.dir, BaseModel: p.BaseModel, Full: true})
	if err == nil {
		if err = weights.PutBack(q); err != nil {
			q.Close()
		}
	}
	return q, err
}

// share is p without its adapter. source is the folder of another one.
func (p *CausalLM) share(source string) (*CausalLM, error) {
	model, err := p.model.Share(nil)
	if err != nil {
		return nil, err
	}
	q := &CausalLM{backbone: &backbone{Tokenizer: p.Tokenizer, source: source}, Templates: p.Templates, Template: p.Template, eos: slices.Clone(p.eos), shared: true}
	q.use(model, p.BaseModel)
	return q, nil
}

// Targets are Config.Targets for the linear layers of attention, of the MLPs, or both.
func (p *CausalLM) Targets(attention, mlp bool) []string { return p.config.TargetsOf(attention, mlp) }

// Load puts the adapter of another policy beside that of the sampler's own, with whose weights it must have been made
// (WithAdapter). Both write in one batch. It is copied; GenerateOptions.Adapter asks for it by the number.
func (m *Sampler) Load(p *CausalLM) (adapter int, err error) {
	at := slices.Index(m.loaded, false)
	if at < 0 {
		at = len(m.loaded)
		m.loaded = append(m.loaded, false)
	}
	if err := m.engine.SetAdapter(at+2, p.core); err != nil {
		return 0, fmt.Errorf("generating: %w", err)
	}
	m.loaded[at] = true
	return at + 1, nil
}

// Unload removes an adapter. None of its completions may be in progress.
func (m *Sampler) Unload(adapter int) error {
	if err := m.engine.SetAdapter(adapter+1, nil); err != nil {
		return fmt.Errorf("generating: %w", err)
	}
	m.loaded[adapter-1] = false
	return nil
}

// SaveAdapter writes the adapter alone, as PEFT does, for a server that has the base model.
func (p *CausalLM) SaveAdapter(dir string) error {
	if !p.Adapted() {
		return errors.New("the policy has no adapter: all weights are trained")
	}
	return p.adapter.save(dir, nil)
}
