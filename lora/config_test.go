package lora

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestMarshal(t *testing.T) {
	c := Config{
		BaseModel: "a/<b>", R: 8, Alpha: 16, Dropout: 0.1, TargetModules: Modules{Names: []string{"query", "output.dense"}},
		Revision: "v1", RankPattern: []Pattern[int]{{"z.query", 4}, {"query", 2}}, AlphaPattern: []Pattern[float64]{{`layer\.\d+\.output.dense`, 0.5}},
		ExcludeModules: Modules{Pattern: `.*\.7\..*`}, Layers: []int{1, 3}, LayersPattern: []string{"layer"},
		ModulesToSave: []string{"classifier", "score"}, TaskType: SequenceClassification, Prefix: "bert.",
	}
	got := must.Get(c.marshal())(t)
	expect.Equal(t, string(must.Get(os.ReadFile("testdata/written.json"))(t)), string(got))
	back := must.Get(parseConfig(got))(t)
	c.Prefix = "" // Load finds it in the tensors
	expect.Equal(t, c, back)
}

func TestParseConfig(t *testing.T) {
	tests := []struct {
		name, text string
		want       Config
	}{
		{"one term", `{"peft_type":"OFT","target_modules":["q"],"num_cayley_neumann_terms":1}`, Config{Method: oft, R: 8, Alpha: 8, TargetModules: Modules{Names: []string{"q"}}, CayleyTerms: 1}},
		{
			"largest numbers", `{"peft_type":"LORA","task_type":"FEATURE_EXTRACTION","target_modules":["query"],"r":65536,"lora_alpha":1.7976931348623157e308}`,
			Config{R: 65536, Alpha: math.MaxFloat64, TargetModules: Modules{Names: []string{"query"}}, TaskType: FeatureExtraction},
		},
		{
			"features not in use, some unknown",
			`{"peft_type":"LORA","task_type":"SEQ_CLS","target_modules":["query"],"r":2,"lora_alpha":3.5,"use_rslora":true,
			  "init_lora_weights":"gaussian","peft_version":"9.9.9","revision":"main","megatron_core":"megatron.core","qalora_group_size":16,
			  "auto_mapping":{"base_model_class":"BertModel"},"rank_pattern":{},"use_new":false,"new_config":null,"exclude_modules":[],"lora_bias":false}`,
			Config{Revision: "main", R: 2, Alpha: 3.5, RSLoRA: true, TargetModules: Modules{Names: []string{"query"}}, TaskType: SequenceClassification},
		},
		{
			"patterns in order, one twice",
			`{"peft_type":"LORA","target_modules":"All-Linear","exclude_modules":["query"],"rank_pattern":{"b":3,"a":4,"b":5},"alpha_pattern":{"z":1,"y":0.5}}`,
			Config{
				R: 8, Alpha: 8, TargetModules: Modules{Pattern: "All-Linear"}, ExcludeModules: Modules{Names: []string{"query"}},
				RankPattern: []Pattern[int]{{"b", 5}, {"a", 4}}, AlphaPattern: []Pattern[float64]{{"z", 1}, {"y", 0.5}},
			},
		},
		{
			"one layer, of a language model",
			`{"peft_type":"LORA","task_type":"CAUSAL_LM","target_modules":["c_attn"],"fan_in_fan_out":true,"layers_to_transform":2,"layers_pattern":"h","init_lora_weights":"eva","eva_config":{"rho":2}}`,
			Config{
				R: 8, Alpha: 8, TargetModules: Modules{Names: []string{"c_attn"}}, TaskType: CausalLM, FanInFanOut: true,
				Layers: []int{2}, LayersPattern: []string{"h"},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			expect.Equal(t, tt.want, must.Get(parseConfig([]byte(tt.text)))(t))
		})
	}
}

