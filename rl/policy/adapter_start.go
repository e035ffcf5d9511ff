package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/transformers"
)

// chosenLinears are the linear layers that the targets of a config without patterns match. experts are names of modules that
// have none.
func chosenLinears(linears []transformers.Linear, experts []string, c lora.Config) ([]transformers.Linear, error) {
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
	for _, target := range c.TargetModules.Names {
		if slices.Contains(experts, target) {
			return nil, fmt.Errorf("policy: target %s also means experts, whose adapters lora_target_parameters chooses; choose attention's, or name the layer before it", target)
		}
	}
	var all []transformers.Linear
	for _, name := range lora.Except(chosen, c.ModulesToSave) {
		all = append(all, byName[name])
	}
	return all, nil
}

// chosenExperts are the tensors of experts that the config chooses.
func chosenExperts(model *transformers.Config, c lora.Config) (chosen []transformers.Linear, err error) {
	if len(c.TargetParameters) == 0 {
		return nil, nil
	}
	all := model.ExpertLinears()
	if len(all) == 0 {
		return nil, fmt.Errorf("policy: lora_target_parameters are for models with experts; %s has none", model.ModelType)
	}
	var names []string
	for _, l := range all {
		names = append(names, l.Name)
	}
	matched, err := lora.Match(names, c.TargetParameters)
	for _, l := range all {
		if slices.Contains(matched, l.Name) {
			chosen = append(chosen, l)
		}
	}
	return chosen, err
}

// initialPairs makes a randomly initialised pair for each linear layer that the targets of a config without patterns match.
func initialPairs(model *transformers.Config, c lora.Config, init string, rng *rand.Rand) ([]lora.Pair, error) {
	chosen, err := chosenLinears(model.Linears(), model.ExpertModules(), c)
	if err != nil {
		return nil, err
	}
	experts, err := chosenExperts(model, c)
	if err != nil {
		return nil, err
	}
	start := lora.Init
	if init == InitOrthogonal {
		if c.R%2 != 0 {
			return nil, fmt.Errorf("policy: an orthogonal start needs an even rank, not %d", c.R)
		}
		start = lora.InitOrthogonal
	}
	pairs := make([]lora.Pair, len(chosen))
	for i, linear := range chosen {
		pairs[i] = start(linear.Name, linear.In, linear.Out, c.R, c.Scale(), rng)
	}
	for _, l := range experts {
		pair := lora.Init(l.Name, l.In, l.Out, c.R*l.Experts, c.Scale(), rng)
		pair.R, pair.Experts = c.R, l.Experts
		pairs = append(pairs, pair)
	}
	return pairs, nil
}
