package policy

import (
	"context"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers"
	template "github.com/rltrain/rltrain/torch/transformers/chat"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// ReadCausalLM makes a policy of a model folder without reading the weights: it only renders and encodes texts, as training
// does. Close it after use.
func ReadCausalLM(dir string) (*CausalLM, error) {
	config, err := transformers.LoadCausalConfig(dir)
	if err != nil {
		return nil, err
	}
	generation, err := transformers.LoadGenerationConfig(dir, config)
	if err != nil {
		return nil, err
	}
	words, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	p := &CausalLM{backbone: &backbone{Tokenizer: words}}
	p.use(&transformers.Causal{Dir: dir, Config: config, Generation: generation}, dir)
	if err := p.loadText(dir); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// LoadText is LoadCausalLM without the weights: what it returns renders, encodes and decodes texts.
func LoadText(ctx context.Context, client *hub.Client, model string) (*CausalLM, error) {
	found, err := client.Model(ctx, model, hub.NoWeights)
	if err != nil {
		return nil, err
	}
	base, adapter := found, ""
	if files.Exist(found.Dir, lora.ConfigFile) {
		saved, err := readAdapter(found.Dir)
		if err != nil {
			return nil, err
		}
		if base, err = saved.base(ctx, client, hub.NoWeights); err != nil {
			return nil, err
		}
		adapter = found.Dir
	}
	p, err := ReadCausalLM(base.Dir)
	if err != nil {
		return nil, err
	}
	p.BaseModel = base.Name
	if adapter != "" {
		if err := p.readText(adapter); err != nil {
			p.Close()
			return nil, err
		}
	}
	return p, nil
}

// EncodeObservation is the tokens of what an episode shows first.
func (p *CausalLM) EncodeObservation(o envs.Observation) ([]int32, error) {
	if len(o.Messages) == 0 {
		return p.EncodeText(o.Text)
	}
	messages, opening := o.Messages, ""
	if last := messages[len(messages)-1]; last.Role == envs.RoleAssistant {
		messages, opening = messages[:len(messages)-1], last.Content
	}
	rendered, err := p.render(Conversation(messages), o.TemplateInputs, true, (*template.Templates).Render)
	if err != nil {
		return nil, err
	}
	return p.Tokenizer.EncodeRaw(rendered.Text+opening, false)
}

// Ask is the tokens of what a user says: a message through the chat template where the model has one, else the text.
func (p *CausalLM) Ask(text string) ([]int32, error) {
	if p.Templates == nil {
		return p.EncodeText(text)
	}
	return p.EncodeObservation(envs.Observation{Messages: []envs.Message{{Role: envs.RoleUser, Content: text}}})
}

// Generation is how the model's makers would sample, from generation_config.json.
func (p *CausalLM) Generation() transformers.GenerationConfig { return p.model.Generation }
