package transformers

import (
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
)

// small is config.json of a model_type with the fields that have no default, plus more.
func small(kind, more string) string {
	if kind == "gpt2" {
		return `{"model_type":"gpt2","vocab_size":50,"n_embd":16,"n_layer":2,"n_head":2,"n_positions":32` + more + `}`
	}
	return `{"model_type":"` + kind + `","vocab_size":50,"hidden_size":16,"num_hidden_layers":4,"num_attention_heads":4,"intermediate_size":24,"max_position_embeddings":32` + more + `}`
}

// gemma4Few are fields of Gemma 4 without inputs beside the hidden states.
const gemma4Few = `,"hidden_size_per_layer_input":0`

// gemma3nFew is a table of few inputs.
const gemma3nFew = `,"vocab_size_per_layer_input":50`

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	return must.Get(parseConfig([]byte(text), decoders))(t)
}

// TestCausalDefaults checks the defaults of absent fields, family by family.
func TestCausalDefaults(t *testing.T) {
	for _, tt := range []struct {
		kind, more             string
		kvHeads, headDim       int
		eps, scale             float64
		activation             torch.Activation
		tied                   bool
		windows                []int
		rotary                 int
		theta                  float64
		attentionCap, logitCap float64
	}{
		{"llama", ``, 4, 4, 1e-6, 0.5, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"llama", `,"num_key_value_heads":null,"head_dim":null,"rope_scaling":null,"rope_theta":5e5,"tie_word_embeddings":true`, 4, 4, 1e-6, 0.5, torch.SiLU, true, nil, 4, 5e5, 0, 0},
		{"mistral", `,"num_attention_heads":16,"head_dim":4`, 8, 4, 1e-6, 0.5, torch.SiLU, false, []int{4096, 4096, 4096, 4096}, 4, 1e4, 0, 0},
		{"mistral", `,"num_key_value_heads":2,"sliding_window":null`, 2, 4, 1e-6, 0.5, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"qwen2", `,"num_key_value_heads":2,"sliding_window":8,"max_window_layers":1`, 2, 4, 1e-6, 0.5, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"qwen2", `,"num_key_value_heads":2,"sliding_window":8,"max_window_layers":3,"use_sliding_window":true`, 2, 4, 1e-6, 0.5, torch.SiLU, false, []int{0, 0, 0, 8}, 4, 1e4, 0, 0},
		{"qwen3", `,"num_key_value_heads":2`, 2, 128, 1e-6, 1 / math.Sqrt(128), torch.SiLU, false, nil, 128, 1e4, 0, 0},
		{"smollm3", ``, 4, 4, 1e-6, 0.5, torch.SiLU, true, nil, 4, 2e6, 0, 0},
		{"smollm3", `,"use_sliding_window":true,"sliding_window":8,"no_rope_layers":[0,1,1,0,1]`, 4, 4, 1e-6, 0.5, torch.SiLU, true, []int{8, 0, 0, 8}, 4, 2e6, 0, 0},
		{"granite", ``, 4, 4, 1e-6, 1, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"granite", `,"attention_multiplier":0.25,"residual_multiplier":0.5`, 4, 4, 4e-6, 0.25, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"granitemoehybrid", `,"num_local_experts":0,"layer_types":["attention","attention","attention","full_attention"],"logits_scaling":2`, 4, 4, 1e-6, 1, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"olmo2", ``, 4, 4, 1e-5, 0.5, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"olmo3", ``, 4, 4, 1e-5, 0.5, torch.SiLU, false, []int{4096, 4096, 4096, 0}, 4, 5e5, 0, 0},
		{"exaone4", `,"num_key_value_heads":2`, 2, 4, 1e-5, 0.5, torch.SiLU, false, []int{4096, 4096, 4096, 0}, 4, 1e4, 0, 0},
		{"exaone4", `,"num_key_value_heads":2,"sliding_window":null,"sliding_window_pattern":"LLLG"`, 2, 4, 1e-5, 0.5, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"ministral", `,"num_key_value_heads":4`, 4, 4, 1e-6, 0.5, torch.SiLU, false, []int{4096, 4096, 4096, 4096}, 4, 1e4, 0, 0},
		{"ministral3", `,"num_key_value_heads":4,"rope_parameters":{"rope_type":"default","llama_4_scaling_beta":0.1,"original_max_position_embeddings":8}`, 4, 128, 1e-5, 1 / math.Sqrt(128), torch.SiLU, false, nil, 128, 1e4, 0, 0},
		{"cohere2", ``, 4, 4, 1e-5, 0.5, torch.SiLU, true, []int{4096, 4096, 4096, 0}, 4, 1e4, 0, 0},
		{"glm4", `,"num_key_value_heads":4`, 4, 128, 1.5625e-7, 1 / math.Sqrt(128), torch.SiLU, false, nil, 64, 1e4, 0, 0},
		{"starcoder2", ``, 2, 4, 1e-5, 0.5, torch.GELUTanh, true, nil, 4, 1e4, 0, 0},
		{"starcoder2", `,"sliding_window":8,"norm_epsilon":0.1`, 2, 4, 0.1, 0.5, torch.GELUTanh, true, []int{8, 8, 8, 8}, 4, 1e4, 0, 0},
		{"stablelm", `,"hidden_size":64,"num_key_value_heads":2`, 2, 16, 1e-5, 0.25, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"phi", ``, 4, 4, 1e-5, 0.5, torch.GELUTanh, false, nil, 2, 1e4, 0, 0},
		{"phi3", ``, 4, 4, 1e-5, 0.5, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"phi3", `,"sliding_window":7`, 4, 4, 1e-5, 0.5, torch.SiLU, false, []int{7, 7, 7, 7}, 4, 1e4, 0, 0},
		{"gpt_neox", `,"hidden_size":32`, 4, 8, 1e-5, 1 / math.Sqrt(8), torch.GELU, false, nil, 2, 1e4, 0, 0},
		{"gpt2", ``, 2, 8, 1e-5, 1 / math.Sqrt(8), torch.GELUTanh, true, nil, 0, 0, 0, 0},
		{"gpt2", `,"scale_attn_weights":false,"n_inner":null`, 2, 8, 1e-5, 1, torch.GELUTanh, true, nil, 0, 0, 0, 0},
		{"gemma2", `,"hidden_act":"relu","hidden_activation":null`, 4, 256, 1e-6, 1.0 / 16, torch.GELUTanh, true, []int{4096, 0, 4096, 0}, 256, 1e4, 50, 30},
		{"gemma2", `,"attn_logit_softcapping":null,"final_logit_softcapping":null,"layer_types":["full_attention","full_attention","sliding_attention","full_attention"]`, 4, 256, 1e-6, 1.0 / 16, torch.GELUTanh, true, []int{0, 0, 4096, 0}, 256, 1e4, 0, 0},
		{"gpt_oss", `,"num_attention_heads":8,"rope_parameters":{"rope_type":"default"}`, 8, 64, 1e-5, 0.125, torch.SiLU, false, []int{128, 0, 128, 0}, 64, 150_000, 0, 0},
		{"qwen3_5_text", `,"rope_parameters":{"mrope_section":[1,2]}`, 4, 256, 1e-6, 1.0 / 16, torch.SiLU, false, nil, 64, 1e4, 0, 0},
		{"lfm2", `,"num_key_value_heads":2`, 2, 4, 1e-5, 0.5, torch.SiLU, true, nil, 4, 1e6, 0, 0},
		{"gemma4_text", `,"vocab_size_per_layer_input":50`, 4, 256, 1e-6, 1, torch.GELUTanh, true, []int{512, 512, 512, 0}, 512, 1e6, 0, 0},
		{"gemma4_text", `,"hidden_size_per_layer_input":0,"num_key_value_heads":2,"final_logit_softcapping":30,"layer_types":["full_attention","full_attention","sliding_attention","full_attention"]`, 2, 256, 1e-6, 1, torch.GELUTanh, true, []int{0, 0, 512, 0}, 512, 1e6, 0, 30},
		{"gemma3n_text", `,"vocab_size_per_layer_input":50,"num_kv_shared_layers":1,"layer_types":["full_attention","sliding_attention","full_attention","full_attention"]`, 2, 256, 1e-6, 1, torch.GELUTanh, true, []int{0, 512, 0, 0}, 256, 1e6, 0, 30},
		{"gemma3n_text", `,"vocab_size_per_layer_input":20,"num_kv_shared_layers":0,"num_key_value_heads":4,"final_logit_softcapping":2`, 4, 256, 1e-6, 1, torch.GELUTanh, true, []int{512, 512, 512, 512}, 256, 1e6, 0, 2},
		{"mixtral", `,"num_attention_heads":8`, 8, 2, 1e-5, 1 / math.Sqrt(2), torch.SiLU, false, nil, 2, 1e6, 0, 0},
		{"olmoe", ``, 4, 4, 1e-5, 0.5, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"qwen3_moe", `,"sliding_window":8`, 4, 4, 1e-6, 0.5, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"qwen2_moe", `,"num_key_value_heads":2,"use_sliding_window":true,"max_window_layers":3`, 2, 4, 1e-6, 0.5, torch.SiLU, false, []int{4096, 0, 4096, 0}, 4, 1e4, 0, 0},
		{"granitemoe", `,"residual_multiplier":0.5`, 4, 4, 4e-6, 1, torch.SiLU, false, nil, 4, 1e4, 0, 0},
		{"gemma3_text", `,"sliding_window_pattern":3,"query_pre_attn_scalar":4`, 4, 256, 1e-6, 0.5, torch.GELUTanh, true, []int{4096, 4096, 0, 4096}, 256, 1e6, 0, 0},
	} {
		t.Run(tt.kind+tt.more, func(t *testing.T) {
			c := mustParse(t, small(tt.kind, tt.more))
			d := c.Core()
			theta := 0.0
			if tt.rotary > 2 {
				theta = math.Pow(d.Ropes[0].InvFreq[1], -float64(tt.rotary)/2)
			} else {
				theta = tt.theta // the first frequency is 1 for any base
			}
			got := []any{c.NumKeyValueHeads, c.HeadDim, d.NormEps, d.AttentionScale, d.Activation, c.TieWordEmbeddings, d.RotaryDim, math.Round(theta), d.AttentionSoftcap, d.LogitSoftcap}
			expect.Equal(t, []any{tt.kvHeads, tt.headDim, tt.eps, tt.scale, tt.activation, tt.tied, tt.rotary, tt.theta, tt.attentionCap, tt.logitCap}, got)
			expect.Equal(t, tt.windows, d.Windows)
		})
	}
}

