package transformers

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/smallfile"
)

// tinyConfig is config.json of a small model, as written by transformers 5.23.0.
const tinyConfig = `{
  "add_cross_attention": false, "architectures": ["BertForSequenceClassification"],
  "attention_probs_dropout_prob": 0.1, "bos_token_id": null, "classifier_dropout": null,
  "dtype": "float32", "eos_token_id": null, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
  "hidden_size": 8, "id2label": {"0": "law", "1": "math", "2": "other"}, "initializer_range": 0.02,
  "intermediate_size": 16, "is_decoder": false, "label2id": {"law": 0, "math": 1, "other": 2},
  "layer_norm_eps": 1e-12, "max_position_embeddings": 16, "model_type": "bert",
  "num_attention_heads": 2, "num_hidden_layers": 2, "pad_token_id": 0, "tie_word_embeddings": true,
  "transformers_version": "5.23.0", "type_vocab_size": 2, "use_cache": true, "vocab_size": 32
}`

func tiny() *Config {
	return &Config{
		ModelType: "bert", VocabSize: 32, HiddenSize: 8, NumHiddenLayers: 2, NumAttentionHeads: 2, NumKeyValueHeads: 2, HeadDim: 4, IntermediateSize: 16,
		HiddenAct: "gelu", LayerNormEps: 1e-12, MaxPositionEmbeddings: 16, TypeVocabSize: 2,
		ID2Label: []string{"law", "math", "other"}, NumLabels: 3,
	}
}

// swap replaces part of a text, which must occur.
func swap(t testing.TB, text, from, to string) string {
	t.Helper()
	expect.Require(t, strings.Contains(text, from), "no %q to replace", from)
	return strings.Replace(text, from, to, 1)
}

func TestLoadConfig(t *testing.T) {
	bare := `{"model_type":"bert","vocab_size":10,"hidden_size":4,"num_hidden_layers":1,"num_attention_heads":1,"intermediate_size":4,"max_position_embeddings":5`
	defaults := func(change func(*Config)) *Config {
		c := &Config{
			ModelType: "bert", VocabSize: 10, HiddenSize: 4, NumHiddenLayers: 1, NumAttentionHeads: 1, NumKeyValueHeads: 1, HeadDim: 4, IntermediateSize: 4,
			HiddenAct: "gelu", LayerNormEps: 1e-12, MaxPositionEmbeddings: 5, TypeVocabSize: 2, NumLabels: 2,
		}
		change(c)
		return c
	}
	for _, tt := range []struct {
		name, text string
		want       *Config
	}{
		{"version 5", tinyConfig, tiny()},
		{"defaults", bare + "}", defaults(func(*Config) {})},
		{
			"version 4", bare + `,"torch_dtype":"float16","position_embedding_type":"absolute","transformers_version":"4.8.2","pruned_heads":{},"num_labels":7}`,
			defaults(func(c *Config) { c.NumLabels = 7 }),
		},
		{"no padding token", bare + `,"pad_token_id":null,"type_vocab_size":1,"layer_norm_eps":1e-5}`, defaults(func(c *Config) {
			c.PadTokenID, c.TypeVocabSize, c.LayerNormEps = -1, 1, 1e-5
		})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expect.Equal(t, tt.want, must.Get(LoadConfig(must.Folder(t, map[string]string{"config.json": tt.text})))(t), cmpopts.IgnoreUnexported(Config{}))
		})
	}
}

func TestMemoryOfATrainedToken(t *testing.T) {
	c := Config{NumHiddenLayers: 3, HiddenSize: 6, NumAttentionHeads: 4, NumKeyValueHeads: 2, HeadDim: 5, IntermediateSize: 7}
	const block = 4*6 + 2*4*5 + 2*2*5 + 3*7
	all, checkpointed := c.ActivationBytes(false), c.ActivationBytes(true)
	expect.True(t, all == 4*3*block && checkpointed == 4*(3*6+block), "%d bytes, %d with checkpointing", all, checkpointed)
}

