package transformers

import (
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch"
)

// maxWindow bounds attention windows. A window of this size covers everything.
const maxWindow = 1 << 30

// window reads sliding_window, the number of keys that a query attends to, itself included; 0 (null) means all.
func (f *fields) window(absent int) int {
	if f.isNull("sliding_window") || absent == 0 && !f.has("sliding_window") {
		return 0
	}
	return f.size("sliding_window", absent, maxWindow)
}

// slideAll gives all layers one window; absent is its default, 0 for none.
func slideAll(absent int) func(*fields, *Config) {
	return func(f *fields, c *Config) {
		f.noLayerTypes()
		w := f.window(absent)
		c.slide(f, w, func(int) bool { return w > 0 })
	}
}

// slideLate gives layers from max_window_layers on a window if use_sliding_window is set, unless layer_types decides.
func slideLate(f *fields, c *Config) {
	w := 0
	if value(f, "use_sliding_window", false) {
		w = f.window(4096)
	}
	from := value(f, "max_window_layers", 28)
	c.slide(f, w, func(layer int) bool { return w > 0 && layer >= from })
}

// slide fills the windows of the layers that layer_types names, or else of those that slides accepts.
func (c *Config) slide(f *fields, window int, slides func(layer int) bool) []bool {
	sliding := make([]bool, c.NumHiddenLayers)
	for i := range sliding {
		sliding[i] = slides(i)
	}
	if types := value(f, "layer_types", []string(nil)); types != nil {
		if len(types) != len(sliding) {
			f.fail("layer_types has %d entries, want one for each of %d layers", len(types), len(sliding))
			return sliding
		}
		for i, kind := range types {
			if kind != "full_attention" && kind != "sliding_attention" {
				f.fail("layer_types has %.40q, want \"full_attention\" or \"sliding_attention\"", kind)
			}
			sliding[i] = kind == "sliding_attention"
		}
	}
	for i, s := range sliding {
		if !s {
			continue
		}
		if window == 0 {
			f.fail("layer %d slides, but there is no sliding_window", i)
			return sliding
		}
		if c.core.Windows == nil {
			c.core.Windows = make([]int, len(sliding))
		}
		c.core.Windows[i] = window
	}
	return sliding
}

// noLayerTypes refuses layer_types for model types that ignore it in transformers.
func (f *fields) noLayerTypes() {
	if f.has("layer_types") {
		f.fail("layer_types is not supported for this model_type")
	}
}

// forbid refuses a boolean field that is true.
func (f *fields) forbid(key string) {
	if value(f, key, false) {
		f.fail("%s true is not supported", key)
	}
}

// gemmaFields reads the fields that the Gemma families share. The caps are defaults of the soft caps of attention
// scores and logits.
func gemmaFields(f *fields, c *Config, attentionCap, logitCap float64) {
	f.forbid("use_bidirectional_attention")
	// transformers rounds it to the dtype of the weights; here hidden states are float32 always.
	c.core.EmbeddingScale = math.Sqrt(float64(c.HiddenSize))
	c.core.AttentionScale = 1 / math.Sqrt(f.positive("query_pre_attn_scalar", 256))
	c.core.AttentionSoftcap = f.softcap("attn_logit_softcapping", attentionCap)
	c.core.LogitSoftcap = f.softcap("final_logit_softcapping", logitCap)
}

// softcap reads a cap; 0 (null) means none.
func (f *fields) softcap(key string, absent float64) float64 {
	if f.isNull(key) || absent == 0 && !f.has(key) {
		return 0
	}
	return f.positive(key, absent)
}

func gemma2Fields(f *fields, c *Config) {
	gemmaFields(f, c, 50, 30)
	c.slide(f, f.window(4096), func(layer int) bool { return layer%2 == 0 })
}

// gemma3Fields reads Gemma 3's fields. Sliding layers rotate with their own base and without scaling unless
// rope_parameters says otherwise.
func gemma3Fields(f *fields, c *Config) {
	gemmaFields(f, c, 0, 0)
	pattern := f.size("sliding_window_pattern", 6, maxLayers)
	if f.err != nil {
		return
	}
	sliding := c.slide(f, f.window(4096), func(layer int) bool { return (layer+1)%pattern != 0 })
	local := c.ropeInputs(f)
	local.theta = f.positive("rope_local_base_freq", 1e4)
	c.ropesByKind(f, c.ropeInputs(f), local, sliding)
}

