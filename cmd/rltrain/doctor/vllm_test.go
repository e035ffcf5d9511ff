package doctor

import (
	"fmt"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestVLLMVerdict(t *testing.T) {
	const layer = "base_model.model.model.layers.0."
	pair := []string{layer + "self_attn.q_proj.lora_A.weight", layer + "self_attn.q_proj.lora_B.weight"}
	plain := func(more ...string) map[string]string {
		fields := map[string]string{"r": "16", "lora_alpha": "32", "target_modules": `["q_proj"]`}
		for i := 0; i < len(more); i += 2 {
			fields[more[i]] = more[i+1]
		}
		return fields
	}
	for _, test := range []struct {
		name    string
		fields  map[string]string
		tensors []string
		family  string
		refused []string
		notes   []string
	}{
		{"plain", plain(), pair, "llama", nil, nil},
		{"rank below the list's", plain("r", "12"), pair, "llama", nil, nil},
		{"rank above the default", plain("r", "24"), pair, "llama", []string{"rank 24 is above the default 16; start vLLM with --max-lora-rank 32"}, nil},
		{"rank of the list", plain("r", "64"), pair, "llama", []string{"rank 64 is above the default 16; start vLLM with --max-lora-rank 64"}, nil},
		{"rank above all", plain("r", "600"), pair, "llama", []string{"rank 600 is above 512, the maximum of --max-lora-rank"}, nil},
		{
			"rank of a module", plain("rank_pattern", `{"q_proj":40}`), pair, "llama",
			[]string{"rank 40 is above the default 16; start vLLM with --max-lora-rank 64"},
			[]string{"rank_pattern is ignored, so some modules are scaled wrongly; merge the adapter"},
		},
		{"dora", plain("use_dora", "true"), append(pair, layer+"self_attn.q_proj.lora_magnitude_vector"), "llama", []string{
			"use_dora true is not supported; merge the adapter",
			"unknown tensor " + layer + "self_attn.q_proj.lora_magnitude_vector: not part of a LoRA pair, score or classifier",
		}, nil},
		{"pissa", plain("init_lora_weights", `"pissa_niter_16"`), pair, "llama", []string{`init_lora_weights "pissa_niter_16" also changes the base weights; merge the adapter`}, nil},
		{"gaussian", plain("init_lora_weights", `"gaussian"`), pair, "llama", nil, nil},
		{"head", plain("modules_to_save", `["score","lm_head"]`), append(pair, "base_model.model.lm_head.weight"), "llama", []string{
			"modules_to_save has lm_head; only classifier and score are supported",
			"unknown tensor base_model.model.lm_head.weight: not part of a LoRA pair, score or classifier",
		}, nil},
		{"score", plain("modules_to_save", `["score"]`), append(pair, "base_model.model.score.weight"), "llama", nil, nil},
		{"split modules", plain(), pair, "phi3", []string{"vLLM does not adapt module q_proj, only qkv_proj, o_proj, gate_up_proj, down_proj, embed_tokens, lm_head"}, nil},
		{"no list", plain(), pair, "gpt_neox", nil, nil},
		{"gpt2", plain(), nil, "gpt2", []string{"vLLM has no LoRA for gpt2; merge the adapter"}, nil},
		{"empty", nil, nil, "", []string{"r is missing", "lora_alpha is missing", "target_modules is missing"}, nil},
	} {
		refused, notes := vllmVerdict(test.fields, test.tensors, test.family)
		expect.Equal(t, test.refused, refused, fmt.Sprintf("%s: refused", test.name))
		expect.Equal(t, test.notes, notes, fmt.Sprintf("%s: notes", test.name))
	}
}
