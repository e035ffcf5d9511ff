package doctor

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs/sandbox"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

func TestDriverVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Tue Aug 12 18:02:09 UTC 2025\nGCC version:  gcc version 12.2.0\n":           "580.65.06",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder@U16)  Wed Feb 26 02:11:30 UTC 2025\n": "570.124.06",
		"": "",
	} {
		got := driverVersion(text)
		expect.True(t, got == want, "%q: got %q, want %q", text, got, want)
	}
}

// TestSamplerAndTrainingAgree up to the rounding of fp32, or of bf16 if the processor multiplies in it.
func TestSamplerAndTrainingAgree(t *testing.T) {
	torchtest.NoLeaks(t)
	for _, limit := range []struct {
		dtype torch.DType
		mismatch
	}{{torch.F32, mismatch{1e-5, 1e-4}}, {torch.BF16, mismatch{2e-3, 2e-2}}} {
		found := must.Get(measureMismatch(limit.dtype))(t)
		expect.True(t, found.mean <= limit.mean && found.most <= limit.most && found.most != 0, "%v: %v", limit.dtype, found)
	}
}

// A tier has one row: the strongest means that works. If none works, each says why.
func TestStrongest(t *testing.T) {
	refused := errors.New("refused")
	got := strongest([]sandbox.Finding{
		{Tier: sandbox.Namespaces, How: "root", Err: refused},
		{Tier: sandbox.Namespaces, How: "unprivileged"},
		{Tier: sandbox.Landlock, How: "with a user", Err: refused},
		{Tier: sandbox.Landlock, How: "without", Err: refused},
		{Tier: sandbox.Unsafe, How: "seccomp"},
		{Tier: sandbox.Unsafe, How: "limits"},
	})
	var rows []string
	for _, f := range got {
		rows = append(rows, string(f.Tier)+" "+f.How)
	}
	expect.Equal(t, []string{"namespaces unprivileged", "landlock with a user", "landlock without", "unsafe seccomp"}, rows)
}

// TestEveryOperatorHasAPath: each operator of the core has its row, which gradients share.
func TestEveryOperatorHasAPath(t *testing.T) {
	schema := must.Get(os.ReadFile("../../../csrc/ops/schema.cc"))(t)
	gradient := regexp.MustCompile(`^(.*?)(_backward|_(input|weight|hidden)_grad|_grads)$`)
	var want, got []string
	for _, found := range regexp.MustCompile(`m\.def\(\s*"([a-z_]+)\(`).FindAllStringSubmatch(string(schema), -1) {
		name := gradient.ReplaceAllString(found[1], "$1")
		if name == "lora" {
			name = "lora_linear"
		}
		want = append(want, name)
	}
	for _, p := range paths {
		for _, name := range strings.Split(p.what, ", ") {
			if name != "AdamW" && name != "generation" { // these are not operators
				got = append(got, name)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	expect.Same(t, "", cmp.Diff(slices.Compact(want), got), "operators (-of the core +described):\n")
}

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
