package transformers

import "github.com/rltrain/rltrain/torch"

// scaled are layers of Gemma 3n that scale the first of the streams.
const scaled = "scaled"

// gemma3nFields reads Gemma 3n's fields.
func gemma3nFields(f *fields, c *Config) {
	c.core.LogitSoftcap = f.positive("final_logit_softcapping", 30)
	c.inputSize = f.size("hidden_size_per_layer_input", 256, maxWidth)
	if c.inputRows = f.size("vocab_size_per_layer_input", 262144, maxVocab); f.err == nil && c.inputRows > c.VocabSize {
		f.fail("vocab_size_per_layer_input %d is not supported, want at most vocab_size %d", c.inputRows, c.VocabSize)
	}
	c.laurelRank = f.size("laurel_rank", 64, maxWidth)
	c.readStreams(f)
	sparsity := c.sparsity(f)
	sliding := c.slide(f, f.window(512), func(layer int) bool { return (layer+1)%5 != 0 })
	c.shapeLayers(f, sliding, value(f, "num_kv_shared_layers", 15), func(layer int, _ bool) (torch.LayerShape, bool) {
		return torch.LayerShape{KVHeads: c.NumKeyValueHeads, HeadDim: c.HeadDim, IntermediateSize: c.layerWidth(layer), Sparsity: sparsity[layer]}, true
	})
	if f.err != nil {
		return
	}
	if value(f, "altup_correct_scale", true) {
		for i := range c.kinds {
			c.kinds[i] = append(c.kinds[i], scaled)
		}
	} else {
		c.unused = append(c.unused, "*.altup.correct_output_scale")
	}
	local := c.ropeInputs(f)
	local.theta = f.positive("rope_local_base_freq", 1e4)
	c.ropesByKind(f, c.ropeInputs(f), local, sliding)
}

// readStreams reads how many streams of hidden states there are (AltUp). transformers keeps their weights within altup_coef_clip
// while it trains, which published ones are far below.
func (c *Config) readStreams(f *fields) {
	f.spelled("altup_coef_clip")
	if c.streams = f.size("altup_num_inputs", 4, 64); f.err == nil && c.streams < 2 {
		f.fail("altup_num_inputs %d is not supported, want 2 or more", c.streams)
	}
	if active := value(f, "altup_active_idx", 0); active != 0 {
		f.fail("altup_active_idx %d is not supported, want 0", active)
	}
}

// sparsity reads which share of each layer's MLP is 0.
func (c *Config) sparsity(f *fields) []float64 {
	all := make([]float64, c.NumHiddenLayers)
	for i := range min(10, len(all)) {
		if len(all) > 10 {
			all[i] = 0.95
		}
	}
	if all = value(f, "activation_sparsity_pattern", all); len(all) != c.NumHiddenLayers {
		f.fail("activation_sparsity_pattern has %d entries, want one for each of %d layers", len(all), c.NumHiddenLayers)
	}
	for _, share := range all {
		if !(share >= 0 && share < 1) { // nor NaN
			f.fail("activation_sparsity_pattern: %g is not from 0 to below 1", share)
		}
	}
	return all
}

// readWidths reads a list of intermediate_size, of a family that may have one.
func (c *Config) readWidths(f *fields) {
	if raw := f.raw["intermediate_size"]; !families[c.ModelType].widths || len(raw) == 0 || raw[0] != '[' {
		return
	}
	c.layerWidths = value(f, "intermediate_size", []int{})
	if f.err == nil && len(c.layerWidths) != c.NumHiddenLayers {
		f.fail("intermediate_size has %d entries, want one for each of %d layers", len(c.layerWidths), c.NumHiddenLayers)
	}
	for _, width := range c.layerWidths {
		if width < 1 || width > 1<<20 {
			f.fail("intermediate_size: %d is not between 1 and %d", width, 1<<20)
		}
		c.IntermediateSize = max(c.IntermediateSize, width)
	}
}

// layerWidth is the intermediate_size of a layer.
func (c *Config) layerWidth(layer int) int {
	if c.layerWidths == nil {
		return c.IntermediateSize
	}
	return c.layerWidths[layer]
}

func gemma3nFamily(fam family) *family {
	fam.kvHeads, fam.special, fam.widths = 2, gemma3nFields, true
	fam.sizes = map[string]int{
		"vocab_size": 262400, "hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 35, "num_attention_heads": 8,
		"max_position_embeddings": 32768,
	}
	fam.base = []moduleRow{{"spread.E", "altup_projections.E", "HH", ""}, {"merge.E", "altup_unembed_projections.E", "HH", ""}}
	fam.joined = map[string][]string{"altup.correct_output_scale": {"altup.correct_output_scale.weight"}}
	made := laterGemma(fam,
		moduleRow{"laurel_left", "laurel.linear_left", "lH", ""},
		moduleRow{"laurel_right", "laurel.linear_right", "Hl", ""},
		moduleRow{"post_laurel_norm", "laurel.post_laurel_norm", "H", ""},
		moduleRow{"streams_norm", "altup.router_norm", "H", ""},
		moduleRow{"streams_router", "altup.modality_router", "sH", ""},
		moduleRow{"predict", "altup.prediction_coefs", "ts", ""},
		moduleRow{"correct", "altup.correction_coefs", "ss", ""})
	made.kinds[scaled] = []moduleRow{{"streams_scale", "altup.correct_output_scale", "H", ""}}
	return made
}

var gemma3n = map[string]*family{
	"gemma3n_text": gemma3nFamily(family{}),
	"gemma3n":      gemma3nFamily(family{inner: "text_config", prefixes: languagePrefixes, heads: languageHeads, ignored: towers}),
}