// TestExperts: which layers have experts, how many, and how wide.
func TestExperts(t *testing.T) {
	for _, tt := range []struct {
		kind, more                      string
		layers                          string // "s" with experts
		experts, perToken, size, shared int
		normed                          bool
	}{
		{"mixtral", `,"num_key_value_heads":4`, "ssss", 8, 2, 24, 0, true},
		{"gpt_oss", `,"num_attention_heads":8,"rope_parameters":{"rope_type":"default"}`, "ssss", 128, 4, 24, 0, true},
		{"olmoe", `,"norm_topk_prob":true`, "ssss", 64, 8, 24, 0, true},
		{"granitemoe", `,"num_local_experts":3`, "ssss", 3, 2, 24, 0, true},
		{"granitemoehybrid", `,"layer_types":["attention","attention","attention","attention"]`, "ssss", 8, 2, 24, 1024, true},
		{"granitemoehybrid", `,"num_local_experts":0,"layer_types":["attention","attention","attention","attention"]`, "dddd", 0, 0, 0, 0, false},
		{"qwen3_moe", ``, "ssss", 128, 8, 768, 0, false},
		{"qwen3_moe", `,"num_local_experts":16,"num_experts_per_tok":3,"moe_intermediate_size":8,"mlp_only_layers":[0,9]`, "dsss", 16, 3, 8, 0, false},
		{"gemma4_text", gemma4Few + `,"enable_moe_block":true,"num_experts":4,"moe_intermediate_size":8,"top_k_experts":3`, "ssss", 4, 3, 8, 24, true},
		{"qwen2_moe", `,"num_key_value_heads":4,"decoder_sparse_step":2`, "dsds", 60, 4, 1408, 5632, false},
	} {
		c := mustParse(t, small(tt.kind, tt.more))
		d := c.Core()
		expect.Equal(t, []any{tt.experts, tt.perToken, tt.size, tt.shared, tt.normed}, []any{d.Experts, d.ExpertsPerToken, d.ExpertSize, d.SharedSize, d.RouterNorm})
		layers := []byte("dddd")
		for _, spec := range c.TensorNames() {
			if number, ok := strings.CutSuffix(spec.Name, ".router.weight"); ok {
				layers[number[len(number)-1]-'0'] = 's'
			}
		}
		expect.Same(t, tt.layers, string(layers), "%s%s", tt.kind, tt.more)
	}
}