// ropesByKind adds a rope for layers with full attention and another one for those that slide.
func (c *Config) ropesByKind(f *fields, whole, local ropeInputs, sliding []bool) {
	full, slides := f.nestedRopes()
	c.addRope(f, full, whole)
	c.addRope(f, slides, local)
	for i, s := range sliding {
		if f.err == nil && s {
			c.core.RopeOf[i] = 1
		}
	}
}

// still takes the positions from some layers: angles of 0 leave queries and keys as they are.
func (c *Config) still(f *fields, is func(layer int) bool) {
	if f.err != nil {
		return
	}
	c.core.Ropes = append(c.core.Ropes, torch.Rope{InvFreq: make([]float64, c.core.RotaryDim/2), Factor: 1})
	for i := range c.core.RopeOf {
		if is(i) {
			c.core.RopeOf[i] = len(c.core.Ropes) - 1
		}
	}
}

// olmo3Fields reads Olmo 3's fields. Layers that slide rotate without scaling unless rope_parameters says otherwise.
func olmo3Fields(f *fields, c *Config) {
	sliding := c.slide(f, f.window(4096), func(layer int) bool { return (layer+1)%4 != 0 })
	local := c.ropeInputs(f)
	local.theta = c.family.theta
	c.ropesByKind(f, c.ropeInputs(f), local, sliding)
}

// exaone4Fields reads EXAONE 4's fields: if some layers have a window, the others have no positions.
func exaone4Fields(f *fields, c *Config) {
	pattern, window := 0, f.window(4096)
	if window > 0 && !f.has("layer_types") {
		pattern = f.size("sliding_window_pattern", 4, maxLayers)
	}
	sliding := c.slide(f, window, func(layer int) bool { return pattern > 0 && (layer+1)%pattern != 0 })
	c.addRope(f, f.ropeObject(), c.ropeInputs(f))
	c.still(f, func(layer int) bool { return window > 0 && !sliding[layer] })
}

// cohere2Fields reads Command R7B's fields: layers without a window have no positions.
func cohere2Fields(f *fields, c *Config) {
	f.forbid("use_qk_norm")
	pattern := f.size("sliding_window_pattern", 4, maxLayers)
	if f.err != nil {
		return
	}
	sliding := c.slide(f, f.window(4096), func(layer int) bool { return (layer+1)%pattern != 0 })
	c.addRope(f, f.ropeObject(), c.ropeInputs(f))
	c.still(f, func(layer int) bool { return !sliding[layer] })
	c.core.LogitDivisor = 1 / f.positive("logit_scale", 0.0625)
}

// ministralFields gives layers a window that layer_types names, all of them without it.
func ministralFields(f *fields, c *Config) {
	w := f.window(4096)
	c.slide(f, w, func(int) bool { return w > 0 })
}

// ministral3Fields reads Ministral 3's fields: queries grow with their positions.
func ministral3Fields(f *fields, c *Config) {
	slideAll(0)(f, c)
	rope := f.ropeObject()
	if c.core.QueryGrowth = value(rope, "llama_4_scaling_beta", -1.0); c.core.QueryGrowth < 0 {
		rope.fail("llama_4_scaling_beta is missing or negative")
	}
	c.core.QuerySpan = rope.size("original_max_position_embeddings", required, maxPositions)
	delete(rope.raw, "llama_4_scaling_beta")
	delete(rope.raw, "max_position_embeddings") // transformers does not read it here
	c.addRope(f, rope, c.ropeInputs(f))
}

// mistral3Fields reads the text part of Mistral Small 3.1 or Ministral 3.
func mistral3Fields(f *fields, c *Config) {
	switch kind := text(f, "model_type", "mistral"); kind {
	case "mistral":
		slideAll(4096)(f, c)
	case "ministral3":
		for _, key := range []string{"head_dim", "rms_norm_eps"} { // whose defaults are Mistral's
			f.positive(key, required)
		}
		ministral3Fields(f, c)
	default:
		f.fail("model_type %.40q is not supported, want \"mistral\" or \"ministral3\"", kind)
	}
}

