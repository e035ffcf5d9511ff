package convert

import (
	"fmt"
	"math"

	"github.com/rltrain/rltrain/torch/gguf"
)

// config returns config.json of a file. Vocabulary and tied embeddings follow from the tensors.
func config(f *gguf.File) (map[string]any, error) {
	a, arch, err := architectureOf(f)
	if err != nil {
		return nil, err
	}
	m := &metadata{file: f, arch: arch}
	embed, ok := f.Tensor(embedding)
	if !ok || len(embed.Shape) != 2 {
		return nil, fmt.Errorf("tensor %s is missing or no matrix", embedding)
	}
	_, untied := f.Tensor(outputHead)
	heads, hidden := m.size("attention.head_count", 0), m.size("embedding_length", 0)
	if m.err != nil {
		return nil, m.err
	}
	c := map[string]any{
		"architectures": []string{a.class}, "model_type": a.modelType, "vocab_size": embed.Shape[0],
		"hidden_size": hidden, "intermediate_size": m.size("feed_forward_length", 0), "num_hidden_layers": m.size("block_count", 0),
		"num_attention_heads": heads, "num_key_value_heads": m.size("attention.head_count_kv", heads),
		"max_position_embeddings": m.size("context_length", 0), "rms_norm_eps": m.number("attention.layer_norm_rms_epsilon", 1e-5),
		"tie_word_embeddings": !untied, "torch_dtype": "float32",
	}
	headDim := m.size("attention.key_length", max(hidden/heads, 1))
	if arch != "phi3" {
		c["head_dim"] = headDim
	}
	rotary := m.size("rope.dimension_count", headDim)
	if rotary != headDim && arch != "phi3" {
		m.fail("%s %d differs from the %d features of a head, which is not supported", m.own("rope.dimension_count"), rotary, headDim)
	}
	special[arch](m, c, headDim, rotary)
	for name, key := range map[string]string{"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"} {
		c[name] = nil
		if id := read(m, "tokenizer.ggml."+key+"_token_id", -1, f.Int); id >= 0 && id < embed.Shape[0] {
			c[name] = id
		}
	}
	return c, m.err
}

// special reads the fields of a single architecture.
var special = map[string]func(m *metadata, c map[string]any, headDim, rotary int){
	"llama": func(m *metadata, c map[string]any, headDim, _ int) {
		rope(m, c, headDim, 1e4)
		c["hidden_act"] = "silu"
		biased := func(module string) bool { _, ok := m.file.Tensor("blk.0." + module + ".bias"); return ok }
		c["attention_bias"], c["mlp_bias"] = biased("attn_q"), biased("ffn_up")
	},
	"qwen2": func(m *metadata, c map[string]any, headDim, _ int) {
		rope(m, c, headDim, 1e4)
		c["hidden_act"], c["use_sliding_window"] = "silu", false
	},
	"qwen3": func(m *metadata, c map[string]any, headDim, _ int) {
		rope(m, c, headDim, 1e4)
		c["hidden_act"], c["use_sliding_window"], c["attention_bias"] = "silu", false, false
	},
	"phi3": phi3Config,
	"gemma2": func(m *metadata, c map[string]any, headDim, _ int) {
		rope(m, c, headDim, 1e4)
		gemma(m, c, headDim, 46)
		c["attn_logit_softcapping"] = m.number("attn_logit_softcapping", 50)
		c["final_logit_softcapping"] = m.number("final_logit_softcapping", 30)
	},
	"gemma3": func(m *metadata, c map[string]any, headDim, _ int) {
		rope(m, c, headDim, 1e6)
		gemma(m, c, headDim, 62)
		c["rope_local_base_freq"] = m.number("rope.freq_base_swa", 1e4)
		c["sliding_window_pattern"] = m.size("attention.sliding_window_pattern", 6)
		for _, name := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
			c[name] = nil
			if cap := m.number(name, 0); cap > 0 {
				c[name] = cap
			}
		}
	},
}