// TestGemma3TextConfig: the larger models leave most fields of their language model to defaults.
func TestGemma3TextConfig(t *testing.T) {
	c := mustParse(t, `{"model_type":"gemma3","eos_token_id":[1,106],"text_config":{"hidden_size":2560,"intermediate_size":10240,"model_type":"gemma3_text","num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024},"vision_config":{}}`)
	expect.True(t, c.VocabSize == 262208 && c.NumAttentionHeads == 8 && c.NumKeyValueHeads == 4 && c.HeadDim == 256 && c.TieWordEmbeddings && c.MaxPositionEmbeddings == 131072, "shape %+v", c)
	expect.Equal(t, []int32{1, 106}, c.EOS)
	d := c.Core()
	expect.True(t, d.Windows[5] == 0 && d.Windows[4] == 1024 && d.RopeOf[5] == 0 && d.RopeOf[4] == 1 && d.Ropes[0].InvFreq[0] == 1.0/8 && d.Ropes[1].InvFreq[0] == 1, "windows %v, ropes %v", d.Windows, d.RopeOf)
	names := c.TensorNames()
	expect.Same(t, "model.language_model.embed_tokens.weight", names[0].Candidates[0], "the embedding is called %v", names[0].Candidates)
}

func TestSmolLM3Ropes(t *testing.T) {
	for more, want := range map[string][]int{
		``:                              {0, 0, 0, 1},
		`,"no_rope_layer_interval":2`:   {0, 1, 0, 1},
		`,"no_rope_layers":[0,1,0,0,1]`: {1, 0, 1, 1},
	} {
		d := mustParse(t, small("smollm3", more)).Core()
		expect.Equal(t, want, d.RopeOf)
		expect.Equal(t, []float64{0, 0}, d.Ropes[1].InvFreq)
	}
}

