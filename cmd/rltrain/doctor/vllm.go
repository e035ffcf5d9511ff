package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// vllmRanks are what vLLM takes for --max-lora-rank, and vllmRank is its default.
var vllmRanks = []int{1, 8, 16, 32, 64, 128, 256, 320, 512}

const vllmRank = 16

// vllmOff are the features of PEFT that vLLM has not.
var vllmOff = []string{"use_dora", "lora_bias", "bias", "alora_invocation_tokens", "layer_replication", "use_qalora", "use_bdlora"}

// vllmModules are the last names of modules that vLLM adapts, by family; it runs the families that are missing
// here through transformers' own code, which has no such list.
var vllmModules = func() map[string][]string {
	split := []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"}
	all := map[string][]string{"phi3": {"qkv_proj", "o_proj", "gate_up_proj", "down_proj", "embed_tokens", "lm_head"}}
	for _, family := range []string{"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gemma3_text"} {
		all[family] = split
	}
	return all
}()

// vllmVerdict says what vLLM refuses of an adapter and why, and what it has to be told or does in another way.
// inUse are the fields of lora.InUse, tensors the names in the file, family the base model's, "" if unknown.
func vllmVerdict(inUse map[string]string, tensors []string, family string) (refused, notes []string) {
	refuse := func(format string, args ...any) { refused = append(refused, fmt.Sprintf(format, args...)) }
	if family == "gpt2" {
		refuse("it has no LoRA for gpt2: merge the adapter")
	}
	for _, key := range []string{"r", "lora_alpha", "target_modules"} {
		if inUse[key] == "" {
			refuse("%s is missing", key)
		}
	}
	for _, key := range vllmOff {
		if value, ok := inUse[key]; ok {
			refuse("%s is %s: it has no such adapters; merge this one", key, value)
		}
	}
	start, _ := strconv.Unquote(inUse["init_lora_weights"])
	for _, kind := range []string{"pissa", "olora", "corda", "loftq"} {
		if strings.HasPrefix(strings.ToLower(start), kind) {
			refuse("init_lora_weights is %q: such adapters change the base weights too", start)
		}
	}
	switch r := largestRank(inUse); {
	case r > vllmRanks[len(vllmRanks)-1]:
		refuse("rank %d is above %d, the highest --max-lora-rank", r, vllmRanks[len(vllmRanks)-1])
	case r > vllmRank:
		i, _ := slices.BinarySearch(vllmRanks, r)
		refuse("rank %d is above %d, unless it is started with --max-lora-rank %d", r, vllmRank, vllmRanks[i])
	}
	var saved []string
	if json.Unmarshal([]byte(inUse["modules_to_save"]), &saved) == nil {
		for _, module := range saved {
			if module != "classifier" && module != "score" {
				refuse("modules_to_save has %s: only classifier and score may be stored whole", module)
			}
		}
	}
	for _, problem := range vllmTensors(tensors, vllmModules[family]) {
		refuse("%s", problem)
	}
	for _, key := range []string{"rank_pattern", "alpha_pattern"} {
		if _, ok := inUse[key]; ok {
			notes = append(notes, key+" is not read: modules with a rank or alpha of their own are scaled wrongly; merge the adapter")
		}
	}
	return refused, notes
}

// largestRank is the greatest of r and rank_pattern, 0 where they are no numbers.
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

// vllmTensors finds the tensors whose names vLLM cannot read, the first of each kind, and modules that are not
// among known; with none known, all are.
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
				problems = append(problems, fmt.Sprintf("module %s is not one that it adapts (%s)", module, strings.Join(known, ", ")))
			}
		case slices.Contains(parts, "score") || slices.Contains(parts, "classifier"):
		case !seen[last]:
			seen[last] = true
			problems = append(problems, fmt.Sprintf("tensor %.120s is neither of a LoRA pair nor of a score or classifier", name))
		}
	}
	return problems
}
