package transformers

import (
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
			got := must.Get(LoadConfig(must.Folder(t, map[string]string{"config.json": tt.text})))(t)
			expect.Equal(t, tt.want, got, cmpopts.IgnoreUnexported(Config{}))
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
		{"minus one", `"num_hidden_layers": 2`, `"num_hidden_layers": -1`, "num_hidden_layers -1 is not between"},
		{"huge", `"vocab_size": 32`, `"vocab_size": 99999999999`, "vocab_size 99999999999 is not between"},
		{"fraction", `"hidden_size": 8`, `"hidden_size": 8.5`, "hidden_size: 8.5 is not a whole number"},
		{"text", `"hidden_size": 8`, `"hidden_size": "8"`, `hidden_size: "8" is not a whole number`},
		{"heads", `"num_attention_heads": 2`, `"num_attention_heads": 3`, "hidden_size 8 is not a multiple of num_attention_heads 3"},
		{"activation", `"hidden_act": "gelu"`, `"hidden_act": "mish"`, `hidden_act "mish" is not supported`},
		{"roberta without padding", `"use_cache": true`, `"model_type": "roberta", "pad_token_id": null`, "pad_token_id is null, but positions begin after it"},
		{"roberta without positions", `"use_cache": true`, `"model_type": "roberta", "pad_token_id": 15`, "max_position_embeddings 16 leaves no position after pad_token_id 15"},
		{"distilbert's names", `"model_type": "bert"`, `"model_type": "distilbert"`, "dim is missing"},
		{"epsilon", "1e-12", "0", "layer_norm_eps 0 is not between"},
		{"positions", `"use_cache": true`, `"position_embedding_type": "relative_key"`, `position_embedding_type "relative_key"`},
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
	})
}