// graniteHybridFields reads the fields of Granite 4's models whose layers are all of attention.
func graniteHybridFields(f *fields, c *Config) {
	if c.NumExperts = value(f, "num_local_experts", 8); c.NumExperts != 0 {
		c.NumExperts = f.size("num_local_experts", 8, maxExperts)
		f.own = nil // intermediate_size is here that of the experts
		c.mix(f, 2, f.size("intermediate_size", 11008, 1<<20), true, everyLayer)
		c.core.SharedSize = c.IntermediateSize
	}
	types := value(f, "layer_types", value(f, "layers_block_type", []string(nil)))
	dense := func(kind string) bool { return kind == "attention" || kind == "full_attention" }
	if f.err == nil && (len(types) != c.NumHiddenLayers || slices.IndexFunc(types, func(k string) bool { return !dense(k) }) >= 0) {
		f.fail("layer_types has other layers than one of \"attention\" for each of %d, which are not supported", c.NumHiddenLayers)
	}
	c.scale(f)
	c.addRope(f, f.ropeObject(), c.ropeInputs(f))
	switch kind := text(f, "position_embedding_type", "none"); kind {
	case "none", "nope":
		c.still(f, func(int) bool { return true })
	case "rope":
	default:
		f.fail("position_embedding_type %.40q is not supported, want \"rope\" or null", kind)
	}
}

// graniteFields reads Granite's fields.
func graniteFields(f *fields, c *Config) {
	f.noLayerTypes()
	c.scale(f)
}

// scale reads Granite's multipliers. The hidden states are kept divided by residual_multiplier: then attention
// and MLP add to them as they are, and an RMS norm with its epsilon divided by the square gives the same.
func (c *Config) scale(f *fields) {
	residual := f.positive("residual_multiplier", 1)
	c.core.EmbeddingScale = f.positive("embedding_multiplier", 1) / residual
	c.core.NormEps /= residual * residual
	c.core.AttentionScale = f.positive("attention_multiplier", 1)
	if divisor := f.positive("logits_scaling", 1); divisor != 1 {
		c.core.LogitDivisor = divisor
	}
}

// smolLM3Fields reads SmolLM3's fields: some layers have no positions. Those may have a window.
func smolLM3Fields(f *fields, c *Config) {
	every := f.size("no_rope_layer_interval", 4, maxLayers)
	rotates := value(f, "no_rope_layers", []int(nil)) // 1 for layers with positions
	if f.err == nil && rotates != nil && len(rotates) < c.NumHiddenLayers {
		f.fail("no_rope_layers has %d entries, want one for each of %d layers", len(rotates), c.NumHiddenLayers)
	}
	if f.err != nil {
		return
	}
	still := func(layer int) bool {
		if rotates == nil {
			return (layer+1)%every == 0
		}
		return rotates[layer] == 0
	}
	w := 0
	if value(f, "use_sliding_window", false) {
		w = f.window(0)
	}
	c.slide(f, w, func(layer int) bool { return w > 0 && still(layer) })
	c.addRope(f, f.ropeObject(), c.ropeInputs(f))
	c.still(f, still)
}

// lfm2MoeFields reads the fields of LFM2's models with experts.
func lfm2MoeFields(f *fields, c *Config) {
	c.convolve(f)
	c.NumExperts = f.size("num_experts", 32, maxExperts)
	first := value(f, "num_dense_layers", 2)
	c.mix(f, 4, f.size("moe_intermediate_size", 1792, 1<<20), value(f, "norm_topk_prob", true), func(layer int) bool { return layer >= first })
	c.core.RouterSigmoid, c.core.RouterScale = true, f.positive("routed_scaling_factor", 1)
	for i := range c.kinds {
		if value(f, "use_expert_bias", true) && i >= first {
			c.kinds[i] = append(c.kinds[i], biased)
		}
	}
}

// convolve reads which layers of LFM2 convolve.
func (c *Config) convolve(f *fields) {
	c.taps = f.size("conv_L_cache", 3, 1<<10)
	attends := value(f, "full_attn_idxs", []int(nil))
	types := c.alternate(f, convolution, func(layer int) bool { return attends == nil || slices.Contains(attends, layer) })
	if len(types) != c.NumHiddenLayers || !slices.Contains(types, fullAttention) {
		f.fail("layer_types has %d entries, want one for each of %d layers, with attention in some", len(types), c.NumHiddenLayers)
	}
	c.TieWordEmbeddings = value(f, "tie_embedding", c.TieWordEmbeddings)
}

