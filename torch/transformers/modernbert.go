package transformers

import (
	"math"

	"rltrain/torch"
)

// modernBert reads what modernbert alone has, and describes its blocks to the core: pre-norm, rotating, of
// which some see only near tokens (Warner et al. 2024, section 2.1).
func modernBert(f *fields, c *Config) {
	c.Biases = map[string]bool{}
	for _, key := range []string{"attention_bias", "mlp_bias", "norm_bias", "classifier_bias"} {
		c.Biases[key] = value(f, key, false)
	}
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
	blocks := &CausalConfig{
		NumHiddenLayers: c.NumHiddenLayers, HeadDim: c.HiddenSize / c.NumAttentionHeads, MaxPositionEmbeddings: c.MaxPositionEmbeddings,
		decoder: torch.DecoderConfig{
			VocabSize: c.VocabSize, HiddenSize: c.HiddenSize, Layers: c.NumHiddenLayers, Heads: c.NumAttentionHeads,
			KVHeads: c.NumAttentionHeads, HeadDim: c.HiddenSize / c.NumAttentionHeads, IntermediateSize: c.IntermediateSize,
			MaxPositions: c.MaxPositionEmbeddings, Norm: torch.NormLayer, NormEps: c.LayerNormEps,
			Activation: activations[c.HiddenAct], QKV: torch.QKVFused, Gated: true, FusedGateUp: true,
			EmbedNorm: true, Bidirectional: true,
			AttentionScale: 1 / math.Sqrt(float64(c.HiddenSize/c.NumAttentionHeads)), EmbeddingScale: 1,
		},
	}
	// local_attention counts both sides; a token half of it away is seen.
	sliding := blocks.slide(f, window/2+1, func(layer int) bool { return layer%every != 0 })
	full, local := f.nestedRopes()
	if len(f.object("rope_scaling").raw) > 0 {
		f.fail("rope_scaling is not supported for this model_type")
	}
	in := ropeInputs{headDim: blocks.HeadDim, maxPositions: c.MaxPositionEmbeddings, wholeHead: true, partial: 1}
	in.theta = f.positive("global_rope_theta", 160_000)
	blocks.addRope(f, full, in)
	in.theta = f.positive("local_rope_theta", 10_000)
	blocks.addRope(f, local, in)
	if f.err != nil {
		return
	}
	if blocks.dynamic {
		f.fail("rope_type \"dynamic\" is not supported for this model_type")
	}
	for i, slides := range sliding {
		if slides {
			blocks.decoder.RopeOf[i] = 1
		}
	}
	c.Blocks = &blocks.decoder
}
