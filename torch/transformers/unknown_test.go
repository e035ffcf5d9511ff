package transformers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestNoFieldOfTransformersIsUnknown parses config.json of every family as transformers saves it.
func TestNoFieldOfTransformersIsUnknown(t *testing.T) {
	configs := map[string]json.RawMessage{}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile(filepath.Join("testdata", "configs.json")))(t), &configs))
	for kind := range families {
		if configs[kind] == nil && !strings.HasPrefix(kind, "renamed_") { // of TestRegisterFamily
			t.Errorf("no configuration of %s", kind)
		}
	}
	for kind, text := range configs {
		c, err := parseConfig(text, families)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		} else {
			expect.Equal(t, []UnknownField(nil), c.Unknown, kind)
		}
	}
}

// TestPublishedFields: fields that published models have beside those of transformers' classes.
func TestPublishedFields(t *testing.T) {
	for kind, more := range map[string]string{
		"albert":           `,"down_scale_factor":1,"gap_size":0,"net_structure_type":0,"num_memory_blocks":0`,
		"bert":             `,"directionality":"bidi","pooler_fc_size":768,"pooler_num_attention_heads":12,"pooler_num_fc_layers":3,"pooler_size_per_head":128,"pooler_type":"first_token_transform"`,
		"cohere2":          `,"layer_switch":4,"order_of_interleaved_layers":"local_attn_first","position_embedding_type":"rope_gptj","rotary_pct":1.0,"use_embedding_sharing":true,"use_gated_activation":true,"use_parallel_block":true`,
		"granitemoehybrid": `,"num_local_experts":0,"layer_types":["attention","attention","attention","attention"],"init_method":"mup","normalization_function":"rmsnorm","position_embedding_type":"nope","mamba_n_heads":48`,
		"llama":            `,"is_llama_config":true,"rope_interleaved":false,"transformers.js_config":{"kv_cache_dtype":{"q4f16":"float16"}},"unsloth_fixed":true`,
		"phi3":             `,"full_attn_mod":1,"interpolate_factor":1`,
		"starcoder2":       `,"mlp_type":"default","norm_type":"layer_norm"`,
	} {
		c := must.Get(parseConfig([]byte(small(kind, more)), families))(t)
		expect.Equal(t, []UnknownField(nil), c.Unknown, kind)
	}
}

func TestUnknownFields(t *testing.T) {
	c := mustParse(t, small("llama", `,"_private":1,"dropout":0.1,"use_qk_norm":false,"favourite_colour":"red","attention_sinks":0`))
	expect.Equal(t, []UnknownField{
		{"attention_sinks", "0", false}, {"favourite_colour", `"red"`, false}, {"use_qk_norm", "false", false},
	}, c.Unknown)
	_, err := parseConfig([]byte(small("llama", `,"favourite_colour":"red","use_qk_norm":true`)), decoders)
	expect.Error(t, err, `use_qk_norm true is not a field that is known for model_type "llama"`)
}