func TestCausalTokens(t *testing.T) {
	for text, want := range map[string]string{
		``:                                   "[] -1 -1",
		`,"eos_token_id":2,"bos_token_id":1`: "[2] 1 -1",
		`,"eos_token_id":[2,5],"pad_token_id":-1`: "[2 5] -1 -1",
		`,"eos_token_id":null,"pad_token_id":50`:  "[] -1 -1",
		`,"eos_token_id":[],"pad_token_id":49`:    "[] -1 49",
		`,"eos_token_id":50`:                      "[] -1 -1",
		`,"eos_token_id":[2,50,-1]`:               "[2] -1 -1",
	} {
		c := mustParse(t, small("llama", text))
		expect.Same(t, want, fmt.Sprint(c.EOS, c.BOS, c.Pad), "%s", text)
	}
}

func TestMaxLength(t *testing.T) {
	for text, want := range map[string]int{
		small("llama", ``): 0,
		small("gpt2", ``):  32,
		small("llama", `,"rope_scaling":{"type":"dynamic","factor":2.0}`): 32,
	} {
		expect.Same(t, want, mustParse(t, text).MaxLength(), "%s", text)
	}
}

func TestLoadCausalConfigRefuses(t *testing.T) {
	for _, tt := range []struct{ kind, more, want string }{
		{"bert", ``, `model_type "bert" is that of an encoder, which classifies texts and cannot generate any; choose a language model: cohere2`},
		{"llama", `,"hidden_size":null`, "hidden_size is missing"},
		{"llama", `,"num_hidden_layers":2000`, "num_hidden_layers 2000 is not between 1 and 1024"},
		{"llama", `,"num_attention_heads":3`, "hidden_size 16 is not a multiple of num_attention_heads 3"},
		{"llama", `,"num_key_value_heads":3`, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
		{"llama", `,"hidden_act":"tanh"`, `hidden_act "tanh" is not supported`},
		{"llama", `,"rms_norm_eps":0`, "rms_norm_eps 0 is not between 0 and 1"},
		{"llama", `,"attention_bias":1`, "attention_bias: 1 is not a boolean"},
		{"llama", `,"quantization_config":{"bits":4}`, `quant_method "" is not supported, want one of`},
		{"llama", `,"layer_types":["full_attention"]`, "layer_types is not supported"},
		{"granite", `,"logits_scaling":0`, "logits_scaling 0 is not above 0"},
		{"granitemoehybrid", ``, "layer_types has other layers"},
		{"granitemoehybrid", `,"num_local_experts":-1`, "num_local_experts -1 is not between"},
		{"mixtral", `,"num_key_value_heads":4,"num_local_experts":4,"num_experts_per_tok":5`, "num_experts_per_tok 5 is not between 1 and 4"},
		{"gpt_oss", `,"num_attention_heads":8`, "rope_parameters is missing"},
		{"qwen3_5_text", `,"linear_num_value_heads":3`, "linear_num_value_heads 3 is not a multiple of linear_num_key_heads 16"},
		{"qwen3_5_text", `,"layer_types":["mamba"]`, `layer_types has "mamba"`},
		{"qwen3_5_text", `,"layer_types":["full_attention"]`, "layer_types has 1 entries, want one for each of 4 layers"},
		{"qwen3_5_text", `,"attn_output_gate":false`, "attn_output_gate false is not supported"},
		{"qwen3_5_text", `,"output_gate_type":"gelu"`, `output_gate_type "gelu" is not supported`},
		{"qwen3_5_text", `,"hidden_act":"gelu"`, `hidden_act "gelu" is not supported, want "silu"`},
		{"lfm2", `,"num_key_value_heads":2,"layer_types":["conv","conv","conv","conv"]`, "layer_types has 4 entries, want one for each of 4 layers, with attention in some"},
		{"lfm2", `,"num_key_value_heads":2,"layer_types":["conv","mamba","conv","conv"]`, `layer_types has "mamba"`},
		{"gemma4_text", gemma4Few + `,"enable_moe_block":true`, "num_experts is missing"},
		{"gemma4_text", gemma4Few + `,"enable_moe_block":true,"num_experts":4,"moe_intermediate_size":8,"top_k_experts":5`, "top_k_experts 5 is not between 1 and 4"},
		{"gemma4_text", `,"use_bidirectional_attention":"all"`, `use_bidirectional_attention "all" is not supported`},
		{"gemma4_text", ``, "vocab_size_per_layer_input 262144 is not supported, want vocab_size 50"},
		{"gemma4_text", gemma4Few + `,"num_kv_shared_layers":4`, "num_kv_shared_layers 4 is not between 0 and 3"},
		{"gemma4_text", gemma4Few + `,"num_kv_shared_layers":1`, "layer 3 has no earlier layer of its kind"},
		{"gemma4_text", gemma4Few + `,"attention_k_eq_v":true,"num_global_key_value_heads":3`, "layer 3: num_attention_heads 4 is not a multiple of 3 key heads"},
		{"gemma4_text", gemma4Few + `,"per_layer_config":{"0":{"head_dim":8}}`, "layers 0 and 1 are of one kind, but have heads of other sizes"},
		{"gemma4_text", gemma4Few + `,"per_layer_config":{"3":{"sliding_window":8}}`, "per_layer_config.3.sliding_window is not supported, want head_dim and num_key_value_heads"},
		{"gemma3n_text", ``, "vocab_size_per_layer_input 262144 is not supported, want at most vocab_size 50"},
		{"gemma3n_text", gemma3nFew, "num_kv_shared_layers 15 is not between 0 and 3"},
		{"gemma3n_text", gemma3nFew + `,"altup_active_idx":1`, "altup_active_idx 1 is not supported, want 0"},
		{"gemma3n_text", gemma3nFew + `,"altup_num_inputs":1`, "altup_num_inputs 1 is not supported, want 2 or more"},
		{"gemma3n_text", gemma3nFew + `,"activation_sparsity_pattern":[0.5]`, "activation_sparsity_pattern has 1 entries, want one for each of 4 layers"},
		{"gemma3n_text", gemma3nFew + `,"activation_sparsity_pattern":[0,0,0,1]`, "activation_sparsity_pattern: 1 is not from 0 to below 1"},
		{"gemma3n_text", gemma3nFew + `,"num_kv_shared_layers":0,"attention_k_eq_v":true`, "attention_k_eq_v true is not a field"},
		{"gemma3n", `,"text_config":{"intermediate_size":[8,8]}`, "text_config.intermediate_size has 2 entries, want one for each of 35 layers"},
		{"gemma3n", `,"text_config":{"num_hidden_layers":2,"intermediate_size":[8,0]}`, "text_config.intermediate_size: 0 is not between 1 and"},
		{"llama", `,"intermediate_size":[8,8,8,8]`, "intermediate_size: [8,8,8,8] is not a whole number"},
		{"olmoe", `,"clip_qkv":8`, "clip_qkv is not supported"},
		{"qwen3_moe", `,"decoder_sparse_step":0`, "decoder_sparse_step 0 is not between"},
		{"qwen3_moe", `,"mlp_only_layers":[true]`, "mlp_only_layers: [true] is not a"},
		{"qwen2_moe", `,"num_key_value_heads":4,"qkv_bias":false`, "qkv_bias false is not supported"},
		{"granitemoehybrid", `,"num_local_experts":0`, `layer_types has other layers than one of "attention" for each of 4`},
		{"granitemoehybrid", `,"num_local_experts":0,"layer_types":["attention","attention","mamba","attention"]`, "layer_types has other layers"},
		{"granitemoehybrid", `,"num_local_experts":0,"layer_types":["attention","attention","attention","attention"],"position_embedding_type":"alibi"`, `position_embedding_type "alibi" is not supported`},
		{"olmo2", `,"layer_types":["full_attention"]`, "layer_types is not supported"},
		{"olmo3", `,"rope_parameters":{"rope_type":"default"}`, `rope_parameters: "rope_type" is not supported`},
		{"exaone4", `,"num_key_value_heads":4,"sliding_window_pattern":"LLLG"`, `sliding_window_pattern: "LLLG" is not a whole number`},
		{"ministral", `,"num_key_value_heads":4,"sliding_window":null,"layer_types":["full_attention","full_attention","full_attention","sliding_attention"]`, "layer 3 slides, but there is no sliding_window"},
		{"ministral3", `,"num_key_value_heads":4`, "rope_parameters.llama_4_scaling_beta is missing or negative"},
		{"llama", `,"attention_sinks":4`, `attention_sinks 4 is not a field that is known for model_type "llama"`},
		{"gemma3", `,"text_config":{"num_kv_shared_layers":2}`, "text_config.num_kv_shared_layers 2 is not a field"},
		{"mistral3", ``, "text_config is missing"},
		{"mistral3", `,"text_config":{"model_type":"qwen3","vocab_size":9,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":1,"num_key_value_heads":1,"intermediate_size":8,"max_position_embeddings":8}`, `text_config.model_type "qwen3" is not supported`},
		{"mistral3", `,"text_config":{"model_type":"ministral3","vocab_size":9,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":1,"num_key_value_heads":1,"intermediate_size":8,"max_position_embeddings":8}`, `text_config.head_dim is missing`},
		{"cohere2", `,"use_qk_norm":true`, "use_qk_norm true is not supported"},
		{"cohere2", `,"logit_scale":0`, "logit_scale 0 is not above 0"},
		{"smollm3", `,"no_rope_layers":[1,1,1]`, "no_rope_layers has 3 entries"},
		{"stablelm", `,"num_key_value_heads":2,"qk_layernorm":true`, "qk_layernorm true is not supported"},
		{"llama", `,"partial_rotary_factor":0.5`, "partial_rotary_factor 0.5 is not supported"},
		{"llama", `,"eos_token_id":"2"`, `eos_token_id: "2" is not a whole number`},
		{"llama", `,"rope_theta":0`, "rope_theta 0 is not above 0"},
		{"llama", `,"rope_scaling":{"type":"mrope"}`, `rope_scaling.rope_type "mrope" is not supported`},
		{"llama", `,"rope_scaling":{"type":"linear"}`, "rope_scaling.factor is missing"},
		{"llama", `,"rope_parameters":{"rope_type":"linear","factor":-1}`, "rope_parameters.factor -1 is not above 0"},
		{"llama", `,"rope_parameters":{"mrope_section":[1,2]}`, `rope_parameters."mrope_section" is not supported`},
		{"llama", `,"rope_parameters":{"rope_type":"llama3","factor":8}`, "rope_parameters.low_freq_factor is missing"},
		{"llama", `,"rope_parameters":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4}`, "high_freq_factor 4 is not above low_freq_factor 4"},
		{"llama", `,"head_dim":5`, "5 of a head's 5 features would rotate"},
		{"llama", `,"rope_scaling":[1]`, "rope_scaling: [1] is not a JSON object"},
		{"llama", `,"rope_parameters":{"full_attention":{}}`, "full_attention is not supported for this model_type"},
		{"mistral", `,"num_key_value_heads":4,"sliding_window":0`, "sliding_window 0 is not between"},
		{"qwen2", `,"num_key_value_heads":4,"layer_types":["sliding_attention"]`, "layer_types has 1 entries, want one for each of 4"},
		{"qwen2", `,"num_key_value_heads":4,"layer_types":["full_attention","full_attention","full_attention","sliding_attention"]`, "layer 3 slides, but there is no sliding_window"},
		{"qwen3", `,"num_key_value_heads":4,"layer_types":["full_attention","full_attention","full_attention","chunked_attention"]`, `layer_types has "chunked_attention"`},
		{"phi", `,"qk_layernorm":true`, "qk_layernorm true is not supported"},
		{"phi3", `,"rope_scaling":{"type":"longrope","short_factor":[1],"long_factor":[1,1]}`, "short_factor has 1 numbers, want 2"},
		{"gpt_neox", `,"rotary_pct":0.9`, "3 of a head's 4 features would rotate"},
		{"gpt2", `,"n_embd":15`, "n_embd 15 is not a multiple of n_head 2"},
		{"gpt2", `,"add_cross_attention":true`, "add_cross_attention true"},
		{"gpt2", `,"scale_attn_by_inverse_layer_idx":true`, "scale_attn_by_inverse_layer_idx true"},
		{"gemma2", `,"use_bidirectional_attention":true`, "use_bidirectional_attention true"},
		{"gemma2", `,"sliding_window":null`, "layer 0 slides, but there is no sliding_window"},
		{"gemma2", `,"query_pre_attn_scalar":0`, "query_pre_attn_scalar 0 is not above 0"},
		{"gemma3_text", `,"rope_parameters":{"rope_type":"default"}`, `rope_parameters: "rope_type" is not supported`},
		{"gemma3_text", `,"rope_parameters":{"full_attention":{"rope_type":"linear"}}`, "rope_parameters.full_attention.factor is missing"},
		{"gemma3", ``, "text_config is missing"},
		{"gemma3", `,"text_config":{"num_hidden_layers":0}`, "text_config.num_hidden_layers 0 is not between"},
	} {
		t.Run(tt.kind+tt.more, func(t *testing.T) {
			dir := must.Folder(t, map[string]string{"config.json": small(tt.kind, tt.more)})
			_, err := LoadCausalConfig(dir)
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), filepath.Join(dir, "config.json")) && !strings.Contains(err.Error(), "\n"), "error %v, want %q and the path", err, tt.want)
		})
	}
}