// lfm2Fields reads LFM2's fields: which layers convolve, and the width of MLPs.
func lfm2Fields(f *fields, c *Config) {
	c.convolve(f)
	inner := value(f, "block_ff_dim", c.IntermediateSize)
	step, factor := f.size("block_multiple_of", 256, 1<<16), f.positive("block_ffn_dim_multiplier", 1)
	if value(f, "block_auto_adjust_ff_dim", true) {
		inner = int(factor * float64(2*inner/3))
		inner = (inner + step - 1) / max(step, 1) * step
	}
	if f.err == nil && (inner < 1 || inner > 1<<20) {
		f.fail("an MLP of width %d is not supported", inner)
	}
	c.IntermediateSize, c.core.IntermediateSize = inner, inner
	for _, key := range strings.Fields("block_dim block_use_swiglu block_use_xavier_init block_norm_eps block_mlp_init_scale block_out_init_scale conv_dim conv_dim_out conv_use_xavier_init num_heads") {
		f.spelled(key) // transformers does not read it
	}
}

// euroBert reads EuroBERT's fields.
func euroBert(f *fields, c *Config) {
	switch pooling := text(f, "classifier_pooling", "late"); pooling {
	case "bos":
	case "mean":
		c.ClassifierMean = true
	case "late":
		c.ClassifierLate = true
	default:
		f.fail("classifier_pooling %.40q is not supported, want \"bos\", \"late\" or \"mean\"", pooling)
	}
}

// nomicBert reads Nomic BERT's fields, in transformers' form or as published. Published models rescale rotations beyond the
// trained length, which is the longest here.
func nomicBert(f *fields, c *Config) {
	for _, key := range []string{
		"prenorm", "causal", "parallel_block", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved", "use_rms_norm",
		"scale_attn_by_inverse_layer_idx",
	} {
		f.forbid(key)
	}
	if act := text(f, "activation_function", "swiglu"); act != "swiglu" {
		f.fail("activation_function %.40q is not supported, want \"swiglu\"", act)
	}
	if share := value(f, "rotary_emb_fraction", 1.0); share != 1 {
		f.fail("rotary_emb_fraction %g is not supported, want 1", share)
	}
	if !value(f, "scale_attn_weights", true) {
		f.fail("scale_attn_weights false is not supported")
	}
	value(f, "rotary_scaling_factor", 0.0)
	c.MaxPositionEmbeddings = min(c.MaxPositionEmbeddings, f.size("max_trained_positions", c.MaxPositionEmbeddings, maxPositions))
	c.core.MaxPositions = c.MaxPositionEmbeddings
}

// modernBert reads ModernBERT's fields: pre-norm blocks with RoPE, some with a local window (Warner et al. 2024,
// section 2.1).
func modernBert(f *fields, c *Config) {
	switch pooling := text(f, "classifier_pooling", "cls"); pooling {
	case "cls":
	case "mean":
		c.ClassifierMean = true
	default:
		f.fail("classifier_pooling %.40q is not supported, want \"cls\" or \"mean\"", pooling)
	}
	c.ClassifierActivation = text(f, "classifier_activation", "gelu")
	if headActivations[c.ClassifierActivation] == nil {
		f.fail("classifier_activation %.40q is not supported, want \"gelu\", \"relu\", \"silu\" or \"tanh\"", c.ClassifierActivation)
	}
	every := f.size("global_attn_every_n_layers", 3, maxLayers)
	window := f.size("local_attention", 128, maxWindow)
	if f.err != nil {
		return
	}
	// local_attention counts both sides; a token half of it away is seen.
	sliding := c.slide(f, window/2+1, func(layer int) bool { return layer%every != 0 })
	if len(f.object("rope_scaling").raw) > 0 {
		f.fail("rope_scaling is not supported for this model_type")
	}
	in := ropeInputs{headDim: c.HeadDim, maxPositions: c.MaxPositionEmbeddings, wholeHead: true, partial: 1}
	in.theta = f.positive("global_rope_theta", 160_000)
	local := in
	local.theta = f.positive("local_rope_theta", 10_000)
	c.ropesByKind(f, in, local, sliding)
	if c.dynamic {
		f.fail("rope_type \"dynamic\" is not supported for this model_type")
	}
}
