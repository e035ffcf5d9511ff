package doctor

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/hub"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
)

// describeAdapter describes an adapter, where it loads, and its base model, which find resolves.
func describeAdapter(s *shared.Sheet, find func(name string) (hub.Model, error), dir, task string) error {
	inUse, err := lora.InUse(dir)
	if err != nil {
		return err
	}
	tensors, weights, err := lora.TensorNames(dir)
	if err != nil {
		return err
	}
	s.Head("Adapter %s", dir)
	const base = "base_model_name_or_path"
	s.Row("base model", "%s", baseOf(dir, inUse))
	for _, key := range slices.Sorted(maps.Keys(inUse)) {
		if key != base {
			s.Row(key, "%.200s", inUse[key])
		}
	}
	s.Row("weights", "%s in %d tensors", millions(weights), len(tensors))
	adapter, loadErr := lora.Load(dir)
	model, err := find(baseOf(dir, inUse))
	if err != nil {
		describeUses(s, inUse, tensors, "", adapter, loadErr)
		return fmt.Errorf("%s: %s: %w", filepath.Join(dir, lora.ConfigFile), base, err)
	}
	c, err := languageConfig(model.Dir)
	if err != nil {
		describeUses(s, inUse, tensors, "", adapter, loadErr)
		return err
	}
	if loadErr == nil {
		loadErr = policy.FitsLanguageModel(c, adapter)
	}
	describeUses(s, inUse, tensors, c.ModelType, adapter, loadErr)
	return describeLanguageModel(s, model.Dir, task, weights)
}

// baseOf returns the base model of the adapter in dir. A relative path is relative to dir.
func baseOf(dir string, inUse map[string]string) string {
	name := textOf(inUse["base_model_name_or_path"])
	if strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../") {
		return filepath.Join(dir, filepath.FromSlash(name))
	}
	return name
}

// describeUses shows which programs load an adapter. loadErr is the error of loading it here.
func describeUses(s *shared.Sheet, inUse map[string]string, tensors []string, family string, adapter lora.Adapter, loadErr error) {
	switch {
	case loadErr != nil:
		s.Row("rltrain", "cannot load: %v", loadErr)
	case family != "" && adapter.MergedOnly() != "":
		s.Row("rltrain", "loads it merged (%s): inference only, no further training", adapter.MergedOnly())
	default:
		s.Row("rltrain", "loads")
	}
	refused, notes := vllmVerdict(inUse, tensors, family)
	if len(refused) == 0 {
		s.Row("vLLM", "should load")
	}
	for _, reason := range refused {
		s.Row("vLLM", "cannot load: %s", reason)
	}
	for _, note := range notes {
		s.Row("vLLM", "different results: %s", note)
	}
}