func TestLoadConfigRefuses(t *testing.T) {
	for _, tt := range []struct{ name, from, to, want string }{
		{"not JSON", tinyConfig, "{", "not a JSON object"},
		{"null", tinyConfig, "null", "found null"},
		{"no model_type", `"model_type": "bert"`, `"x": 1`, "model_type is missing, want one of "},
		{"other model_type", `"bert"`, `"deberta"`, `model_type "deberta" is not supported, want one of `},
		{"missing", `"hidden_size": 8`, `"x": 8`, "hidden_size is missing"},
		{"null size", `"vocab_size": 32`, `"vocab_size": null`, "vocab_size is missing"},
		{"zero", `"num_hidden_layers": 2`, `"num_hidden_layers": 0`, "num_hidden_layers 0 is not between 1 and 1024"},
		{"fraction", `"hidden_size": 8`, `"hidden_size": 8.5`, "hidden_size: 8.5 is not a whole number"},
		{"heads", `"num_attention_heads": 2`, `"num_attention_heads": 3`, "hidden_size 8 is not a multiple of num_attention_heads 3"},
		{"activation", `"hidden_act": "gelu"`, `"hidden_act": "mish"`, `hidden_act "mish" is not supported`},
		{"roberta without padding", `"use_cache": true`, `"model_type": "roberta", "pad_token_id": null`, "pad_token_id is null, but positions begin after it"},
		{"roberta without positions", `"use_cache": true`, `"model_type": "roberta", "pad_token_id": 15`, "max_position_embeddings 16 leaves no position after pad_token_id 15"},
		{"distilbert's names", `"model_type": "bert"`, `"model_type": "distilbert"`, "dim is missing"},
		{"epsilon", "1e-12", "0", "layer_norm_eps 0 is not between"},
		{"decoder", `"is_decoder": false`, `"is_decoder": true`, "is_decoder true"},
		{"cross-attention", `"add_cross_attention": false`, `"add_cross_attention": true`, "add_cross_attention true"},
		{"quantised", `"use_cache": true`, `"quantization_config": {"load_in_4bit": true, "quant_method": "bitsandbytes"}`, "quantization_config: bnb_4bit_quant_type is \"\", want nf4"},
		{"pruned", `"use_cache": true`, `"pruned_heads": {"1": [0]}`, "pruned_heads"},
		{"padding token", `"pad_token_id": 0`, `"pad_token_id": 32`, "pad_token_id 32 is outside the vocabulary of 32"},
		{"label gap", `"2": "other"`, `"3": "other"`, "id2label has 3 labels but none for class 2"},
		{"label kind", `"2": "other"`, `"2": 2`, "id2label: "},
		{"label count", `"use_cache": true`, `"num_labels": 4`, "num_labels 4, but id2label has 3"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := must.Folder(t, map[string]string{"config.json": swap(t, tinyConfig, tt.from, tt.to)})
			_, err := LoadConfig(dir)
			expect.Error(t, err, tt.want, filepath.Join(dir, "config.json"))
			expect.True(t, err == nil || !strings.Contains(err.Error(), "\n"), "more than one line: %q", err)
		})
	}
	expect.Failure(LoadConfig(t.TempDir()))(t, "config.json")
	expect.Failure(LoadConfig(must.Folder(t, map[string]string{"config.json": strings.Repeat(" ", smallfile.Limit+1)})))(t, strconv.Itoa(smallfile.Limit))
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(tinyConfig))
	f.Add([]byte(`{"model_type":"bert","vocab_size":10,"hidden_size":4,"num_hidden_layers":1,"num_attention_heads":1,"intermediate_size":4,"max_position_embeddings":5}`))
	f.Add([]byte(`{"model_type":"bert","num_labels":-1,"id2label":{"00":"a"}}`))
	f.Add([]byte(modernConfig))
	f.Add([]byte(`{"model_type":"distilbert","vocab_size":10,"dim":4,"n_layers":1,"n_heads":1,"hidden_dim":4,"max_position_embeddings":5}`))
	f.Add([]byte(`{"model_type":1}`))
	f.Add([]byte("null"))
	for kind := range encoders {
		f.Add([]byte(small(kind, `,"relative_attention":true,"share_att_key":true,"pos_att_type":"c2p|p2c","position_buckets":8`)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig(data, encoders)
		if err != nil {
			expect.True(t, !strings.Contains(err.Error(), "\n"), "more than one line: %q", err)
			return
		}
		for _, n := range []int{c.VocabSize, c.HiddenSize, c.NumHiddenLayers, c.IntermediateSize, c.MaxLength(), c.TypeVocabSize + 1, c.NumLabels} {
			expect.True(t, n >= 1, "a size below 1 passed: %+v", c)
		}
		expect.True(t, c.HiddenSize%c.NumAttentionHeads == 0 && c.PadTokenID >= -1 && c.PadTokenID < c.VocabSize && len(c.ID2Label) <= c.NumLabels, "inconsistent: %+v", c)
		for distance := 1 - c.MaxPositionEmbeddings; c.bucketOf != nil && c.MaxPositionEmbeddings <= 1<<12 && distance < c.MaxPositionEmbeddings; distance++ {
			bucket := c.bucketOf(distance)
			expect.Require(t, bucket >= 0 && bucket < c.distanceRows, "bucket %d of %d for distance %d", bucket, c.distanceRows, distance)
		}
	})
}

