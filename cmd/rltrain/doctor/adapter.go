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

// describeAdapter tells what an adapter is and where it loads, and describes its base model, which find finds.
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
	config, pairs, extra, loadErr := lora.Load(dir)
	model, err := find(baseOf(dir, inUse))
	if err != nil {
		describeUses(s, inUse, tensors, "", loadErr)
		return fmt.Errorf("%s: %s: %w", filepath.Join(dir, lora.ConfigFile), base, err)
	}
	c, err := languageConfig(model.Dir)
	if err != nil {
		describeUses(s, inUse, tensors, "", loadErr)
		return err
	}
	if loadErr == nil {
		loadErr = policy.FitsLanguageModel(c, config, pairs, extra)
	}
	describeUses(s, inUse, tensors, c.ModelType, loadErr)
	return describeLanguageModel(s, model.Dir, task, weights)
}

// baseOf is the base model of the adapter in dir; a path beside the adapter holds wherever the program runs.
func baseOf(dir string, inUse map[string]string) string {
	name := textOf(inUse["base_model_name_or_path"])
	if strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../") {
		return filepath.Join(dir, filepath.FromSlash(name))
	}
	return name
}

// describeUses tells where an adapter loads. loadErr is why it does not load here.
func describeUses(s *shared.Sheet, inUse map[string]string, tensors []string, family string, loadErr error) {
	switch {
	case loadErr != nil:
		s.Row("rltrain", "refuses it: %v", loadErr)
	case family != "" && (inUse["use_dora"] != "" || inUse["modules_to_save"] != ""):
		s.Row("rltrain", "loads it merged: it can be used, not trained further")
	default:
		s.Row("rltrain", "loads it")
	}
	refused, notes := vllmVerdict(inUse, tensors, family)
	if len(refused) == 0 {
		s.Row("vLLM", "has no reason to refuse it")
	}
	for _, reason := range refused {
		s.Row("vLLM", "refuses it: %s", reason)
	}
	for _, note := range notes {
		s.Row("vLLM", "takes it otherwise than meant: %s", note)
	}
}