func TestParseConfigRefuses(t *testing.T) {
	tests := []struct{ name, member, want string }{
		{"dora", `"use_dora":"yes"`, `use_dora: "yes" has the wrong type`},
		{"deep", `"rank_pattern":` + strings.Repeat(`{"a":`, 1<<15) + "1" + strings.Repeat("}", 1<<15), "not a JSON object: invalid character '{' exceeded max depth"},
		{"deep but readable", `"lora_ga_config":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000), `"lora_ga_config" is [[[`},
		{"NUL in a name", `"target_modules":"q\u0000("`, "target_modules: pattern \"q\\x00(\" is not supported"},
		{"bias of the pair", `"lora_bias":true,"use_dora":true`, `lora_bias with use_dora`},
		{"bias of the model", `"bias":"some"`, `bias "some" is not supported`},
		{"layer replication", `"layer_replication":[[0,4],[2,5]]`, `"layer_replication" is [[0,4],[2,5]]`},
		{"alora", `"alora_invocation_tokens":[1,2]`, `"alora_invocation_tokens" is [1,2], which is not supported`},
		{"rank by module", `"rank_pattern":{"query":0}`, `rank_pattern: "query" has rank 0`},
		{"rank null", `"rank_pattern":{"query":null}`, `rank_pattern: {"query":null} has the wrong type`},
		{"ranks in a list", `"rank_pattern":[4]`, `rank_pattern: [4] has the wrong type`},
		{"expression of ranks", `"rank_pattern":{"a)|(b":4}`, `rank_pattern: pattern "a)|(b" is not supported`},
		{"alpha by module", `"alpha_pattern":{"query":-1}`, `alpha_pattern: "query" has alpha -1; it must be positive`},
		{"expression of alphas", `"alpha_pattern":{"q(?=u)":4}`, `alpha_pattern: pattern "q(?=u)" is not supported (no lookaround, no backreferences`},
		{"expression in another meaning", `"target_modules":"q{,2}"`, `target_modules: pattern "q{,2}" uses {,n} or a`},
		{"expression of exclusion", `"exclude_modules":"*"`, `exclude_modules: pattern "*"`},
		{"expression of layers", `"layers_to_transform":1,"layers_pattern":["h","("]`, `layers_pattern: pattern "("`},
		{"expression of whole modules", `"modules_to_save":["["]`, `modules_to_save: pattern "["`},
		{"whole modules without a name", `"modules_to_save":["a",""]`, "modules_to_save contains an empty name"},
		{"layers without a name", `"layers_to_transform":1,"layers_pattern":""`, "layers_pattern contains an empty name"},
		{"layers of a pattern", `"target_modules":"q","layers_to_transform":1,"layers_pattern":"h"`, `layers_to_transform and layers_pattern need a list of target_modules, not the pattern "q"`},
		{"no layers of a pattern", `"layers_pattern":"h"`, "layers_pattern needs layers_to_transform"},
		{"layers as text", `"layers_to_transform":"1"`, `layers_to_transform: "1" has the wrong type`},
		{"empty exclusion", `"exclude_modules":[""]`, "exclude_modules contains an empty name"},
		{"parameters", `"target_parameters":["w"]`, `target_parameters: "w" is not supported`},
		{"parameters with DoRA", `"target_parameters":["down_proj"],"use_dora":true`, "target_parameters are for LoRA without use_dora"},
		{"parameters with dropout", `"target_parameters":["down_proj"],"lora_dropout":0.1`, "lora_dropout must be 0 with target_parameters"},
		{"parameters with biases", `"target_parameters":["down_proj"],"lora_bias":true`, "target_parameters are for LoRA without use_dora and lora_bias"},
		{"tokens", `"trainable_token_indices":[1,-1]`, "trainable_token_indices"},
		{"tokens of a module", `"trainable_token_indices":{"lm_head":[]}`, `trainable_token_indices: "lm_head"`},
		{"tokens of a module as text", `"trainable_token_indices":{"lm_head":["a"]}`, `trainable_token_indices: {"lm_head":["a"]} has the wrong type`},
		{"patterns cut short", `"rank_pattern":{"a":[}`, "not a JSON object"},
		{"tokens as text", `"trainable_token_indices":["a"]`, `trainable_token_indices: ["a"] has the wrong type`},
		{"unknown", `"use_magic":true`, `"use_magic" is true`},
		{"start that changes the base", `"init_lora_weights":"pissa"`, `init_lora_weights "pissa"`},
		{"empty pattern", `"target_modules":""`, "target_modules is empty"},
		{"other task", `"task_type":"SEQ_2_SEQ_LM"`, `task_type "SEQ_2_SEQ_LM"`},
		{"no targets", `"target_modules":[]`, "target_modules is empty"},
		{"empty target", `"target_modules":[""]`, "target_modules contains an empty name"},
		{"other method", `"peft_type":"PROMPT_TUNING"`, `peft_type "PROMPT_TUNING" is not supported; use LORA, or to merge ADALORA, IA3, LN_TUNING, LOHA, LOKR, OFT, TRAINABLE_TOKENS, VERA`},
		{"field of another method", `"init_ia3_weights":true`, `"init_ia3_weights" is true`},
		{"DoRA of another method", `"peft_type":"ADALORA","use_dora":true`, "use_dora with peft_type ADALORA"},
		{"shared rotations", `"peft_type":"OFT","block_share":true`, `"block_share" is true`},
		{"constrained rotations", `"peft_type":"OFT","coft":true`, `"coft" is true`},
		{"no terms", `"peft_type":"OFT","num_cayley_neumann_terms":0`, "num_cayley_neumann_terms is 0"},
		{"no method", `"peft_type":null`, `peft_type "" is not supported`},
		{"rank zero", `"r":0`, "r is 0"},
		{"huge rank", `"r":65537`, "r is 65537"},
		{"rank fraction", `"r":1.5`, "r: 1.5 has the wrong type"},
		{"alpha", `"lora_alpha":0`, "lora_alpha is 0; it must be positive"},
		{"dropout", `"lora_dropout":1`, "lora_dropout is 1; it must be in [0, 1)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// The last value of a repeated key applies, so the member overrides.
			expect.Failure(parseConfig([]byte(`{"peft_type":"LORA","task_type":"SEQ_CLS","target_modules":["query"],`+tt.member+`}`)))(t, tt.want)
		})
	}
	for _, text := range []string{"", "[]", "{", `{"peft_type":`} {
		expect.Fails(parseConfig([]byte(text)))(t, "%q: no error", text)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"peft_type":"LORA","task_type":"FEATURE_EXTRACTION","target_modules":["query"],"r":4,"lora_alpha":1e2}`))
	f.Add([]byte(`{"peft_type":"LORA","use_dora":true,"rank_pattern":{"a":1},"init_lora_weights":"pissa_niter_4"}`))
	f.Add([]byte(`{"peft_type":"LORA","target_modules":"all-linear","exclude_modules":".*\\.mlp\\..*","rank_pattern":{"^a.b":1,"c<\u0007":2},"alpha_pattern":{"q_proj":0.5},"revision":"x"}`))
	f.Add([]byte(`{"peft_type":"LORA","target_modules":["a"],"layers_to_transform":[0,-1],"layers_pattern":"h|layers","modules_to_save":["score"],"rank_pattern":{"a":2,"a":3}}`))
	f.Add([]byte(`{"peft_type":"LORA","target_modules":"(a|b{2}){3}[^.]*\\d+","exclude_modules":[],"layers_to_transform":[],"rank_pattern":{}}`))
	f.Add([]byte(`{"peft_type":"LORA","target_modules":["a"],"bias":"all","lora_bias":true,"trainable_token_indices":{"lm_head":[1,2],"":[3]}}`))
	f.Add([]byte(`{"peft_type":"OFT","target_modules":["a"],"r":0,"use_cayley_neumann":false,"bias":"oft_only"}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig(data)
		if err != nil {
			expect.True(t, !strings.Contains(err.Error(), "\n"), "more than one line: %q", err)
			return
		}
		if c.Method != "" || len(c.Tokens) > 0 || c.LoRABias {
			return // they are not written
		}
		text := must.Get(c.marshal())(t)
		back, err := parseConfig(text)
		expect.Require(t, err == nil, "what was written is refused: %v\n%s", err, text)
		expect.Equal(t, c, back)
	})
}

// TestFieldsReadAgain: a value that is read again keeps nothing of the first.
func TestFieldsReadAgain(t *testing.T) {
	m, tokens := Modules{}, Tokens{}
	for text, want := range map[string]Modules{`"q.*"`: {Pattern: "q.*"}, `["v_proj"]`: {Names: []string{"v_proj"}}, `"k"`: {Pattern: "k"}} {
		must.Do(t, json.Unmarshal([]byte(text), &m))
		expect.Equal(t, want, m)
	}
	must.Do(t, json.Unmarshal([]byte("[1]"), &tokens))
	must.Do(t, json.Unmarshal([]byte("[]"), &tokens))
	expect.True(t, tokens == nil, "tokens %v", tokens)
}
