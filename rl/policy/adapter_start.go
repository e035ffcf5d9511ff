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
			return nil, fmt.Errorf("policy: target %s also means experts, which take no adapters here; choose attention's, or name the layer before it", target)
		}
	}
	var all []transformers.Linear
	for _, name := range lora.Except(chosen, c.ModulesToSave) {
		all = append(all, byName[name])
	}
	return all, nil
}

// initialPairs makes a randomly initialised pair for each linear layer that the targets of a config without patterns match.
func initialPairs(linears []transformers.Linear, experts []string, c lora.Config, init string, rng *rand.Rand) ([]lora.Pair, error) {
	chosen, err := chosenLinears(linears, experts, c)
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
	return pairs, nil
}