func FuzzParseCausalConfig(f *testing.F) {
	for kind := range decoders {
		f.Add([]byte(small(kind, ``)))
	}
	for _, more := range []string{
		`,"rope_scaling":{"type":"yarn","factor":4}`, `,"rope_scaling":{"type":"longrope","short_factor":[1,1],"long_factor":[2,2]}`,
		`,"rope_parameters":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4}`,
		`,"rope_parameters":{"rope_type":"proportional","partial_rotary_factor":0.5}`, `,"eos_token_id":[1,2]`,
	} {
		f.Add([]byte(small("llama", more)))
	}
	f.Add([]byte(small("gemma3_text", `,"layer_types":["full_attention","sliding_attention","full_attention","full_attention"],"rope_scaling":{"type":"linear","factor":2}`)))
	f.Add([]byte(`{"model_type":"gemma3","text_config":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parseConfig(data, decoders)
		if err != nil {
			expect.True(t, !strings.Contains(err.Error(), "\n"), "more than one line: %q", err)
			return
		}
		d := c.Core()
		widest := c.HeadDim
		for _, shape := range d.Shapes {
			widest = max(widest, shape.HeadDim)
		}
		expect.True(t, c.NumAttentionHeads%c.NumKeyValueHeads == 0 && c.HeadDim >= 1 && d.RotaryDim%2 == 0 && d.RotaryDim <= widest, "inconsistent: %+v", c)
		for _, r := range d.Ropes {
			expect.True(t, (len(r.InvFreq) == d.RotaryDim/2 || d.Shapes != nil && len(r.InvFreq) < d.RotaryDim/2) && (r.LongInvFreq == nil || len(r.LongInvFreq) == len(r.InvFreq)),
				"%d and %d frequencies for %d features", len(r.InvFreq), len(r.LongInvFreq), d.RotaryDim)
		}
		expect.True(t, (len(d.Windows) == 0 || len(d.Windows) == c.NumHiddenLayers) && (d.RotaryDim <= 0 || len(d.RopeOf) == c.NumHiddenLayers), "windows %v, ropes %v", d.Windows, d.RopeOf)
	})
}

func FuzzParseGenerationConfig(f *testing.F) {
	f.Add([]byte(`{"eos_token_id":[1,2],"pad_token_id":0,"temperature":0.6,"top_k":20,"top_p":0.9}`))
	f.Add([]byte(`{"eos_token_id":1,"bos_token_id":null,"repetition_penalty":1.1,"min_p":0.1}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := parseGenerationConfig(data, 10)
		if err != nil {
			expect.True(t, !strings.Contains(err.Error(), "\n"), "more than one line: %q", err)
			return
		}
		for _, id := range append(g.EOS, max(g.BOS, 0), max(g.Pad, 0)) {
			expect.True(t, id >= 0 && id < 10, "token %d of 10", id)
		}
		expect.True(t, g.Temperature >= 0 && g.TopK >= 0 && g.TopP > 0 && g.TopP <= 1 && g.MinP >= 0 && g.RepetitionPenalty > 0, "out of range: %+v", g)
	})
}