// TestEncodersRefuse: choices of encoders that the core does not have.
func TestEncodersRefuse(t *testing.T) {
	const modern = `,"pad_token_id":0`
	const deberta = `,"relative_attention":true,"share_att_key":true,"pos_att_type":"c2p|p2c","pad_token_id":0`
	for _, tt := range []struct{ kind, more, want string }{
		{"albert", `,"num_hidden_groups":2`, "num_hidden_groups 2 is not supported"},
		{"albert", `,"inner_group_num":3`, "inner_group_num 3 is not supported"},
		{"albert", `,"embedding_size":0`, "embedding_size 0 is not between"},
		{"mpnet", `,"relative_attention_num_buckets":16`, "relative_attention_num_buckets 16 is not supported"},
		{"mpnet", `,"pad_token_id":2`, "pad_token_id 2 is not supported"},
		{"bert", `,"position_embedding_type":"alibi"`, `feed_forward_type "original" is not supported`},
		{"bert", `,"position_embedding_type":"alibi","feed_forward_type":"swiglu","auto_map":{"AutoModel":"jinaai/jina-bert-v2-qk-post-norm--m"}`, `feed_forward_type "swiglu"`},
		{"bert", `,"position_embedding_type":"relative_key"`, `position_embedding_type "relative_key" is not supported, want "absolute"`},
		{"jina_bert", `,"feed_forward_type":"geglu"`, `position_embedding_type "absolute" is not supported, want "alibi"`},
		{"deberta-v2", ``, "only relative_attention true"},
		{"deberta-v2", `,"relative_attention":true,"share_att_key":true,"pos_att_type":["c2p"]`, `pos_att_type "c2p|p2c" are supported`},
		{"deberta-v2", `,"relative_attention":true,"pos_att_type":"p2c|c2p"`, "share_att_key true"},
		{"deberta-v2", deberta + `,"conv_kernel_size":3`, "conv_kernel_size 3 is not supported"},
		{"deberta-v2", deberta + `,"embedding_size":8`, "embedding_size 8 is not supported"},
		{"deberta-v2", deberta + `,"attention_head_size":8`, "attention_head_size 8 is not supported"},
		{"deberta-v2", deberta + `,"pooler_hidden_act":"mish"`, `pooler_hidden_act "mish" is not supported`},
		{"deberta-v2", deberta + `,"position_buckets":100`, "position_buckets 100 do not fit 32 positions"},
		{"modernbert", modern + `,"classifier_pooling":"max"`, `classifier_pooling "max" is not supported`},
		{"modernbert", modern + `,"classifier_activation":"gelu_new"`, `classifier_activation "gelu_new" is not supported`},
		{"modernbert", modern + `,"hidden_activation":"mish"`, `hidden_activation "mish" is not supported`},
		{"modernbert", modern + `,"global_attn_every_n_layers":0`, "global_attn_every_n_layers 0 is not between"},
		{"modernbert", modern + `,"layer_types":["full_attention"]`, "layer_types has 1 entries"},
		{"modernbert", modern + `,"rope_scaling":{"type":"linear","factor":2}`, "rope_scaling is not supported"},
		{"modernbert", modern + `,"rope_parameters":{"full_attention":{"rope_type":"dynamic","factor":2}}`, `rope_type "dynamic" is not supported`},
		{"modernbert", modern + `,"rope_parameters":{"rope_theta":5}`, "want full_attention and sliding_attention"},
		{"modernbert", modern + `,"global_rope_theta":-1`, "global_rope_theta -1 is not above 0"},
		{"modernbert", modern + `,"norm_bias":1`, "norm_bias: 1 is not a boolean"},
		{"modernbert", `,"norm_bias":true`, "pad_token_id 50283 is outside the vocabulary of 50"},
		{"modernbert", modern + `,"num_attention_heads":16`, "would rotate, want an even number"},
	} {
		expect.Failure(parseConfig([]byte(small(tt.kind, tt.more)), encoders))(t, tt.want)
	}
}

