package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// vllmRanks are the values of vLLM's --max-lora-rank; vllmRank is its default.
var vllmRanks = []int{1, 8, 16, 32, 64, 128, 256, 320, 512}

const vllmRank = 16

// vllmOff lists PEFT features that vLLM does not support.
var vllmOff = []string{"use_dora", "lora_bias", "bias", "alora_invocation_tokens", "trainable_token_indices", "layer_replication", "use_qalora", "use_bdlora"}

// vllmModules lists the modules that vLLM adapts, by family. Other families run through transformers without such a list.
var vllmModules = func() map[string][]string {
	split := []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"}
	all := map[string][]string{"phi3": {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "embed_tokens", "lm_head"}}
	for _, family := range []string{"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3_text"} {
		all[family] = split
	}
	return all
}()

// vllmVerdict returns why vLLM cannot load an adapter, and notes on results that would differ. inUse has the fields of
// lora.InUse, tensors the names in the file; family is the base model's, or "".
func vllmVerdict(inUse map[string]string, tensors []string, family string) (refused, notes []string) {
	refuse := func(format string, args ...any) { refused = append(refused, fmt.Sprintf(format, args...)) }
	if family == "gpt2" {
		refuse("vLLM has no LoRA for gpt2; merge the adapter")
	}
	if kind, ok := inUse["peft_type"]; ok && kind != `"LORA"` {
		refuse("peft_type %s is not supported; merge the adapter", kind)
		return refused, nil
	}
	for _, key := range []string{"r", "lora_alpha", "target_modules"} {
		if inUse[key] == "" {
			refuse("%s is missing", key)
		}
	}
	for _, key := range vllmOff {
		if value, ok := inUse[key]; ok {
			refuse("%s %s is not supported; merge the adapter", key, value)
		}
	}
	start, _ := strconv.Unquote(inUse["init_lora_weights"])
	for _, kind := range []string{"pissa", "olora", "corda", "loftq"} {
		if strings.HasPrefix(strings.ToLower(start), kind) {
			refuse("init_lora_weights %q also changes the base weights; merge the adapter", start)
		}
	}
	switch r := largestRank(inUse); {
	case r > vllmRanks[len(vllmRanks)-1]:
		refuse("rank %d is above %d, the maximum of --max-lora-rank", r, vllmRanks[len(vllmRanks)-1])
	case r > vllmRank:
		i, _ := slices.BinarySearch(vllmRanks, r)
		refuse("rank %d is above the default %d; start vLLM with --max-lora-rank %d", r, vllmRank, vllmRanks[i])
	}
	var saved []string
	if json.Unmarshal([]byte(inUse["modules_to_save"]), &saved) == nil {
		for _, module := range saved {
			if module != "classifier" && module != "score" {
				refuse("modules_to_save has %s; only classifier and score are supported", module)
			}
		}
	}
	for _, problem := range vllmTensors(tensors, vllmModules[family]) {
		refuse("%s", problem)
	}
	for _, key := range []string{"rank_pattern", "alpha_pattern"} {
		if _, ok := inUse[key]; ok {
			notes = append(notes, key+" is ignored, so some modules are scaled wrongly; merge the adapter")
		}
	}
	return refused, notes
}

// largestRank returns the largest of r and rank_pattern, or 0.
func largestRank(inUse map[string]string) int {
	r, _ := strconv.Atoi(inUse["r"])
	var pattern map[string]int
	if json.Unmarshal([]byte(inUse["rank_pattern"]), &pattern) == nil {
		for _, rank := range pattern {
			r = max(r, rank)
		}
	}
	return r
}

// vllmTensors returns a problem for each kind of tensor name that vLLM cannot read, and for each module that is not in
// known; a nil known allows all modules.
func vllmTensors(tensors, known []string) (problems []string) {
	seen := map[string]bool{}
	for _, name := range tensors {
		parts := strings.Split(strings.TrimSuffix(name, ".weight"), ".")
		last := parts[len(parts)-1]
		switch {
		case len(parts) > 1 && slices.Contains([]string{"lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B"}, last):
			module := parts[len(parts)-2]
			if known != nil && !slices.Contains(known, module) && !seen[module] {
				seen[module] = true
				problems = append(problems, fmt.Sprintf("vLLM does not adapt module %s, only %s", module, strings.Join(known, ", ")))
			}
		case slices.Contains(parts, "score") || slices.Contains(parts, "classifier"):
		case !seen[last]:
			seen[last] = true
			problems = append(problems, fmt.Sprintf("unknown tensor %.120s: not part of a LoRA pair, score or classifier", name))
		}
	}
	return problems
}
