package policy

import (
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

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