// TestBuckets: distances of MPNet and of DeBERTa v3 (256 buckets, 512 positions), by their formulas.
func TestBuckets(t *testing.T) {
	for distance, want := range map[int]int{0: 0, 7: 7, 8: 8, -1: 17, 127: 15, 128: 15, 500: 15, -127: 31, -128: 31, -500: 31} {
		expect.Equal(t, want, mpnetBucket(distance), distance)
	}
	for distance, want := range map[int]int{0: 0, 128: 128, 129: 129, 511: 255, -128: -128, -300: -207, -511: -255} {
		expect.Equal(t, want, debertaBucket(distance, 256, 512), distance)
	}
}

// TestAlibiSlopes: of 8 heads, and of 3, whose third one is the first of 4.
func TestAlibiSlopes(t *testing.T) {
	expect.Equal(t, []float64{1. / 2, 1. / 4, 1. / 8, 1. / 16, 1. / 32, 1. / 64, 1. / 128, 1. / 256}, alibiSlopes(8), "8 heads")
	expect.Equal(t, []float64{1. / 16, 1. / 256, 1. / 4}, alibiSlopes(3), "3 heads")
	expect.Failure(parseConfig([]byte(strings.Replace(small("bert", `,"position_embedding_type":"alibi","feed_forward_type":"geglu"`),
		`"max_position_embeddings":32`, `"max_position_embeddings":65537`, 1)), encoders))(t, "max_position_embeddings 65537 is not supported with ALiBi")
}

const modernConfig = `{
  "model_type": "modernbert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 5, "num_attention_heads": 2,
  "intermediate_size": 6, "max_position_embeddings": 64, "pad_token_id": 0, "position_embedding_type": "absolute"
}`

func TestModernBertBlocks(t *testing.T) {
	for name, tc := range map[string]struct {
		more            string
		windows, ropeOf []int
	}{
		"defaults":    {"", []int{0, 65, 65, 0, 65}, []int{0, 1, 1, 0, 1}},
		"an odd band": {`"local_attention": 9, "global_attn_every_n_layers": 2,`, []int{0, 5, 0, 5, 0}, []int{0, 1, 0, 1, 0}},
		"all global":  {`"global_attn_every_n_layers": 1,`, nil, []int{0, 0, 0, 0, 0}},
		"by layer": {`"layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention", "sliding_attention"],`,
			[]int{65, 0, 0, 0, 65}, []int{1, 0, 0, 0, 1}},
	} {
		c := must.Get(parseConfig([]byte(swap(t, modernConfig, "{", "{"+tc.more)), encoders))(t)
		expect.Equal(t, tc.windows, c.core.Windows, fmt.Sprintf("%s: windows", name))
		expect.Equal(t, tc.ropeOf, c.core.RopeOf, fmt.Sprintf("%s: ropes", name))
		w := c.core.Ropes
		expect.True(t, len(w) == 2 && w[0].InvFreq[1] == 1/400.0 && w[1].InvFreq[1] == 1/100.0, "%s: ropes %+v", name, w)
	}
}

// TestNoFieldOfTransformersIsUnknown parses config.json of every family as transformers saves it.
func TestNoFieldOfTransformersIsUnknown(t *testing.T) {
	configs := must.JSON[map[string]json.RawMessage](t, filepath.Join("testdata", "configs.json"))
	for kind := range families {
		renamed := strings.HasPrefix(kind, "renamed_")    // of TestRegisterFamily
		published := strings.HasPrefix(kind, "jina_bert") // whose code is on the hub
		expect.True(t, configs[kind] != nil || renamed || published, "no configuration of %s", kind)
	}
	for kind, text := range configs {
		expect.Equal(t, []UnknownField(nil), must.Get(parseConfig(text, families))(t).Unknown, kind)
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
		expect.Equal(t, []UnknownField(nil), must.Get(parseConfig([]byte(small(kind, more)), families))(t).Unknown, kind)
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
