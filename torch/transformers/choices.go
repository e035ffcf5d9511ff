package transformers

import (
	"math"

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
	full, local := f.nestedRopes()
	in := c.ropeInputs(f)
	c.addRope(f, full, in)
	in.theta = f.positive("rope_local_base_freq", 1e4)
	c.addRope(f, local, in)
	if f.err != nil {
		return
	}
	for i, s := range sliding {
		if s {
			c.core.RopeOf[i] = 1
		}
	}
}

// graniteFields reads Granite's multipliers. The hidden states are kept divided by residual_multiplier: then attention
// and MLP add to them as they are, and an RMS norm with its epsilon divided by the square gives the same.
func graniteFields(f *fields, c *Config) {
	f.noLayerTypes()
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
	if f.err != nil {
		return
	}
	// Angles of 0 leave queries and keys as they are.
	c.core.Ropes = append(c.core.Ropes, torch.Rope{InvFreq: make([]float64, c.core.RotaryDim/2), Factor: 1})
	for i := range c.core.RopeOf {
		if still(i) {
			c.core.RopeOf[i] = 1
		}
	}
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
	full, local := f.nestedRopes()
	if len(f.object("rope_scaling").raw) > 0 {
		f.fail("rope_scaling is not supported for this model_type")
	}
	in := ropeInputs{headDim: c.HeadDim, maxPositions: c.MaxPositionEmbeddings, wholeHead: true, partial: 1}
	in.theta = f.positive("global_rope_theta", 160_000)
	c.addRope(f, full, in)
	in.theta = f.positive("local_rope_theta", 10_000)
	c.addRope(f, local, in)
	if f.err != nil {
		return
	}
	if c.dynamic {
		f.fail("rope_type \"dynamic\" is not supported for this model_type")
	}
	for i, slides := range sliding {
		if slides {
			c.core.RopeOf[i] = 1
		}
	}
}
