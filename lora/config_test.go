package lora

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScale(t *testing.T) {
	tests := []struct {
		c    Config
		want float64
	}{
		{Config{R: 8, Alpha: 16}, 2},
		{Config{R: 16, Alpha: 4}, 0.25},
		{Config{R: 16, Alpha: 4, RSLoRA: true}, 1},
	}
	for _, tt := range tests {
		if got := tt.c.Scale(); math.Abs(got-tt.want) > 1e-15 {
			t.Errorf("%+v: scale %g, want %g", tt.c, got, tt.want)
		}
	}
}

func TestMarshal(t *testing.T) {
	c := Config{
		BaseModel: "a/<b>", R: 8, Alpha: 16, Dropout: 0.1, TargetModules: []string{"query", "output.dense"},
		ModulesToSave: []string{"classifier", "score"}, TaskType: SequenceClassification, Prefix: "bert.",
	}
	got, err := c.marshal()
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "alpha_pattern": {},
  "auto_mapping": null,
  "base_model_name_or_path": "a/<b>",
  "bias": "none",
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "layers_pattern": null,
  "layers_to_transform": null,
  "lora_alpha": 16,
  "lora_dropout": 0.1,
  "modules_to_save": [
    "classifier",
    "score"
  ],
  "peft_type": "LORA",
  "r": 8,
  "rank_pattern": {},
  "revision": null,
  "target_modules": [
    "query",
    "output.dense"
  ],
  "task_type": "SEQ_CLS",
  "use_dora": false,
  "use_rslora": false
}
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	back, err := parseConfig(got)
	if err != nil {
		t.Fatal(err)
	}
	c.Prefix = "" // Load finds it in the tensors
	if diff := cmp.Diff(c, back); diff != "" {
		t.Error(diff)
	}
}

func TestParseConfig(t *testing.T) {
	tests := []struct {
		name, text string
		want       Config
	}{
		{
			"defaults", `{"peft_type":"LORA","task_type":"FEATURE_EXTRACTION","target_modules":["query"]}`,
			Config{R: 8, Alpha: 8, TargetModules: []string{"query"}, TaskType: FeatureExtraction},
		},
		{
			"features not in use, some unknown",
			`{"peft_type":"LORA","task_type":"SEQ_CLS","target_modules":["query"],"r":2,"lora_alpha":3.5,"use_rslora":true,
			  "init_lora_weights":"gaussian","peft_version":"9.9.9","revision":"main","megatron_core":"megatron.core","qalora_group_size":16,
			  "auto_mapping":{"base_model_class":"BertModel"},"rank_pattern":{},"use_new":false,"new_config":null,"exclude_modules":[],"lora_bias":false}`,
			Config{R: 2, Alpha: 3.5, RSLoRA: true, TargetModules: []string{"query"}, TaskType: SequenceClassification},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseConfig([]byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseConfigRefuses(t *testing.T) {
	tests := []struct{ name, member, want string }{
		{"dora", `"use_dora":true`, `"use_dora" is true: not supported`},
		{"bias of the pair", `"lora_bias":true`, `"lora_bias" is true`},
		{"bias of the model", `"bias":"all"`, `bias "all" is not supported`},
		{"layer replication", `"layer_replication":[[0,4],[2,5]]`, `"layer_replication" is [[0,4],[2,5]]`},
		{"alora", `"alora_invocation_tokens":[1,2]`, "alora_invocation_tokens"},
		{"ranks by module", `"rank_pattern":{"query": 4}`, `"rank_pattern" is {"query":4}`},
		{"alphas by module", `"alpha_pattern":{"query":4}`, "alpha_pattern"},
		{"some layers", `"layers_to_transform":0`, `"layers_to_transform" is 0`},
		{"excluded modules", `"exclude_modules":"query"`, "exclude_modules"},
		{"parameters", `"target_parameters":["w"]`, "target_parameters"},
		{"tokens", `"trainable_token_indices":[1]`, "trainable_token_indices"},
		{"conv1d", `"fan_in_fan_out":true`, "fan_in_fan_out"},
		{"unknown", `"use_magic":true`, `"use_magic" is true`},
		{"start that changes the base", `"init_lora_weights":"pissa"`, `init_lora_weights "pissa"`},
		{"pattern", `"target_modules":".*query"`, `target_modules ".*query" is a pattern`},
		{"no targets", `"target_modules":[]`, "target_modules is empty"},
		{"empty target", `"target_modules":[""]`, "target_modules has an empty name"},
		{"targets of another kind", `"target_modules":[1]`, "target_modules: [1] is not of the right kind"},
		{"other method", `"peft_type":"IA3"`, `peft_type "IA3"`},
		{"no method", `"peft_type":null`, `peft_type "" is not supported`},
		{"other task", `"task_type":"CAUSAL_LM"`, `task_type "CAUSAL_LM"`},
		{"no task", `"task_type":null`, `task_type ""`},
		{"rank zero", `"r":0`, "r 0 is not between"},
		{"rank fraction", `"r":1.5`, "r: 1.5 is not of the right kind"},
		{"alpha", `"lora_alpha":0`, "lora_alpha 0 is not above 0"},
		{"dropout", `"lora_dropout":1`, "lora_dropout 1 is not in [0, 1)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// A key's last value is the one that counts, so the member overrides.
			_, err := parseConfig([]byte(`{"peft_type":"LORA","task_type":"SEQ_CLS","target_modules":["query"],` + tt.member + `}`))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	for _, text := range []string{"", "[]", "{", `{"peft_type":`} {
		if _, err := parseConfig([]byte(text)); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"peft_type":"LORA","task_type":"FEATURE_EXTRACTION","target_modules":["query"],"r":4,"lora_alpha":1e2}`))
	f.Add([]byte(`{"peft_type":"LORA","use_dora":true,"rank_pattern":{"a":1},"init_lora_weights":"pissa_niter_4"}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		text, err := c.marshal()
		if err != nil {
			t.Fatal(err)
		}
		back, err := parseConfig(text)
		if err != nil {
			t.Fatalf("what was written is refused: %v\n%s", err, text)
		}
		if len(c.ModulesToSave) == 0 {
			c.ModulesToSave = nil
		}
		if diff := cmp.Diff(c, back); diff != "" {
			t.Error(diff)
		}
	})
}