// gemma reads the fields of both Gemmas. Only their largest models (27B, most layers) scale scores by the hidden size.
// Files do not say so; llama.cpp uses the number of layers too.
func gemma(m *metadata, c map[string]any, headDim, largest int) {
	c["hidden_activation"] = "gelu_pytorch_tanh"
	c["query_pre_attn_scalar"] = headDim
	if c["num_hidden_layers"] == largest {
		c["query_pre_attn_scalar"] = c["hidden_size"].(int) / c["num_attention_heads"].(int)
	}
	c["sliding_window"] = m.size("attention.sliding_window", 4096)
}

func phi3Config(m *metadata, c map[string]any, headDim, rotary int) {
	c["hidden_act"], c["rope_theta"] = "silu", m.number("rope.freq_base", 1e4)
	c["partial_rotary_factor"] = float64(rotary) / float64(headDim)
	original := m.size("rope.scaling.original_context_length", c["max_position_embeddings"].(int))
	c["original_max_position_embeddings"], c["rope_scaling"], c["sliding_window"] = original, nil, nil
	if window := read(m, m.own("attention.sliding_window"), 0, m.file.Int); window > 0 {
		c["sliding_window"] = window
	}
	long, short := m.factors(LongFactors, rotary/2), m.factors(ShortFactors, rotary/2)
	if long != nil && short != nil {
		c["rope_scaling"] = map[string]any{"type": "longrope", "long_factor": long, "short_factor": short}
		if attention := m.number("rope.scaling.attn_factor", 0); attention > 0 {
			c["rope_scaling"].(map[string]any)["attention_factor"] = attention
		}
	}
}

// rope reads base and scaling of the rotary embedding.
func rope(m *metadata, c map[string]any, headDim int, theta float32) {
	theta = m.number("rope.freq_base", theta)
	c["rope_theta"], c["rope_scaling"] = theta, nil
	factor := m.number("rope.scaling.factor", m.number("rope.scale_linear", 0))
	kind := read(m, m.own("rope.scaling.type"), "", m.file.Text)
	if kind == "" && factor > 0 && factor != 1 {
		kind = "linear"
	}
	if factors := m.factors(RopeFactors, headDim/2); factors != nil {
		c["rope_scaling"] = llama3Scaling(factors, float64(theta), headDim)
		return
	}
	switch kind {
	case "", "none":
	case "linear":
		c["rope_scaling"] = map[string]any{"rope_type": "linear", "factor": factor}
	case "yarn":
		c["rope_scaling"] = map[string]any{
			"rope_type": "yarn", "factor": factor,
			"original_max_position_embeddings": m.size("rope.scaling.original_context_length", c["max_position_embeddings"].(int)),
		}
	default:
		m.fail("%s %.40q is not supported, want none, linear or yarn", m.own("rope.scaling.type"), kind)
	}
}

// llama3Scaling returns the parameters of the llama3 kind with these divisors. If there are none, it returns the
// divisors as the file spells them.
func llama3Scaling(factors []float32, theta float64, headDim int) map[string]any {
	factor := factors[len(factors)-1]
	const low, high, original = 1.0, 4.0, 8192.0
	same := true
	for i, got := range factors {
		wave := 2 * math.Pi * math.Pow(theta, float64(2*i)/float64(headDim))
		want := 1.0
		switch {
		case wave > original/low:
			want = float64(factor)
		case wave >= original/high:
			smooth := (original/wave - low) / (high - low)
			want = 1 / ((1-smooth)/float64(factor) + smooth)
		}
		same = same && math.Abs(float64(got)-want) < 1e-4*want
	}
	if same {
		return map[string]any{
			"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
			"original_max_position_embeddings": int(original),
		}
	}
	return map[string]any{"rope_type": "longrope", "factor": 1, "attention_factor": 1, "short_factor": factors, "long_factor": factors}
}
