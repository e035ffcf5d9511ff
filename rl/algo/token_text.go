package algo

import "rltrain/torch/transformers"

// ReadTokenFolder makes a policy of a model folder whose weights stay unread: it renders and encodes texts as
// training would, and can do nothing else. Close it after use.
func ReadTokenFolder(dir string) (*TokenPolicy, error) {
	config, err := transformers.LoadCausalConfig(dir)
	if err != nil {
		return nil, err
	}
	generation, err := transformers.LoadGenerationConfig(dir, config)
	if err != nil {
		return nil, err
	}
	tokenizer, err := transformers.LoadTokenizer(dir)
	if err != nil {
		return nil, err
	}
	p := &TokenPolicy{BaseModel: dir, Tokenizer: tokenizer, model: &transformers.Causal{Dir: dir, Config: config, Generation: generation}}
	if err := p.loadText(dir); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}
